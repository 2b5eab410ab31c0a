"""The opponent of `http_cost.py`: uvicorn, which streams recorded answers and does nothing else.

Between two pieces its event loop turns, as it does where a piece is awaited: else all of an answer goes out before its
reader wakes up.

    python tools/bench/http_bare.py FILE

FILE is a JSON object: of each path, the pieces of its answer. The port is printed.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import uvicorn

Send = Callable[[dict[str, Any]], Awaitable[None]]
HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]


class Bare:
    """An ASGI application."""

    def __init__(self, answers: dict[str, list[bytes]]) -> None:
        self._answers = answers

    async def __call__(
        self, scope: dict[str, Any], receive: Callable[[], Awaitable[dict[str, Any]]], send: Send
    ) -> None:
        while (await receive()).get("more_body", False):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        for piece in self._answers[scope["path"]]:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": b""})


def main() -> None:
    answers = {
        path: [piece.encode() for piece in pieces]
        for path, pieces in json.loads(Path(sys.argv[1]).read_bytes()).items()
    }
    with socket.create_server(("127.0.0.1", 0), backlog=2048) as listener:
        print(listener.getsockname()[1], flush=True)
        config = uvicorn.Config(Bare(answers), log_config=None, access_log=False, lifespan="off", server_header=False)
        uvicorn.Server(config).run([listener])


if __name__ == "__main__":
    main()
