"""ZeroMQ sockets on an asyncio loop, drained without `zmq.asyncio`.

The loop watches each socket's own descriptor and takes up to `BATCH` messages a wake-up; that costs a third of the CPU
of `zmq.asyncio`. The descriptor is edge-triggered: after every send and every receive the events are looked at again,
and a slow safety tick catches what slips through.

Sending never blocks. What a full peer cannot take is queued for that peer alone, up to a limit where nothing else
bounds it. The messages of one `send` go together or not at all, and in order: nothing that is sent later gets in
between.

This module moves bytes. It knows nothing of frames' meaning, requests or engines.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable

import zmq

from omnizmq.protocol import FRAME_BYTES

BATCH = 64
HIGH_WATER_MARK = 4096
SAFETY_TICK_S = 1.0
RETRY_S = 0.01
LINGER_MS = 200


class PeerGoneError(Exception):
    """No peer of that identity is connected."""


class PeerFullError(Exception):
    """The peer does not read, and its queue here has reached the limit."""


def make_context() -> zmq.Context[zmq.Socket[bytes]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    context.linger = 0
    return context


class _Drained:
    """A socket, its reader on the loop, and what waits to be sent. `malformed` counts messages of too many frames."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], kind: int, frames: int, received: Callable[[list[bytes]], None]
    ) -> None:
        self.malformed = 0
        self.socket = context.socket(kind)
        self.socket.setsockopt(zmq.MAXMSGSIZE, FRAME_BYTES)
        self.socket.setsockopt(zmq.SNDHWM, HIGH_WATER_MARK)
        self.socket.setsockopt(zmq.RCVHWM, HIGH_WATER_MARK)
        self._fd = int(self.socket.getsockopt(zmq.FD))
        self._frames = frames
        # A full DEALER says when there is room; a ROUTER always says that there is, for some peer.
        self._retry_on = zmq.POLLIN | zmq.POLLOUT if kind == zmq.DEALER else zmq.POLLIN
        self._received = received
        self._loop = asyncio.get_running_loop()
        self._scheduled = False
        self._closed = False
        self._tick: asyncio.TimerHandle | None = None

    @property
    def closed(self) -> bool:
        return self._closed

    def start(self) -> None:
        """Begin to receive; call it after bind or connect."""
        self._loop.add_reader(self._fd, self._ready)
        self._safety_tick()

    def close(self, linger_ms: int = LINGER_MS) -> None:
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._fd)
        if self._tick is not None:
            self._tick.cancel()
        self.socket.close(linger_ms)

    def _safety_tick(self) -> None:
        self._tick = self._loop.call_later(SAFETY_TICK_S, self._safety_tick)
        self._ready()

    def _schedule(self) -> None:
        """Look again soon: the descriptor will not say so by itself."""
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._ready)

    def _ready(self) -> None:
        self._scheduled = False
        if self._closed:
            return
        try:
            drained = self._drain()
        except BaseException:  # of whoever received: the rest is not kept waiting for it
            self._schedule()
            raise
        if self.closed:
            return
        self._flush()  # afterwards: a receive that found nothing may have learned that there is room again
        if not drained:
            self._schedule()

    def _drain(self) -> bool:
        """Whether all has been received that was there."""
        for _ in range(BATCH):
            try:
                message = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return True
            if len(message) == self._frames:
                self._received(message)
            else:
                self.malformed += 1
            if self.closed:
                return True
        return False

    def _flush(self) -> None:
        raise NotImplementedError

    def _put(self, message: list[bytes]) -> bool:
        """Whether the socket took it. Either way it may have seen what came in meanwhile, and will not say so again."""
        taken = True
        try:
            self.socket.send_multipart(message, zmq.NOBLOCK)
        except zmq.Again:
            taken = False
        except zmq.ZMQError as error:
            if error.errno == zmq.EHOSTUNREACH:
                raise PeerGoneError("it is not connected") from error
            raise
        if int(self.socket.getsockopt(zmq.EVENTS)) & (zmq.POLLIN if taken else self._retry_on):
            self._schedule()
        return taken


class Dealer(_Drained):
    """One connection to one peer."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        endpoint: str,
        received: Callable[[bytes], None],
        *,
        identity: bytes | None = None,
        limit: int | None = HIGH_WATER_MARK,
    ) -> None:
        super().__init__(context, zmq.DEALER, 1, lambda message: received(message[0]))
        if identity is not None:
            self.socket.setsockopt(zmq.IDENTITY, identity)
        self._limit = limit
        self._waiting: deque[bytes] = deque()
        self.socket.connect(endpoint)

    def send(self, messages: Iterable[bytes]) -> None:
        """Each is one message. Raises `PeerFullError`, and sends none, where as many as the limit wait already."""
        if self._limit is not None and len(self._waiting) >= self._limit:
            raise PeerFullError
        for message in messages:
            if self._waiting or not self._put([message]):
                self._waiting.append(message)

    def _flush(self) -> None:
        while self._waiting and self._put([self._waiting[0]]):
            self._waiting.popleft()


class Router(_Drained):
    """A bound socket with many peers, each known by its identity."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        endpoint: str,
        received: Callable[[bytes, bytes], None],
        *,
        limit: int | None = HIGH_WATER_MARK,
    ) -> None:
        super().__init__(context, zmq.ROUTER, 2, lambda message: received(message[0], message[1]))
        self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._limit = limit
        self._waiting: dict[bytes, deque[bytes]] = {}
        self._retry: asyncio.TimerHandle | None = None
        self.socket.bind(endpoint)

    def send(self, peer: bytes, messages: Iterable[bytes]) -> None:
        """Raises `PeerGoneError`, or `PeerFullError` where as many as the limit wait already.

        Either way nothing of these goes, and what waits for the peer is forgotten.
        """
        waiting = self._waiting.get(peer)
        if waiting is not None and self._limit is not None and len(waiting) >= self._limit:
            self.forget(peer)
            raise PeerFullError
        for message in messages:
            if waiting is None and self._put_to(peer, message):
                continue
            waiting = self._waiting.setdefault(peer, deque())
            waiting.append(message)
            self._retry_later()

    def waiting(self) -> int:
        """Messages that full peers have not taken yet."""
        return sum(map(len, self._waiting.values()))

    def forget(self, peer: bytes) -> None:
        self._waiting.pop(peer, None)

    def _put_to(self, peer: bytes, message: bytes) -> bool:
        try:
            return self._put([peer, message])
        except PeerGoneError:
            self.forget(peer)
            raise

    def _retry_later(self) -> None:
        if self._retry is None:
            self._retry = self._loop.call_later(RETRY_S, self._retry_now)

    def _retry_now(self) -> None:
        self._retry = None
        if not self._closed:
            self._flush()

    def _flush(self) -> None:
        for peer in list(self._waiting):
            queue = self._waiting[peer]
            try:
                while queue and self._put_to(peer, queue[0]):
                    queue.popleft()
            except PeerGoneError:
                continue
            if not queue:
                del self._waiting[peer]
        if self._waiting:
            self._retry_later()
