"""The application: routes, and one shape for everything that goes wrong."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from omnizmq import __version__
from omnizmq.errors import OmnizmqError
from omnizmq.frontend.http import chat, deployment, models, pages, requests, speech
from omnizmq.frontend.http.described import finish
from omnizmq.frontend.http.gone import CallerGoneError
from omnizmq.frontend.http.hosts import LocalHosts
from omnizmq.frontend.http.limits import BodyLimit, KeysFirst
from omnizmq.frontend.http.origins import Origins
from omnizmq.frontend.http.problems import ABORTED, BridgeError, body
from omnizmq.frontend.http.schema import TAGS
from omnizmq.frontend.http.sending import answered, failed
from omnizmq.frontend.http.service import Service
from omnizmq.frontend.http.sites import OwnPages
from omnizmq.frontend.http.traffic import Counted, Guarded, Named
from omnizmq.tables import shown


class _App(FastAPI):
    keys = False

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            self.openapi_schema = finish(super().openapi(), keys=self.keys)
        return self.openapi_schema


def make(service: Service) -> FastAPI:
    """For the deployment that the service is a client of."""
    app = _App(
        title="omnizmq", version=__version__, openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False
    )
    app.keys = bool(service.settings.api_keys)
    app.include_router(chat.routes(service))
    app.include_router(speech.routes(service))
    app.include_router(models.routes(service))
    app.include_router(requests.routes(service))
    app.include_router(deployment.routes(service))
    app.include_router(pages.routes())
    app.add_exception_handler(OmnizmqError, _failed)
    app.add_exception_handler(BridgeError, _failed)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _refused)
    app.add_exception_handler(CallerGoneError, _gone)
    app.add_api_route("/openapi.json", partial(_described, app), include_in_schema=False)
    app.add_middleware(BodyLimit, max_bytes=service.settings.max_body_mib << 20)
    app.add_middleware(KeysFirst, keys=service.keys)
    if not service.settings.api_keys:
        app.add_middleware(OwnPages, origins=service.settings.cors_origins)
        app.add_middleware(LocalHosts, names=[service.settings.host, *service.settings.hosts])
    app.add_middleware(Guarded)
    app.add_middleware(Named)
    if service.settings.cors_origins:
        app.add_middleware(Origins, origins=service.settings.cors_origins)
    app.add_middleware(Counted, count=service.metrics.count)
    return app


async def _described(app: FastAPI) -> Response:
    return answered(app.openapi())


async def _failed(_: Request, error: Exception) -> Response:
    assert isinstance(error, OmnizmqError | BridgeError)
    return failed(error)


async def _invalid(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return _bad_body(f"no JSON at character {first['loc'][1]}: {first['ctx']['error']}")
    where = _path(first["loc"])
    if not where:
        return _bad_body(f"no JSON object: {_whole_body(first)}")
    said = "is not supported, or unknown" if first["type"] == "extra_forbidden" else first["msg"]
    return failed(BridgeError(400, "invalid_request", f"{where}: {said}", where))


def _bad_body(why: str) -> Response:
    return failed(BridgeError(400, "invalid_request", f"the body is {why}"))


def _whole_body(error: dict[str, Any]) -> str:
    if error["type"] == "missing":
        return "there is none"
    if isinstance(error["input"], bytes):  # the framework has not tried to read it
        return "send the header content-type: application/json, which says that it is one"
    return f"it is a {_JSON_NAMES.get(type(error['input']), 'constant')}"


_JSON_NAMES: dict[type, str] = {list: "list", str: "string", int: "number", float: "number"}


_UNREADABLE: dict[type, str] = {
    RecursionError: "no JSON that can be read here: it is nested too deeply",
    UnicodeDecodeError: "no JSON: it is no UTF-8",
    ValueError: "no JSON that can be read here: a number has too many digits",
}


async def _unreadable(request: Request, error: HTTPException) -> Response:
    """What the framework found when it read the body, or it was told."""
    match error.__cause__:
        case BridgeError() as cause:
            return failed(cause)
        case ClientDisconnect() as cause:
            return await _gone(request, cause)
        case cause:
            return _bad_body(_UNREADABLE.get(type(cause), f"no JSON that can be read here: {error.detail}"))


_CODES = {404: "not_found", 405: "method_not_allowed", 408: "slow_body", 413: "body_too_large", 429: "overloaded"}


async def _refused(request: Request, error: Exception) -> Response:
    """No such path or method, or a body that is too large or cannot be read."""
    assert isinstance(error, HTTPException)
    if error.status_code == 400:
        return await _unreadable(request, error)
    code = _CODES.get(error.status_code, "invalid_request")
    headers = {"x-should-retry": "false", **(error.headers or {})}
    return answered(body(error.status_code, code, _refusal(request, error)), status=error.status_code, headers=headers)


def _refusal(request: Request, error: HTTPException) -> str:
    path = shown(request.url.path)
    if error.status_code == 404:
        paths = [*request.app.openapi()["paths"], "/openapi.json", *pages.PATHS]
        return f"there is no {path}; paths are {', '.join(paths)}"
    if error.status_code == 405:
        return f"{path} does not take {shown(request.method)}: {(error.headers or {})['Allow']} was expected"
    return str(error.detail)


async def _gone(_: Request, __: Exception) -> Response:
    """Nobody reads it; it is counted."""
    return Response(status_code=ABORTED)


def _path(where: Sequence[Any]) -> str:
    """As in `messages[0].content`: without the first part, which says that it is the body."""
    path = ""
    for part in where[1:]:
        if isinstance(part, int):
            path += f"[{part}]"
        elif not path or part not in TAGS:
            name = part if part.isidentifier() and len(part) <= 80 else shown(part)
            path += f".{name}" if path else name
    return path
