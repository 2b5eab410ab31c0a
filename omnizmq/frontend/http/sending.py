"""How an answer is sent: whole, or as it comes until its caller goes, which aborts its request."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Coroutine, Iterable
from contextlib import aclosing, suppress
from typing import Any, NamedTuple

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from omnizmq.errors import OmnizmqError
from omnizmq.frontend.http import problems
from omnizmq.frontend.http.gone import CallerGoneError, while_connected
from omnizmq.frontend.http.problems import BridgeError

log = logging.getLogger(__name__)

DONE = b"data: [DONE]\n\n"
encode = msgspec.json.Encoder().encode


def answered(document: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A JSON document."""
    return Response(encode(document), status, headers, "application/json")


def failed(error: OmnizmqError | BridgeError) -> Response:
    """What went wrong, as OpenAI's clients expect it."""
    status, body, headers = problems.of(error)
    if error.request_id is not None:
        headers["x-request-id"] = error.request_id
    return answered(body, status=status, headers=headers)


def event(document: Any) -> bytes:
    """Of a stream of server-sent events."""
    return b"data: " + encode(document) + b"\n\n"


def joined_events(documents: Iterable[Any]) -> bytes:
    """Several in one piece: each piece is a system call, and wakes its reader."""
    return b"".join(map(event, documents))


class Begun(NamedTuple):
    """An answer whose first part is there. `source` is what the parts are made of, and is closed after them."""

    request_id: str
    parts: AsyncGenerator[bytes, None]
    source: AsyncGenerator[Any, None]


async def sent(request: Request, begin: Coroutine[Any, Any, Begun], media_type: str) -> Response:
    """An answer that goes out part by part.

    Raises what goes wrong in `begin`: only then it can have a status of its own.
    """
    return _Sent(await while_connected(request.receive, begin), media_type)


class _Sent(Response):
    """What goes wrong after its begin is an event, where the media type has events; else the answer is cut off."""

    def __init__(self, begun: Begun, media_type: str) -> None:
        super().__init__(None, 200, {"x-request-id": begun.request_id, "cache-control": "no-cache"}, media_type)
        del self.headers["content-length"]
        self._begun = begun

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        # Here, because a caller that has gone already cancels what sends before it begins.
        async with aclosing(self._begun.source), aclosing(self._begun.parts):
            with suppress(CallerGoneError):
                await while_connected(receive, self._send(send))

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            async for part in self._begun.parts:
                await send({"type": "http.response.body", "body": part, "more_body": True})
        except (OmnizmqError, BridgeError) as error:
            if self.media_type != "text/event-stream":
                log.warning("the answer to %s is cut off: %s", self._begun.request_id, error)
                return  # without its end, by which the caller tells it from a whole one
            await send({"type": "http.response.body", "body": event(problems.of(error)[1]), "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
