"""Worker to worker: one bound data socket a worker, and one connection to each consumer it is bound to.

Chunks, ends of edges and failures go from producer to consumer; credits come back over the same connection. Today every
chunk goes inline, in parts above a frame's limit; descriptors of a ring will travel here as well.

Nothing here has a limit of its own: an edge's window bounds its chunks, and they bound their credits.

A peer is one incarnation of a replica. Nothing is taken from it before its hello, nor after it has been dropped, nor
from an older incarnation of a dropped one (F3).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import zmq

from omnizmq import protocol as wire
from omnizmq.errors import ProtocolError
from omnizmq.transport import Dealer, PeerGoneError, Router

log = logging.getLogger(__name__)

EARLY_FRAMES = 4096
"""What a producer that has not connected yet may have to hear. Beyond it the oldest are forgotten: those requests have
ended without a chunk, or it would have connected."""

Peer = tuple[str, int]  # replica, incarnation
Received = Callable[[Peer, "wire.ProducerToConsumer | wire.ConsumerToProducer"], None]


@dataclass
class _Producer:
    """A connected producer: its socket identity here, and what has come of it."""

    peer: Peer
    identity: bytes
    unpacker: wire.Unpacker[wire.ProducerToConsumer]


class DataPlane:
    """`received` gets every frame of a peer that said a good hello. What cannot be sent raises `PeerGoneError`."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        endpoint: str,
        *,
        replica: str,
        incarnation: int,
        nonce: str,
        received: Received,
    ) -> None:
        self.bad_frames = 0
        self._context = context
        self._hello = wire.Hello(wire.VERSION, nonce, "producer", replica=replica, incarnation=incarnation)
        self._received = received
        self._packer = wire.Packer()
        self._socket = Router(context, endpoint, self._producer_sent, limit=None)
        self._producers: dict[bytes, _Producer] = {}
        self._by_peer: dict[Peer, _Producer] = {}
        self._early: dict[Peer, deque[wire.ConsumerToProducer]] = {}
        self._dropped: dict[str, int] = {}  # replica -> its last incarnation that is dead
        self._consumers: dict[Peer, Dealer] = {}

    def start(self) -> None:
        self._socket.start()

    def close(self) -> None:
        self._socket.close()
        for dealer in self._consumers.values():
            dealer.close()

    # --- As a producer ---------------------------------------------------------------------------------------------

    def to_consumer(self, target: wire.Target, frame: wire.ProducerToConsumer) -> None:
        peer = (target.replica, target.incarnation)
        if self._is_dead(peer):
            raise PeerGoneError(f"{target.replica} is dead")
        dealer = self._consumers.get(peer) or self._connect(peer, target.endpoint)
        dealer.send(self._packer.pack(frame))

    def _connect(self, peer: Peer, endpoint: str) -> Dealer:
        unpacker = wire.Unpacker(wire.consumer_to_producer)
        dealer = Dealer(self._context, endpoint, lambda data: self._take(peer, unpacker, data), limit=None)
        dealer.send([wire.encode_hello(self._hello)])
        dealer.start()
        self._consumers[peer] = dealer
        return dealer

    # --- As a consumer ---------------------------------------------------------------------------------------------

    def to_producer(self, source: wire.Source, frame: wire.ConsumerToProducer) -> None:
        """A producer connects with its first chunk: what it must hear before that waits here for its hello."""
        peer = (source.replica, source.incarnation)
        producer = self._by_peer.get(peer)
        if producer is not None:
            self._send_back(producer, frame)
        elif not self._is_dead(peer):
            self._early.setdefault(peer, deque(maxlen=EARLY_FRAMES)).append(frame)

    def _send_back(self, producer: _Producer, frame: wire.ConsumerToProducer) -> None:
        replica = producer.peer[0]
        try:
            self._socket.send(producer.identity, self._packer.pack(frame))
        except PeerGoneError as error:
            raise PeerGoneError(f"{replica} has left its connection") from error

    def _producer_sent(self, identity: bytes, data: bytes) -> None:
        producer = self._producers.get(identity)
        if producer is not None:
            self._take(producer.peer, producer.unpacker, data)
            return
        try:
            hello = wire.decode_hello(data)
        except ProtocolError:
            self.bad_frames += 1
            return
        if (hello.version, hello.nonce, hello.role) != (wire.VERSION, self._hello.nonce, "producer"):
            self.bad_frames += 1
            log.warning("refused a producer that says %s, version %s", hello.role, hello.version)
            return
        self._joined(_Producer((hello.replica, hello.incarnation), identity, wire.Unpacker(wire.producer_to_consumer)))

    def _joined(self, producer: _Producer) -> None:
        if self._is_dead(producer.peer):
            self.bad_frames += 1
            log.warning("refused %s#%s, which is known to be dead", *producer.peer)
            return
        self._forget(self._by_peer.get(producer.peer))
        self._producers[producer.identity] = self._by_peer[producer.peer] = producer
        for frame in self._early.pop(producer.peer, ()):
            with suppress(PeerGoneError):  # it has just been here: its death will be heard of
                self._send_back(producer, frame)

    def _is_dead(self, peer: Peer) -> bool:
        replica, incarnation = peer
        return incarnation <= self._dropped.get(replica, -1)

    def _forget(self, producer: _Producer | None) -> None:
        if producer is not None:
            self._by_peer.pop(producer.peer, None)
            self._producers.pop(producer.identity, None)
            self._socket.forget(producer.identity)

    # --- Both ------------------------------------------------------------------------------------------------------

    def _take(
        self,
        peer: Peer,
        unpacker: wire.Unpacker[wire.ProducerToConsumer] | wire.Unpacker[wire.ConsumerToProducer],
        data: bytes,
    ) -> None:
        try:
            frame = unpacker.unpack(data)
        except ProtocolError as error:
            self.bad_frames += 1
            log.warning("dropped a frame from %s#%s: %s", *peer, error)
            return
        if frame is not None:
            self._received(peer, frame)

    def drop(self, peer: Peer) -> None:
        """It is dead: forget both directions."""
        replica, incarnation = peer
        self._dropped[replica] = max(incarnation, self._dropped.get(replica, incarnation))
        dealer = self._consumers.pop(peer, None)
        if dealer is not None:
            dealer.close(linger_ms=0)
        self._early.pop(peer, None)
        self._forget(self._by_peer.get(peer))
