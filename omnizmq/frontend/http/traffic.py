"""Answers are counted by path and status, whoever gave them."""

from __future__ import annotations

from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

OTHER = "other"
"""Paths that there are not."""


class Counted:
    """ASGI middleware. `answered` is told the path as its route states it, so that there are only so many."""

    def __init__(self, app: ASGIApp, answered: Callable[[str, int], None]) -> None:
        self._app = app
        self._answered = answered

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def counting(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._answered(_path(scope), message["status"])
            await send(message)

        await self._app(scope, receive, counting)


def _path(scope: Scope) -> str:
    path: str = getattr(scope.get("route"), "path_format", OTHER)
    return path
