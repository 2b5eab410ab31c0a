"""Worker to worker: one bound data socket a worker, one connection to each consumer it is bound to, and the rings (W3).

Chunks, ends of edges and failures go from producer to consumer; credits come back over the same connection. A large
chunk is copied into the producer's ring, and its frame says where: the consumer reads it there, and says when nothing
needs the slot any more. A consumer that cannot map the ring (it is in another container) says so; to it chunks go
inline, in parts above a frame's limit.

Nothing here has a limit of its own: an edge's window bounds its chunks, and they bound their credits. Everything is
called in the socket thread; only the last view of a slot may die in any other.

A connection that ends while both live (one has sent what no peer may) is made anew, and what was on its way is lost:
each end hears that the other is gone, so that no request waits for it. Later ones go over the new connection, inline:
what the consumer still reads in the ring nobody knows any more (F2, W1).

A peer is one incarnation of a replica. Nothing is taken from it before its hello, nor after it has been dropped, nor
from an older incarnation of a dropped one (F3).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import msgspec
import numpy as np
import zmq
from numpy.typing import NDArray

from omnizmq import protocol as wire
from omnizmq.errors import ProtocolError, StageError
from omnizmq.shm.ledger import Slot
from omnizmq.shm.memory import SharedMemoryError
from omnizmq.shm.ring import RingError, RingReader, RingWriter, Segment
from omnizmq.transport import Dealer, PeerGoneError, Router
from omnizmq.workers.mappings import Mapped, Unmapping
from omnizmq.workers.messages import SlotData
from omnizmq.workers.ring import Peer

log = logging.getLogger(__name__)

EARLY_FRAMES = 4096
"""What a producer that has not connected yet may have to hear. Beyond it the oldest are forgotten: their requests have
ended here before it was bound to this worker."""

DISCONNECTED_S = 1.0
"""How long the router has to say that a peer is dead, after its connection has ended."""

FromPeer = wire.OnEdge | wire.ConsumerToProducer
Received = Callable[[Peer, FromPeer, SlotData], None]


F = TypeVar("F")


@dataclass
class _Producer:
    """A connected producer: its socket identity here, what has come of it, and its ring."""

    peer: Peer
    identity: bytes
    unpacker: wire.Unpacker[wire.ProducerToConsumer]
    reader: RingReader | None = None


class DataPlane:
    """`received` gets what consumers send back, and what producers send that have said a good hello; `lost` a peer
    whose connection has ended and who has not been dropped, and why; `mapping` that a producer's ring is mapped, or is
    about to be given up. What cannot be sent raises `PeerGoneError`."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        endpoint: str,
        *,
        replica: str,
        incarnation: int,
        nonce: str,
        received: Received,
        lost: Callable[[Peer, str], None],
        mapping: Callable[[Mapped | Unmapping], None],
    ) -> None:
        self.bad_frames = 0
        self.ring: RingWriter | None = None
        self._loop = asyncio.get_running_loop()
        self._context = context
        self._hello = wire.Hello(wire.VERSION, nonce, "producer", replica=replica, incarnation=incarnation)
        self._received = received
        self._lost = lost
        self._mapping = mapping
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
        for producer in self._producers.values():
            self._close_reader(producer)
        if self.ring is not None:
            self.ring.close()

    # --- As a producer ---------------------------------------------------------------------------------------------

    def meet(self, target: wire.Target, quota: int) -> None:
        """Connect, and offer the ring. What it answers is `received`."""
        assert self.ring is not None
        self.to_consumer(target, wire.RingOffer(self.ring.id, _on_wire(self.ring.segment), quota))

    def write(self, slot: Slot, fill: Callable[[NDArray[np.uint8]], None]) -> wire.Segment | None:
        """Copy into the slot. Returns where it is, when it has a segment of its own. Raises `StageError` when there is
        no memory for it, and whatever `fill` raises."""
        assert self.ring is not None
        try:
            spill = self.ring.write(slot, fill)
        except SharedMemoryError as error:
            raise StageError(f"no memory for a chunk of {slot.nbytes} bytes: {error}") from error
        return None if spill is None else _on_wire(spill)

    def free(self, slot: Slot) -> None:
        if self.ring is not None:
            self.ring.free(slot)

    def to_consumer(self, target: wire.Target, frame: wire.ProducerToConsumer) -> None:
        peer = (target.replica, target.incarnation)
        if self._is_dead(peer):
            raise PeerGoneError(f"{target.replica} is dead")
        dealer = self._consumers.get(peer) or self._connect(peer, target.endpoint)
        dealer.send(self._packer.pack(frame))

    def _connect(self, peer: Peer, endpoint: str) -> Dealer:
        unpacker = wire.Unpacker(wire.consumer_to_producer)
        dealer = Dealer(
            self._context,
            endpoint,
            lambda data: self._from_consumer(peer, unpacker, data),
            limit=None,
            lost=lambda: self._disconnected(peer, endpoint),
        )
        dealer.send([wire.encode_hello(self._hello)])
        dealer.start()
        self._consumers[peer] = dealer
        return dealer

    def _disconnected(self, peer: Peer, endpoint: str) -> None:
        """Mostly its process has ended, and the router will say so."""
        dealer = self._consumers[peer]
        self._loop.call_later(DISCONNECTED_S, self._reconnect, peer, endpoint, dealer)

    def _reconnect(self, peer: Peer, endpoint: str, dealer: Dealer) -> None:
        """It lives. A new connection with a hello tells it, too, that the old one is gone."""
        if self._consumers.get(peer) is not dealer or dealer.closed:
            return
        log.warning("the connection to %s#%s has ended, and is made anew", *peer)
        dealer.close(linger_ms=0)
        self._connect(peer, endpoint)
        self._lost(peer, "the connection to it has ended")

    def _from_consumer(self, peer: Peer, unpacker: wire.Unpacker[wire.ConsumerToProducer], data: bytes) -> None:
        frame = self._unpack(peer, unpacker, data)
        if isinstance(frame, wire.RingAnswer) and frame.refused is not None:
            log.warning("%s#%s cannot read the ring, so chunks for it go inline: %s", *peer, frame.refused)
        if frame is not None:
            self._received(peer, frame, None)

    # --- As a consumer ---------------------------------------------------------------------------------------------

    def to_producer(self, source: wire.Source, frame: wire.ConsumerToProducer) -> None:
        """A producer connects when it is first bound to this worker: what it must hear before that waits here."""
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
            frame = self._unpack(producer.peer, producer.unpacker, data)
            if frame is not None:
                self._from_producer(producer, frame)
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
        before = self._by_peer.get(producer.peer)
        if before is not None and self._reaches(before):
            self.bad_frames += 1
            log.warning("refused %s#%s, which is connected already", *producer.peer)
            return
        if before is not None:
            self._forget(before)
            self._lost(producer.peer, "the connection from it has ended")
        self._producers[producer.identity] = self._by_peer[producer.peer] = producer
        for frame in self._early.pop(producer.peer, ()):
            with suppress(PeerGoneError):  # it has just been here: its death will be heard of
                self._send_back(producer, frame)

    def _reaches(self, producer: _Producer) -> bool:
        """Whether its connection is still there. What is sent to find out means nothing."""
        try:
            self._socket.send(producer.identity, self._packer.pack(wire.SlotsFreed([])))
        except PeerGoneError:
            return False
        return True

    # --- Rings of producers ----------------------------------------------------------------------------------------

    def _from_producer(self, producer: _Producer, frame: wire.ProducerToConsumer) -> None:
        if isinstance(frame, wire.RingOffer):
            self._offered(producer, frame)
        elif isinstance(frame, wire.RingChunk):
            self._received(producer.peer, frame, self._read(producer, frame))
        else:
            self._received(producer.peer, frame, None)

    def _offered(self, producer: _Producer, offer: wire.RingOffer) -> None:
        """An incarnation has one ring: another one is not looked at."""
        if producer.reader is not None:
            self.bad_frames += 1
            log.warning("%s#%s offered a second ring", *producer.peer)
            return
        refused = None
        freed = partial(self._freed_somewhere, producer)
        try:
            producer.reader = RingReader(offer.ring, _of_wire(offer.segment), offer.quota, freed)
            self._mapping(Mapped(producer.reader.memory))
        except SharedMemoryError as error:
            refused = str(error)
        self._answer(producer, wire.RingAnswer(refused))

    def _read(self, producer: _Producer, frame: wire.RingChunk) -> NDArray[np.uint8] | SharedMemoryError:
        if producer.reader is None:
            return RingError(f"{producer.peer[0]} has no ring here")
        if frame.nbytes > wire.MESSAGE_BYTES:
            return RingError(f"a chunk of {frame.nbytes} bytes is larger than a message may be ({wire.MESSAGE_BYTES})")
        spill = None if frame.spill is None else _of_wire(frame.spill)
        try:
            return producer.reader.take(frame.slot, frame.offset, frame.nbytes, spill)
        except RingError as error:  # not what was announced, so not this reader's to release
            return error
        except (SharedMemoryError, MemoryError) as error:
            self._answer(producer, wire.SlotsFreed([frame.slot]))
            return error if isinstance(error, SharedMemoryError) else SharedMemoryError(f"no memory: {error}")

    def _freed_somewhere(self, producer: _Producer) -> None:
        """In whichever thread drops the last view of a slot."""
        with suppress(RuntimeError):  # the loop has ended, and the producer hears of this worker's end
            self._loop.call_soon_threadsafe(self._send_freed, producer)

    def _send_freed(self, producer: _Producer) -> None:
        slots = [] if producer.reader is None else producer.reader.take_freed()
        if slots:
            self._answer(producer, wire.SlotsFreed(slots))

    def _answer(self, producer: _Producer, frame: wire.RingAnswer | wire.SlotsFreed) -> None:
        with suppress(PeerGoneError):  # its death will be heard of
            self._send_back(producer, frame)

    def _is_dead(self, peer: Peer) -> bool:
        replica, incarnation = peer
        return incarnation <= self._dropped.get(replica, -1)

    def _forget(self, producer: _Producer | None) -> None:
        if producer is not None:
            self._close_reader(producer)
            self._by_peer.pop(producer.peer, None)
            self._producers.pop(producer.identity, None)
            self._socket.forget(producer.identity)

    def _close_reader(self, producer: _Producer) -> None:
        """Views that are alive stay valid."""
        if producer.reader is not None:
            self._mapping(Unmapping(producer.reader.memory))
            producer.reader.close()
            producer.reader = None

    # --- Both ------------------------------------------------------------------------------------------------------

    def _unpack(self, peer: Peer, unpacker: wire.Unpacker[F], data: bytes) -> F | None:
        try:
            return unpacker.unpack(data)
        except ProtocolError as error:
            self.bad_frames += 1
            log.warning("dropped a frame from %s#%s: %s", *peer, error)
            return None

    def drop(self, peer: Peer) -> None:
        """It is dead: forget both directions."""
        replica, incarnation = peer
        self._dropped[replica] = max(incarnation, self._dropped.get(replica, incarnation))
        dealer = self._consumers.pop(peer, None)
        if dealer is not None:
            dealer.close(linger_ms=0)
        self._early.pop(peer, None)
        self._forget(self._by_peer.get(peer))


def _on_wire(segment: Segment) -> wire.Segment:
    return wire.Segment(segment.pid, segment.fd, segment.inode, segment.device, segment.nbytes)


def _of_wire(segment: wire.Segment) -> Segment:
    return Segment(*msgspec.structs.astuple(segment))
