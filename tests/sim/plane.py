"""A worker's data plane: what `omnizmq.workers.dataplane` does with sockets is done with the network's ways.

Its rings are real ones. A producer connects when it first sends to a consumer; what a consumer has to say to one that
has not connected yet waits for it. Of a peer that has been dropped nothing is taken any more (F3).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from omnizmq import protocol as wire
from omnizmq.errors import StageError
from omnizmq.shm.ledger import Slot
from omnizmq.shm.memory import SharedMemoryError
from omnizmq.shm.ring import RingError, RingReader, RingWriter, Segment
from omnizmq.transport import PeerGoneError
from omnizmq.workers.messages import SlotData
from omnizmq.workers.ring import Peer
from sim.network import Network, Way

Received = Callable[[Peer, wire.OnEdge | wire.ConsumerToProducer, SlotData], None]
Saw = Callable[[Peer, Peer, wire.ProducerToConsumer | wire.ConsumerToProducer], None]
"""Producer, consumer, and what one of them sends the other."""


class Link:
    """A producer's connection to a consumer, and what has come of it there."""

    def __init__(self, network: Network, producer: Plane, consumer: Plane) -> None:
        self.producer, self.consumer = producer.peer, consumer.peer
        name = f"{producer.peer[0]}#{producer.peer[1]} {consumer.peer[0]}#{consumer.peer[1]}"
        self.forward = Way(
            network,
            f"{name} >",
            wire.producer_to_consumer,
            partial(consumer.from_producer, self),
            stopped_until=consumer.stopped_until,
        )
        self.back = Way(
            network,
            f"{name} <",
            wire.consumer_to_producer,
            partial(producer.from_consumer, self),
            stopped_until=producer.stopped_until,
        )
        self.reader: RingReader | None = None
        self.gone = False  # the consumer's socket has heard that the producer's is


class Plane:
    """Of one worker incarnation. `planes` are those of all that live. What cannot be sent raises `PeerGoneError`."""

    def __init__(
        self,
        network: Network,
        peer: Peer,
        planes: dict[Peer, Plane],
        ring: RingWriter | None,
        received: Received,
        saw: Saw,
        stopped_until: Callable[[], float],
    ) -> None:
        self.peer = peer
        self.ring = ring
        self.bad_frames = 0
        self.alive = True
        self._network = network
        self._planes = planes
        self._received = received
        self._saw = saw
        self.stopped_until = stopped_until
        self.consumers: dict[Peer, Link] = {}
        self.producers: dict[Peer, Link] = {}
        self._early: dict[Peer, list[wire.ConsumerToProducer]] = defaultdict(list)
        self._dropped: dict[str, int] = {}
        planes[peer] = self

    def die(self, last_words: Callable[[str], float]) -> None:
        """With the process. `last_words`: until when what it has sent on a way may arrive."""
        self.alive = False
        del self._planes[self.peer]
        for link in self.consumers.values():
            link.forward.cut(last_words(link.forward.name))
            link.back.cut(0)
            self._network.schedule.at(last_words(f"{link.forward.name} gone"), self._leave, link)
        for link in self.producers.values():
            link.back.cut(last_words(link.back.name))
            link.forward.cut(0)
        self.close()

    def close(self) -> None:
        for link in self.producers.values():
            self._close_reader(link)
        if self.ring is not None:
            self.ring.close()

    def holds_nothing(self) -> bool:
        """No view is alive, and nothing that was spilled has a segment left."""
        views = any(link.reader is not None and link.reader._live for link in self.producers.values())
        return not (views or (self.ring is not None and self.ring._spills))

    @staticmethod
    def _leave(link: Link) -> None:
        link.gone = True

    # --- As a producer ---------------------------------------------------------------------------------------------

    def meet(self, target: wire.Target, quota: int) -> None:
        assert self.ring is not None
        segment = wire.Segment(*_fields(self.ring.segment))
        self.to_consumer(target, wire.RingOffer(self.ring.id, segment, quota))

    def write(self, slot: Slot, fill: Callable[[NDArray[np.uint8]], None]) -> wire.Segment | None:
        assert self.ring is not None
        try:
            spill = self.ring.write(slot, fill)
        except SharedMemoryError as error:
            raise StageError(f"no memory: {error}") from error
        return None if spill is None else wire.Segment(*_fields(spill))

    def free(self, slot: Slot) -> None:
        if self.ring is not None:
            self.ring.free(slot)

    def to_consumer(self, target: wire.Target, frame: wire.ProducerToConsumer) -> None:
        peer = (target.replica, target.incarnation)
        if self._is_dead(peer):
            raise PeerGoneError(f"{target.replica} is dead")
        self._saw(self.peer, peer, frame)
        link = self.consumers.get(peer)
        if link is None:
            consumer = self._planes.get(peer)
            if consumer is None:
                return  # a socket connects to whoever will be there, and nobody will
            link = self.consumers[peer] = Link(self._network, self, consumer)
        link.forward.put(frame)

    def from_consumer(self, link: Link, frame: wire.ConsumerToProducer) -> None:
        if self.alive and link.consumer in self.consumers:
            self._received(link.consumer, frame, None)

    # --- As a consumer ---------------------------------------------------------------------------------------------

    def to_producer(self, source: wire.Source, frame: wire.ConsumerToProducer) -> None:
        peer = (source.replica, source.incarnation)
        self._saw(peer, self.peer, frame)
        link = self.producers.get(peer)
        if link is not None:
            self._send_back(link, frame)
        elif not self._is_dead(peer):
            self._early[peer].append(frame)

    def _send_back(self, link: Link, frame: wire.ConsumerToProducer) -> None:
        if link.gone:
            raise PeerGoneError(f"{link.producer[0]} has left its connection")
        link.back.put(frame)

    def from_producer(self, link: Link, frame: wire.ProducerToConsumer) -> None:
        if not self.alive:
            return
        if self._is_dead(link.producer):
            self.bad_frames += 1
            return
        if link.producer not in self.producers:
            self.producers[link.producer] = link
            for early in self._early.pop(link.producer, ()):
                self._answer(link, early)
        if isinstance(frame, wire.RingOffer):
            self._offered(link, frame)
        elif isinstance(frame, wire.RingChunk):
            self._received(link.producer, frame, self._read(link, frame))
        else:
            self._received(link.producer, frame, None)

    def _offered(self, link: Link, offer: wire.RingOffer) -> None:
        refused = None
        freed = partial(self._network.schedule.after, 0.0001, self._send_freed, link)
        try:
            link.reader = RingReader(offer.ring, Segment(*_fields(offer.segment)), offer.quota, freed)
        except SharedMemoryError as error:
            refused = str(error)
        self._answer(link, wire.RingAnswer(refused))

    def _read(self, link: Link, frame: wire.RingChunk) -> NDArray[np.uint8] | SharedMemoryError:
        if link.reader is None:
            return RingError(f"{link.producer[0]} has no ring here")
        spill = None if frame.spill is None else Segment(*_fields(frame.spill))
        try:
            return link.reader.take(frame.slot, frame.offset, frame.nbytes, spill)
        except RingError as error:
            return error
        except SharedMemoryError as error:
            self._answer(link, wire.SlotsFreed([frame.slot]))
            return error

    def _send_freed(self, link: Link) -> None:
        slots = [] if link.reader is None or not self.alive else link.reader.take_freed()
        if slots:
            self._answer(link, wire.SlotsFreed(slots))

    def _answer(self, link: Link, frame: wire.ConsumerToProducer) -> None:
        if not link.gone:
            link.back.put(frame)

    # --- Both ------------------------------------------------------------------------------------------------------

    def drop(self, peer: Peer) -> None:
        self._dropped[peer[0]] = max(peer[1], self._dropped.get(peer[0], peer[1]))
        self._early.pop(peer, None)
        link = self.consumers.pop(peer, None)
        if link is not None:
            link.forward.cut(0)
        link = self.producers.pop(peer, None)
        if link is not None:
            self._close_reader(link)

    def _is_dead(self, peer: Peer) -> bool:
        return peer[1] <= self._dropped.get(peer[0], -1)

    @staticmethod
    def _close_reader(link: Link) -> None:
        if link.reader is not None:
            link.reader.close()
            link.reader = None


def _fields(segment: Segment | wire.Segment) -> tuple[int, int, int, int, int]:
    return segment.pid, segment.fd, segment.inode, segment.device, segment.nbytes
