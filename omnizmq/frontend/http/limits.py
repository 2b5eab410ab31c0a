"""What is refused before a body is held: one without a key where there are keys, one that is too large or too slow."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from omnizmq.frontend.http.keys import Keys
from omnizmq.frontend.http.problems import BridgeError, retry
from omnizmq.frontend.http.sending import failed

LINGER_S = 2.0
"""How long the rest of a refused body is read and thrown away: a connection that is closed on unread bytes is reset,
and the answer may be lost with it."""

BODY_S = 60.0
"""How long a body may take to come."""

BODIES = 16
"""Bodies of the largest size that may be held at once, or as many bytes of smaller ones."""

_PUBLIC = ("/", "/docs", "/deployment", "/openapi.json")
_PUBLIC_BELOW = ("/pages/", "/health/")


class KeysFirst:
    """ASGI middleware. Where there are keys, whoever bears none is refused before his body is held, but for what is
    public. Routes find the key's owner in `request.state`."""

    def __init__(self, app: ASGIApp, keys: Keys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not _is_public(scope["path"]):
            try:
                owner = self._keys.owner(Headers(scope=scope).get("authorization"))
            except BridgeError as error:
                await refuse(error, scope, receive, send)
                return
            scope.setdefault("state", {})["owner"] = owner
        await self._app(scope, receive, send)


async def refuse(error: BridgeError, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request whose body nobody wants: what comes of it within `LINGER_S` is thrown away."""
    if not _asks_first(scope):
        await _rest(receive, {"more_body": True})
    await failed(error)(scope, receive, send)


def _is_public(path: str) -> bool:
    return path in _PUBLIC or path.startswith(_PUBLIC_BELOW)


class BodyLimit:
    """ASGI middleware. What the body's length claims is refused at once, what turns out to be longer then. A body
    counts among those that are held from its first byte to its request's end."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        came = 0
        until: float | None = asyncio.get_running_loop().time() + BODY_S

        async def limited() -> Message:
            nonlocal came, until
            if _claimed(scope) > self._max_bytes:
                if not _asks_first(scope):
                    await _rest(receive, {"more_body": True})
                raise self._too_large()
            try:
                async with asyncio.timeout_at(until):
                    message = await receive()
            except TimeoutError:
                text = f"the body did not come within {BODY_S:g} s"
                raise HTTPException(408, text, {"connection": "close"}) from None
            if not message.get("more_body", False):
                until = None  # what else comes is the caller's end
            size = len(message.get("body", b""))
            came += size
            self._held += size
            if came > self._max_bytes:
                await _rest(receive, message)
                raise self._too_large()
            if self._held > BODIES * self._max_bytes:
                await _rest(receive, message)
                text = f"bodies of {BODIES * self._max_bytes} bytes are held here, as many as are let in at once"
                raise HTTPException(429, text, {"connection": "close", **retry(True)})
            return message

        try:
            await self._app(scope, limited, send)
        finally:
            self._held -= came

    def _too_large(self) -> HTTPException:
        text = f"the body is larger than {self._max_bytes} bytes, as many as are read here"
        return HTTPException(413, text, {"connection": "close"})


async def _rest(receive: Receive, message: Message) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(LINGER_S):
            while message.get("more_body", False):
                message = await receive()


def _asks_first(scope: Scope) -> bool:
    """Whether the caller waits for "100 Continue" before it sends its body: to receive would ask it to go on."""
    return any(name == b"expect" for name, _ in scope["headers"])


def _claimed(scope: Scope) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length":
            return int(value) if value.isdigit() else 0
    return 0
