"""Callers of `http_cost.py`: many streaming requests at once, each over a connection of its own."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

DONE = b"data: [DONE]"


@dataclass(frozen=True)
class Server:
    """Where requests go, and whose CPU counts."""

    port: int
    pid: int


@dataclass(frozen=True)
class Load:
    """An answer of `outputs` pieces of text, and as many of sound."""

    outputs: int
    sound: bool

    @property
    def path(self) -> str:
        return f"/{'sound' if self.sound else 'text'}/{self.outputs}"

    def body(self, model: str) -> bytes:
        body: dict[str, Any] = {
            "model": model,
            "messages": [{"role": "user", "content": "speak"}],
            "stream": True,
            "max_completion_tokens": self.outputs,
        }
        if self.sound:
            body |= {"modalities": ["text", "audio"], "audio": {"voice": "default", "format": "pcm16"}}
        return json.dumps(body).encode()


async def at_once(count: int, port: int, path: str, body: bytes) -> int:
    """How many events came in all. Raises `ValueError` for an answer that is not whole."""
    answers = await asyncio.gather(*(ask(port, path, body) for _ in range(count)))
    return sum(map(len, answers))


async def ask(port: int, path: str, body: bytes) -> list[bytes]:
    """The events of one answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST {path} HTTP/1.1\r\nhost: here\r\nconnection: close\r\ncontent-type: application/json\r\n"
    writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    status = await reader.readline()
    if b" 200 " not in status:
        raise ValueError(f"{status!r} {await reader.read()!r}")
    while await reader.readline() != b"\r\n":
        pass
    pieces = []
    while size := int(await reader.readline(), 16):
        pieces.append(await reader.readexactly(size))
        await reader.readexactly(2)
    writer.close()
    events = [event for event in b"".join(pieces).split(b"\n\n") if event]
    if events[-1] != DONE:
        raise ValueError(f"an answer ends with {events[-1]!r}")
    return events
