"""A router's socket where a test says what is answered: for what a deployment does too rarely, too fast or never."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import msgspec

from omnizmq import protocol as wire
from omnizmq.runtime import Deployment, RuntimeDir, ipc_endpoint
from omnizmq.transport import PeerGoneError, Router, make_context

NAME = "scripted"
STAGES = [wire.StageInfo("thinker", "text"), wire.StageInfo("talker", None), wire.StageInfo("code2wav", "audio")]

F = TypeVar("F", bound=msgspec.Struct)
Answer = Callable[[wire.ClientToRouter], Iterable[wire.RouterToClient]]


class ScriptedRouter:
    """It welcomes each client and then sends what `answer(frame)` returns for each of its frames, which it keeps in
    `heard`. Everything of it happens in a thread of its own."""

    def __init__(self, directory: RuntimeDir, answer: Answer, window: int, window_bytes: int) -> None:
        self.heard: list[wire.ClientToRouter] = []
        self._answer = answer
        self._endpoint = ipc_endpoint(directory.path / "clients.sock")
        self._welcome = wire.Welcome(wire.VERSION, NAME, os.getpid(), STAGES, 4 << 20, window, window_bytes, 10.0)
        self._packer = wire.Packer()
        self._unpackers: dict[bytes, wire.Unpacker[wire.ClientToRouter]] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._open(), self._loop).result(10)
        directory.publish(Deployment(NAME, self._endpoint, "nonce", os.getpid(), time.time(), wire.VERSION))

    def say(self, *frames: wire.RouterToClient) -> None:
        """To every client, unasked."""
        for identity in list(self._unpackers):
            self._loop.call_soon_threadsafe(self._send, identity, frames)

    def heard_of(self, kind: type[F]) -> list[F]:
        return [frame for frame in self.heard if isinstance(frame, kind)]

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _open(self) -> None:
        self._context = make_context()
        self._socket = Router(self._context, self._endpoint, self._received)
        self._socket.start()

    async def _close(self) -> None:
        self._socket.close()
        self._context.term()

    def _received(self, identity: bytes, data: bytes) -> None:
        if identity not in self._unpackers:
            wire.decode_hello(data)
            self._unpackers[identity] = wire.Unpacker(wire.client_to_router)
            self._send(identity, [self._welcome])
            return
        frame = self._unpackers[identity].unpack(data)
        if frame is not None:
            self.heard.append(frame)
            self._send(identity, self._answer(frame))

    def _send(self, identity: bytes, frames: Iterable[wire.RouterToClient]) -> None:
        for frame in frames:
            try:
                self._socket.send(identity, self._packer.pack(frame))
            except PeerGoneError:
                return


@contextmanager
def scripted_router(answer: Answer, *, window: int = 1024, window_bytes: int = 8 << 20) -> Iterator[ScriptedRouter]:
    """A deployment named `scripted`, for clients of this process and of others."""
    directory = RuntimeDir.create(NAME)
    router = ScriptedRouter(directory, answer, window, window_bytes)
    try:
        yield router
    finally:
        router.close()
        directory.remove()
