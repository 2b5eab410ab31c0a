"""What `/openapi.json` says beside the bodies' types: errors, headers, keys."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from omnizmq.frontend.http.sound import MEDIA_TYPES


class Problem(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """What every answer that is no success has, in OpenAI's shape."""

    error: Problem


_MEANS = {
    400: "The request cannot be meant, or the deployment cannot do that.",
    401: "No valid API key.",
    403: "Without API keys: the request names another machine as its host, or is of another site's page.",
    404: "There is no such model, request or earlier sound.",
    408: "The body did not come in time.",
    413: "The body or the prompt is too large, or its sounds are too long.",
    429: "Too much is asked at once: come again.",
    499: "The request was aborted.",
    500: "A stage failed, or the bridge did.",
    503: "A stage has no replica that serves, one was lost, or the router does not answer.",
    504: "The request's deadline has passed, or a stage's input has stopped coming.",
}
GENERATING = (400, 401, 404, 408, 413, 429, 499, 503, 504)
"""What may become of a request."""

SOUNDS: dict[str, Any] = {kind: {"schema": {"type": "string", "format": "binary"}} for kind in MEDIA_TYPES.values()}
"""As `content` of an answer."""

Responses = dict[int | str, dict[str, Any]]


def refusals(*statuses: int) -> Responses:
    """Errors that a route can answer with, and those that every route can."""
    return {status: {"model": ErrorBody, "description": _MEANS[status]} for status in sorted({403, 500, *statuses})}


def _header(name: str, about: str, **schema: Any) -> dict[str, Any]:
    return {
        "name": name,
        "in": "header",
        "required": False,
        "description": about,
        "schema": schema,
    }


HEADERS: dict[str, Any] = {
    "parameters": [
        _header("x-request-id", "The caller's own id.", type="string", minLength=1, maxLength=128, pattern="^[!-~]+$"),
        _header(
            "x-request-timeout",
            "Seconds until the request's deadline, above 0.",
            type="number",
            exclusiveMinimum=0,
            exclusiveMaximum=1e9,
        ),
        _header("traceparent", "W3C Trace Context: the caller's span.", type="string"),
    ]
}
"""Of a route that begins a request, as `openapi_extra`."""


def finish(document: dict[str, Any], *, keys: bool) -> dict[str, Any]:
    """The framework's document without what it says of its own errors, which are none here; with the keys."""
    for operations in document["paths"].values():
        for operation in operations.values():
            operation["responses"].pop("422", None)
            if keys and "401" in operation["responses"]:
                operation["security"] = [{"key": []}]
    components = document.setdefault("components", {})
    for name in ("HTTPValidationError", "ValidationError"):
        components.get("schemas", {}).pop(name, None)
    if keys:
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    return document
