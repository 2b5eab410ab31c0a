"""A body is read up to a limit: more is refused before it is held."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LINGER_S = 2.0
"""How long the rest of a refused body is read and thrown away: a connection that is closed on unread bytes is reset,
and the answer may be lost with it."""


class BodyLimit:
    """ASGI middleware. What the body's length claims is refused at once, what turns out to be longer then."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        came = 0

        async def limited() -> Message:
            nonlocal came
            message = await receive()
            came += len(message.get("body", b""))
            if came > self._max_bytes or _claimed(scope) > self._max_bytes:
                await _rest(receive, message)
                text = f"the body is larger than {self._max_bytes} bytes, as many as are read here"
                raise HTTPException(413, text, {"connection": "close"})
            return message

        await self._app(scope, limited, send)


async def _rest(receive: Receive, message: Message) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(LINGER_S):
            while message.get("more_body", False):
                message = await receive()


def _claimed(scope: Scope) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length":
            return int(value) if value.isdigit() else 0
    return 0
