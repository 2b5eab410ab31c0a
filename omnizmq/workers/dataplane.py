"""Worker to worker: one bound data socket a worker, and one connection to each consumer it is bound to.

Chunks, ends of edges and failures go from producer to consumer; credits come back over the same connection. Today every
chunk goes inline, in parts above a frame's limit; descriptors of a ring will travel here as well.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import zmq

from omnizmq import protocol as wire
from omnizmq.errors import ProtocolError
from omnizmq.transport import Dealer, PeerFullError, PeerGoneError, Router

log = logging.getLogger(__name__)

Peer = tuple[str, int]  # replica, incarnation
Received = Callable[[Peer, "wire.ProducerToConsumer | wire.ConsumerToProducer"], None]


@dataclass
class _Producer:
    """A connected producer: its socket identity here, and what has come of it."""

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
        self._socket = Router(context, endpoint, self._producer_sent)
        self._producers: dict[bytes, Peer] = {}
        self._by_peer: dict[Peer, _Producer] = {}
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
        dealer = self._consumers.get(peer) or self._connect(peer, target.endpoint)
        try:
            dealer.send(self._packer.pack(frame))
        except PeerFullError as error:
            raise PeerGoneError(f"{target.replica} does not read its data socket") from error

    def _connect(self, peer: Peer, endpoint: str) -> Dealer:
        unpacker = wire.Unpacker(wire.consumer_to_producer)
        dealer = Dealer(self._context, endpoint, lambda data: self._take(peer, unpacker, data))
        dealer.start()
        dealer.send([wire.encode_hello(self._hello)])
        self._consumers[peer] = dealer
        return dealer

    # --- As a consumer ---------------------------------------------------------------------------------------------

    def to_producer(self, source: wire.Source, frame: wire.ConsumerToProducer) -> None:
        producer = self._by_peer.get((source.replica, source.incarnation))
        if producer is None:
            raise PeerGoneError(f"{source.replica} is not connected")
        try:
            self._socket.send(producer.identity, self._packer.pack(frame))
        except PeerFullError as error:
            raise PeerGoneError(f"{source.replica} does not read its credits") from error

    def _producer_sent(self, identity: bytes, data: bytes) -> None:
        peer = self._producers.get(identity)
        if peer is not None:
            self._take(peer, self._by_peer[peer].unpacker, data)
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
        peer = (hello.replica, hello.incarnation)
        self._producers[identity] = peer
        self._by_peer[peer] = _Producer(identity, wire.Unpacker(wire.producer_to_consumer))

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
        dealer = self._consumers.pop(peer, None)
        if dealer is not None:
            dealer.close(linger_ms=0)
        producer = self._by_peer.pop(peer, None)
        if producer is not None:
            self._producers.pop(producer.identity, None)
            self._socket.forget(producer.identity)
