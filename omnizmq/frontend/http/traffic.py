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

        begun = False

        async def counting(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                self._answered(_path(scope), message["status"])
            await send(message)

        try:
            await self._app(scope, receive, counting)
        except Exception:
            if not begun:  # the answer to that is made further out
                self._answered(_path(scope), 500)
            raise


def _path(scope: Scope) -> str:
    path: str = getattr(scope.get("route"), "path_format", OTHER)
    return path
