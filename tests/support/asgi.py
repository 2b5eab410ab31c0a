"""One request to an ASGI application, without a server."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import Request
from starlette.responses import PlainTextResponse


class Caller:
    """One request, and what it is answered. `parts` of its body come; then nothing more."""

    def __init__(self, path: str, *parts: bytes, **headers: str) -> None:
        self.scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        }
        self.parts = list(parts)
        self.status = 0

    async def receive(self) -> Any:
        if self.parts:
            return {"type": "http.request", "body": self.parts.pop(0), "more_body": bool(self.parts)}
        await asyncio.Event().wait()
        raise AssertionError

    async def send(self, message: Any) -> None:
        self.status = message.get("status", self.status)


async def reads(scope: Any, receive: Any, send: Any) -> None:
    """An application that wants the body."""
    await Request(scope, receive).body()
    await PlainTextResponse("read")(scope, receive, send)
