"""What is around the routes: every answer is counted by path and status, and a failure of the bridge itself is one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from http import HTTPStatus

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from omnizmq.errors import UnavailableError
from omnizmq.frontend.http.problems import body
from omnizmq.frontend.http.sending import answered, failed
from omnizmq.protocol import is_external_id

log = logging.getLogger(__name__)

OTHER = "other"
"""Paths that there are not, and all that was answered before its path was looked for: without a key or this machine as
host, and preflights."""


class Counted:
    """ASGI middleware. `count` is told the path as its route states it, so that there are only so many."""

    def __init__(self, app: ASGIApp, count: Callable[[str, int], None]) -> None:
        self._app = app
        self._count = count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def counting(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._count(_path(scope), message["status"])
            await send(message)

        await self._app(scope, receive, counting)


class Named:
    """ASGI middleware. What is refused before it is a request of the deployment bears its caller's own id."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        own = Headers(scope=scope).get("x-request-id") if scope["type"] == "http" else None
        if own is None or not is_external_id(own):
            await self._app(scope, receive, send)
            return

        async def naming(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] >= HTTPStatus.BAD_REQUEST:
                MutableHeaders(scope=message).setdefault("x-request-id", own)
            await send(message)

        await self._app(scope, receive, naming)


class Guarded:
    """ASGI middleware. What nobody expected becomes an answer here, so that the layers around it see that one, too.
    What happens after an answer's begin goes on: the server cuts it off. What is not done when the deployment has
    stopped is cancelled by the server, and no failure."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def watched(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except asyncio.CancelledError:
            if not begun:
                await failed(UnavailableError("the deployment has stopped"))(scope, receive, send)
        except Exception as error:
            if begun:
                raise
            log.exception("%s %s failed", scope.get("method"), scope.get("path"))
            text = f"the bridge failed on this request: {type(error).__name__}; its log says more"
            document = body(500, "internal_error", text)
            await answered(document, status=500, headers={"x-should-retry": "false"})(scope, receive, send)


def _path(scope: Scope) -> str:
    path: str = getattr(scope.get("route"), "path_format", OTHER)
    return path
