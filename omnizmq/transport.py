"""ZeroMQ sockets on an asyncio loop, drained without `zmq.asyncio`.

The loop watches each socket's own descriptor and takes up to `BATCH` messages a wake-up; that costs a third of the CPU
of `zmq.asyncio`. The descriptor is edge-triggered: after sending and after receiving the events are looked at again
(once for all that a batch of messages sends on), and a slow safety tick, one for all sockets of a loop, catches what
slips through.

Sending never blocks. What a full peer cannot take is queued for that peer alone, up to a limit where nothing else
bounds it. The messages of one `send` go together or not at all, and in order: nothing that is sent later gets in
between.

This module moves bytes. It knows nothing of frames' meaning, requests or engines.
"""

from __future__ import annotations

import asyncio
import os
import struct
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Literal, NamedTuple
from weakref import WeakKeyDictionary

import zmq

from omnizmq.protocol import FRAME_BYTES

BATCH = 64
HIGH_WATER_MARK = 4096
SAFETY_TICK_S = 1.0
RETRY_S = 0.01
LINGER_MS = 200
LEASE_BEATS = 4

# Plain numbers: pyzmq's own are enumerations, and to combine two of those takes longer than to send a message.
_NOBLOCK = int(zmq.NOBLOCK)
_MORE_FOLLOWS = int(zmq.SNDMORE | zmq.NOBLOCK)
_RCVMORE = int(zmq.RCVMORE)
_EVENTS = int(zmq.EVENTS)
_POLLIN = int(zmq.POLLIN)
_POLLOUT = int(zmq.POLLOUT)

_DISCONNECTED = int(zmq.EVENT_DISCONNECTED)
_CONNECTED = int(zmq.EVENT_CONNECTED)
_AGREED = int(zmq.EVENT_HANDSHAKE_SUCCEEDED)
_REFUSED = tuple(
    map(
        int,
        (
            zmq.EVENT_HANDSHAKE_FAILED_AUTH,
            zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL,
            zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL,  # the other end hung up on it: what a wrong server's key leads to
        ),
    )
)

_EVENT = struct.Struct("=H")  # a monitor's message begins with it

Connection = Literal["none", "made", "refused"]
"""What has become of an encrypted connection: `refused`, where the two ends do not accept each other's keys, or where
the other end is none of ours."""


class Curve(NamedTuple):
    """Keys of one end of an encrypted connection, 40 characters of Z85 each: its own, and the other end's public one:
    for a server, the only client's that it admits."""

    public: bytes
    secret: bytes
    other: bytes


def make_keys() -> tuple[bytes, bytes]:
    """A public and a secret key."""
    return zmq.curve_keypair()


class PeerGoneError(Exception):
    """No peer of that identity is connected."""


class PeerFullError(Exception):
    """The peer does not read, and its queue here has reached the limit."""


def make_context() -> zmq.Context[zmq.Socket[bytes]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    context.linger = 0
    return context


def _allow_ipv6(socket: zmq.Socket[bytes], endpoint: str) -> None:
    """An address in brackets. Not for others: the socket would look names up as IPv6 alone."""
    if endpoint.startswith("tcp://["):
        socket.setsockopt(zmq.IPV6, 1)


class _Sockets:
    """What the sockets of one loop share: the safety tick, and the second look at those that sent during a drain."""

    def __init__(self) -> None:
        self.draining = False
        self.sent: set[_Drained] = set()
        self._started: set[_Drained] = set()
        self._tick: asyncio.TimerHandle | None = None

    def add(self, socket: _Drained) -> None:
        self._started.add(socket)
        if self._tick is None:
            self._look()

    def remove(self, socket: _Drained) -> None:
        self.sent.discard(socket)
        self._started.discard(socket)
        if self._tick is not None and not self._started:
            self._tick.cancel()
            self._tick = None

    def drained(self) -> None:
        """The drain is over."""
        self.draining = False
        while self.sent:
            self.sent.pop().look_again()

    def _look(self) -> None:
        self._tick = asyncio.get_running_loop().call_later(SAFETY_TICK_S, self._look)
        for socket in self._started:
            socket.look_again()


_sockets: WeakKeyDictionary[asyncio.AbstractEventLoop, _Sockets] = WeakKeyDictionary()


class _Drained:
    """A socket, its reader on the loop, and what waits to be sent. `malformed` counts messages of too many frames."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], kind: int) -> None:
        self.malformed = 0
        self.socket = context.socket(kind)
        self.socket.setsockopt(zmq.MAXMSGSIZE, FRAME_BYTES)
        self.socket.setsockopt(zmq.SNDHWM, HIGH_WATER_MARK)
        self.socket.setsockopt(zmq.RCVHWM, HIGH_WATER_MARK)
        self._fd = int(self.socket.getsockopt(zmq.FD))
        # A full DEALER says when there is room; a ROUTER always says that there is, for some peer.
        self._retry_on = _POLLIN | _POLLOUT if kind == zmq.DEALER else _POLLIN
        self._refused = False  # the last send
        self._loop = asyncio.get_running_loop()
        self._all = _sockets.setdefault(self._loop, _Sockets())
        self._scheduled = False
        self._closed = False

    @property
    def closed(self) -> bool:
        return self._closed

    def start(self) -> None:
        """Begin to receive; call it after bind or connect."""
        self._loop.add_reader(self._fd, self._ready)
        self._all.add(self)
        self._ready()

    def close(self, linger_ms: int = LINGER_MS) -> None:
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._fd)
        self._all.remove(self)
        self.socket.close(linger_ms)

    def schedule(self) -> None:
        """Look again soon: the descriptor will not say so by itself."""
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._ready)

    def look_again(self) -> None:
        """Whatever is done to a socket may make it see what came in, and it will not say so again."""
        if int(self.socket.getsockopt(_EVENTS)) & (self._retry_on if self._refused else _POLLIN):
            self.schedule()

    def _ready(self) -> None:
        self._scheduled = False
        if self._closed:
            return
        self._all.draining = True
        try:
            drained = self._drain()
        except BaseException:  # of whoever received: the rest is not kept waiting for it
            self.schedule()
            raise
        finally:
            self._all.drained()
        if self.closed:
            return
        self._flush()  # afterwards: a receive that found nothing may have learned that there is room again
        if not drained:
            self.schedule()

    def _drain(self) -> bool:
        """Whether all has been received that was there."""
        receive, look = self.socket.recv, self.socket.getsockopt
        for number in range(BATCH):
            try:
                first = receive(_NOBLOCK)
            except zmq.Again:
                return True
            self._take(first)
            if self.closed:
                return True
            # Mostly one message comes alone: to look whether there is another costs less than an exception.
            if number == 0 and not int(look(_EVENTS)) & _POLLIN:
                return True
        return False

    def _take(self, first: bytes) -> None:
        """The message that begins with this frame."""
        raise NotImplementedError

    def _skip_rest(self) -> None:
        """A message of too many frames: what is left of it."""
        self.malformed += 1
        while self.socket.getsockopt(_RCVMORE):
            self.socket.recv(_NOBLOCK)

    def _flush(self) -> None:
        raise NotImplementedError

    def _sent(self, *, refused: bool) -> None:
        """Either way the socket may have seen what came in meanwhile, and will not say so again."""
        self._refused = refused
        if self._all.draining:
            self._all.sent.add(self)
        else:
            self.look_again()


class Dealer(_Drained):
    """One connection to one peer. `connection` is kept where it is encrypted."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        endpoint: str,
        received: Callable[[bytes], None],
        *,
        identity: bytes | None = None,
        limit: int | None = HIGH_WATER_MARK,
        curve: Curve | None = None,
        lost: Callable[[], None] | None = None,
    ) -> None:
        """`lost` is called when a connection that was made has ended; ZeroMQ makes another one by itself, and what was
        on its way is gone."""
        super().__init__(context, zmq.DEALER)
        if identity is not None:
            self.socket.setsockopt(zmq.IDENTITY, identity)
        if curve is not None:
            self.socket.curve_publickey, self.socket.curve_secretkey = curve.public, curve.secret
            self.socket.curve_serverkey = curve.other
        self._received = received
        self._limit = limit
        self._waiting: deque[bytes] = deque()
        self.connection: Connection = "none"
        calls: dict[int, Callable[[], None]] = {} if lost is None else {_DISCONNECTED: lost}
        if curve is not None:
            calls |= {_CONNECTED: self._made, _AGREED: self._agreed} | dict.fromkeys(_REFUSED, self._not_agreed)
        self._monitor = _Monitor(self.socket, calls) if calls else None
        _allow_ipv6(self.socket, endpoint)
        self.socket.connect(endpoint)

    def send(self, messages: Iterable[bytes]) -> None:
        """Each is one message. Raises `PeerFullError`, and sends none, where as many as the limit wait already."""
        if self._limit is not None and len(self._waiting) >= self._limit:
            raise PeerFullError
        for message in messages:
            if self._waiting or not self._put(message):
                self._waiting.append(message)

    def _take(self, first: bytes) -> None:
        if self.socket.getsockopt(_RCVMORE):
            self._skip_rest()
        else:
            self._received(first)

    def close(self, linger_ms: int = LINGER_MS) -> None:
        if self._monitor is not None and not self.closed:
            self._monitor.close()
        super().close(linger_ms)

    def _flush(self) -> None:
        while self._waiting and self._put(self._waiting[0]):
            self._waiting.popleft()

    def _made(self) -> None:
        """Of one that is refused another is made, over and over."""
        if self.connection == "none":
            self.connection = "made"

    def _agreed(self) -> None:
        self.connection = "made"

    def _not_agreed(self) -> None:
        self.connection = "refused"

    def _put(self, message: bytes) -> bool:
        """Whether the socket took it."""
        try:
            self.socket.send(message, _NOBLOCK)
        except zmq.Again:
            self._sent(refused=True)
            return False
        self._sent(refused=False)
        return True


class _Monitor:
    """Calls what belongs to it whenever one of these events happens to a connection of the socket."""

    def __init__(self, socket: zmq.Socket[bytes], calls: Mapping[int, Callable[[], None]]) -> None:
        self._watched = socket
        self._calls = calls
        self._loop = asyncio.get_running_loop()
        self._events = socket.get_monitor_socket(sum(calls))
        self._fd = int(self._events.getsockopt(zmq.FD))
        self._loop.add_reader(self._fd, self._look)
        self._look()

    def close(self) -> None:
        self._loop.remove_reader(self._fd)
        self._watched.disable_monitor()
        self._events.close(0)

    def _look(self) -> None:
        while int(self._events.getsockopt(_EVENTS)) & _POLLIN:
            (event,) = _EVENT.unpack_from(self._events.recv_multipart(_NOBLOCK)[0])
            self._calls[event]()
            if self._events.closed:
                return


class Router(_Drained):
    """A bound socket with many peers, each known by its identity."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        endpoint: str,
        received: Callable[[bytes, bytes], None],
        *,
        limit: int | None = HIGH_WATER_MARK,
        curve: Curve | None = None,
        lease_s: float | None = None,
    ) -> None:
        """`lease_s`: a peer whose I/O thread has not answered for so long is disconnected. Raises `OSError` for an
        endpoint that cannot be bound."""
        super().__init__(context, zmq.ROUTER)
        self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        if curve is not None:
            self.socket.curve_server = True
            self.socket.curve_publickey, self.socket.curve_secretkey = curve.public, curve.secret
        if lease_s is not None:
            self.socket.setsockopt(zmq.HEARTBEAT_IVL, int(lease_s * 1000 / LEASE_BEATS))
            self.socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, int(lease_s * 1000))
        self._received = received
        self._limit = limit
        self._waiting: dict[bytes, deque[bytes]] = {}
        self._retry: asyncio.TimerHandle | None = None
        _allow_ipv6(self.socket, endpoint)
        try:
            self.socket.bind(endpoint)
        except zmq.ZMQError as error:
            self.socket.close(0)
            raise OSError(error.errno, os.strerror(error.errno or 0)) from error

    def send(self, peer: bytes, messages: Iterable[bytes]) -> None:
        """Raises `PeerGoneError`, or `PeerFullError` where as many as the limit wait already.

        Either way nothing of these goes, and what waits for the peer is forgotten.
        """
        waiting = self._waiting.get(peer)
        if waiting is not None and self._limit is not None and len(waiting) >= self._limit:
            self.forget(peer)
            raise PeerFullError
        for message in messages:
            if waiting is None and self._put(peer, message):
                continue
            waiting = self._waiting.setdefault(peer, deque())
            waiting.append(message)
            self._retry_later()

    def waiting(self) -> int:
        """Messages that full peers have not taken yet."""
        return sum(map(len, self._waiting.values()))

    def forget(self, peer: bytes) -> None:
        self._waiting.pop(peer, None)

    def _take(self, first: bytes) -> None:
        data = self.socket.recv(_NOBLOCK)  # whatever a peer sends, the socket puts its identity before it
        if self.socket.getsockopt(_RCVMORE):
            self._skip_rest()
        else:
            self._received(first, data)

    def _put(self, peer: bytes, message: bytes) -> bool:
        """Whether the socket took it. The peer's queue has room for both frames or for none."""
        socket = self.socket
        try:
            socket.send(peer, _MORE_FOLLOWS)
            socket.send(message, _NOBLOCK)
        except zmq.Again:
            self._sent(refused=True)
            return False
        except zmq.ZMQError as error:
            if error.errno == zmq.EHOSTUNREACH:
                self.forget(peer)
                raise PeerGoneError("it is not connected") from error
            raise
        self._sent(refused=False)
        return True

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
                while queue and self._put(peer, queue[0]):
                    queue.popleft()
            except PeerGoneError:
                continue
            if not queue:
                del self._waiting[peer]
        if self._waiting:
            self._retry_later()
