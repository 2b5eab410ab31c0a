"""Worker to worker over real ipc sockets: several planes in one process (W1, W3, F3, R5, B1)."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
import pytest
import zmq

from omnizmq import protocol as wire
from omnizmq import transport
from omnizmq.errors import StageError
from omnizmq.shm.ledger import Ledger, Slot
from omnizmq.shm.memory import SharedMemoryError
from omnizmq.shm.ring import RingError, RingWriter
from omnizmq.transport import PeerGoneError, make_context
from omnizmq.workers import dataplane
from omnizmq.workers.chunks import pack_arrays, unpack_chunk
from omnizmq.workers.dataplane import DataPlane, Peer, SlotData
from omnizmq.workers.engine import Chunk
from omnizmq.workers.mappings import Mapped, Unmapping

NONCE = "secret"
RID = "demo-0123456789abcdef"
Frame = wire.ProducerToConsumer | wire.ConsumerToProducer


@dataclass
class Net:
    """Planes by replica, and what each has received: `(peer, frame)`, and what was found in its slot."""

    root: Path
    context: zmq.Context[zmq.Socket[bytes]] = field(default_factory=make_context)
    got: dict[str, list[tuple[Peer, Frame]]] = field(default_factory=dict)
    data: dict[str, list[SlotData]] = field(default_factory=dict)
    planes: list[DataPlane] = field(default_factory=list)
    raw: list[zmq.Socket[bytes]] = field(default_factory=list)
    lost: list[tuple[str, Peer, str]] = field(default_factory=list)
    mappings: list[Mapped | Unmapping] = field(default_factory=list)

    def endpoint(self, replica: str, incarnation: int = 1) -> str:
        return f"ipc://{self.root}/{replica.replace('/', '-')}-{incarnation}"

    def plane(self, replica: str, incarnation: int = 1, nonce: str = NONCE) -> DataPlane:
        inbox = self.got[replica] = []
        data = self.data[replica] = []

        def received(peer: Peer, frame: Frame, found: SlotData) -> None:
            inbox.append((peer, frame))
            data.append(found)

        made = DataPlane(
            self.context,
            self.endpoint(replica, incarnation),
            replica=replica,
            incarnation=incarnation,
            nonce=nonce,
            received=received,
            lost=lambda peer, why: self.lost.append((replica, peer, why)),
            mapping=self.mappings.append,
        )
        made.start()
        self.planes.append(made)
        return made

    def target(self, replica: str, incarnation: int = 1) -> wire.Target:
        stage = replica.partition("/")[0]
        return wire.Target(stage, replica, incarnation, self.endpoint(replica, incarnation), "chunk", 8, 60.0)

    def raw_producer(self, to: str) -> zmq.Socket[bytes]:
        """Somebody who can say anything on that replica's data socket."""
        socket = self.context.socket(zmq.DEALER)
        socket.connect(self.endpoint(to))
        self.raw.append(socket)
        return socket

    def frames(self, replica: str) -> list[Frame]:
        return [frame for _, frame in self.got[replica]]

    def close(self) -> None:
        for plane in self.planes:
            plane.close()
        self.mappings.clear()  # each keeps its memory
        for socket in self.raw:
            socket.close(0)
        self.context.term()


@pytest.fixture
def root(home: Path, no_leaks: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:  # noqa: ARG001
    monkeypatch.setattr(transport, "SAFETY_TICK_S", 600.0)  # it would hide what was missed
    path = home / "run" / "omnizmq"
    yield path
    for socket in path.iterdir():  # whoever owns the directory does that; libzmq leaves the files
        socket.unlink()


def run(root: Path, play: Callable[[Net], Awaitable[None]]) -> None:
    async def main() -> None:
        net = Net(root)
        errors: list[str] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, what: errors.append(repr(what.get("exception"))))
        try:
            await play(net)
        finally:
            net.close()
        assert errors == []

    asyncio.run(main())


async def until(holds: Callable[[], bool], limit_s: float = 10.0) -> None:
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline, "stalled"
        await asyncio.sleep(0.002)


def source(replica: str, incarnation: int = 1) -> wire.Source:
    return wire.Source(replica.partition("/")[0], replica, incarnation, "chunk")


def chunk(seq: int, incarnation: int = 1, stage: str = "thinker") -> wire.ChunkFrame:
    return wire.ChunkFrame(RID, 1, incarnation, stage, seq, {"n": seq}, [])


def credit(consumed: int) -> wire.EdgeCredit:
    return wire.EdgeCredit(RID, 1, 1, "talker", consumed)


CLOSED = wire.EdgeClosed(RID, 1, 1, "talker")


def hello(**fields: object) -> bytes:
    given = {"version": wire.VERSION, "nonce": NONCE, "role": "producer", "replica": "thinker/0", "incarnation": 1}
    return wire.encode_hello(wire.Hello(**(given | fields)))  # type: ignore[arg-type]


class TestRoundTrip:
    def test_w3_chunks_go_to_the_consumer_and_credits_and_closes_come_back(self, root: Path) -> None:
        async def play(net: Net) -> None:
            thinker, talker = net.plane("thinker/0", 3), net.plane("talker/0", 7)
            sent: list[wire.ProducerToConsumer] = [chunk(1, 3), chunk(2, 3), wire.EdgeEnd(RID, 1, 3, "thinker", 2)]
            for frame in sent:
                thinker.to_consumer(net.target("talker/0", 7), frame)
            await until(lambda: len(net.got["talker/0"]) == 3)
            assert net.got["talker/0"] == [(("thinker/0", 3), frame) for frame in sent]
            talker.to_producer(source("thinker/0", 3), credit(2))
            talker.to_producer(source("thinker/0", 3), CLOSED)
            await until(lambda: len(net.got["thinker/0"]) == 2)
            assert net.got["thinker/0"] == [(("talker/0", 7), credit(2)), (("talker/0", 7), CLOSED)]
            assert thinker.bad_frames == talker.bad_frames == 0

        run(root, play)

    def test_w3_a_chunk_above_the_frame_limit_goes_in_parts_between_small_ones(self, root: Path) -> None:
        async def play(net: Net) -> None:
            thinker = net.plane("thinker/0")
            net.plane("talker/0")
            rows = np.arange(1 << 20, dtype=np.float32)
            big = wire.ChunkFrame(RID, 1, 1, "thinker", 2, {}, pack_arrays(Chunk({}, {"rows": rows})))
            for frame in (chunk(1), big, chunk(3)):
                thinker.to_consumer(net.target("talker/0"), frame)
            await until(lambda: len(net.got["talker/0"]) == 3)
            one, two, three = net.frames("talker/0")
            assert (one, three) == (chunk(1), chunk(3))
            assert isinstance(two, wire.ChunkFrame)
            assert np.array_equal(unpack_chunk(two).arrays["rows"], rows)

        run(root, play)

    def test_a_worker_is_consumer_and_producer_at_once(self, root: Path) -> None:
        async def play(net: Net) -> None:
            thinker, talker, code2wav = net.plane("thinker/0"), net.plane("talker/0"), net.plane("code2wav/0")
            for seq in range(1, 201):
                thinker.to_consumer(net.target("talker/0"), chunk(seq))
                talker.to_consumer(net.target("code2wav/0"), chunk(seq, stage="talker"))
            await until(lambda: len(net.got["talker/0"]) == len(net.got["code2wav/0"]) == 200)
            talker.to_producer(source("thinker/0"), credit(200))
            code2wav.to_producer(source("talker/0"), wire.EdgeCredit(RID, 1, 1, "code2wav", 200))
            await until(lambda: len(net.got["thinker/0"]) == 1 and len(net.got["talker/0"]) == 201)
            assert [frame.seq for frame in net.frames("code2wav/0")] == list(range(1, 201))  # type: ignore[union-attr]

        run(root, play)

    def test_two_producers_of_one_consumer_are_told_apart(self, root: Path) -> None:
        async def play(net: Net) -> None:
            zero, one, talker = net.plane("thinker/0"), net.plane("thinker/1"), net.plane("talker/0")
            zero.to_consumer(net.target("talker/0"), chunk(1))
            one.to_consumer(net.target("talker/0"), chunk(1))
            await until(lambda: len(net.got["talker/0"]) == 2)
            assert {peer for peer, _ in net.got["talker/0"]} == {("thinker/0", 1), ("thinker/1", 1)}
            talker.to_producer(source("thinker/1"), credit(1))
            await until(lambda: len(net.got["thinker/1"]) == 1)
            assert net.got["thinker/0"] == []

        run(root, play)

    def test_one_connection_serves_all_requests_between_two_workers(self, root: Path) -> None:
        async def play(net: Net) -> None:
            thinker, talker = net.plane("thinker/0"), net.plane("talker/0")
            for seq in range(50):
                thinker.to_consumer(net.target("talker/0"), chunk(seq))
            await until(lambda: len(net.got["talker/0"]) == 50)
            assert (len(thinker._consumers), len(talker._producers), len(talker._by_peer)) == (1, 1, 1)

        run(root, play)


class TestHello:
    """W1: nothing is taken from anybody who has not said a good hello."""

    @pytest.mark.parametrize(
        "fields",
        [{"version": wire.VERSION + 1}, {"nonce": "other"}, {"nonce": ""}, {"role": "client"}, {"role": "worker"}],
        ids=repr,
    )
    def test_w1_a_wrong_hello_is_refused_and_what_follows_it_dropped(
        self, root: Path, fields: dict[str, object]
    ) -> None:
        async def play(net: Net) -> None:
            talker = net.plane("talker/0")
            raw = net.raw_producer("talker/0")
            raw.send(hello(**fields))
            raw.send(msgspec.msgpack.encode(chunk(1)))
            await until(lambda: talker.bad_frames == 2)
            assert net.got["talker/0"] == []
            assert not talker._producers

        run(root, play)

    def test_w1_a_plane_of_another_launch_is_refused(self, root: Path) -> None:
        async def play(net: Net) -> None:
            talker = net.plane("talker/0")
            stranger = net.plane("thinker/0", nonce="another launch")
            stranger.to_consumer(net.target("talker/0"), chunk(1))
            await until(lambda: talker.bad_frames == 2)
            net.plane("thinker/1").to_consumer(net.target("talker/0"), chunk(1))
            await until(lambda: len(net.got["talker/0"]) == 1)
            assert net.got["talker/0"][0][0] == ("thinker/1", 1)

        run(root, play)

    def test_w1_frames_before_a_hello_are_dropped_and_counted(self, root: Path) -> None:
        async def play(net: Net) -> None:
            talker = net.plane("talker/0")
            raw = net.raw_producer("talker/0")
            for message in (b"", b"\xc1garbage", msgspec.msgpack.encode(chunk(1))):
                raw.send(message)
            await until(lambda: talker.bad_frames == 3)
            raw.send(hello())
            raw.send(msgspec.msgpack.encode(chunk(2)))
            await until(lambda: net.frames("talker/0") == [chunk(2)])

        run(root, play)

    def test_w1_nobody_takes_the_place_of_a_producer_that_is_connected(self, root: Path) -> None:
        async def play(net: Net) -> None:
            talker = net.plane("talker/0")
            old, new = net.raw_producer("talker/0"), net.raw_producer("talker/0")
            old.send(hello())
            await until(lambda: len(talker._producers) == 1)
            new.send(hello())
            new.send(msgspec.msgpack.encode(chunk(1)))
            await until(lambda: talker.bad_frames == 2)
            old.send(msgspec.msgpack.encode(chunk(2)))
            await until(lambda: len(net.got["talker/0"]) == 1)
            assert net.frames("talker/0") == [chunk(2)]
            assert len(talker._producers) == len(talker._by_peer) == 1
            talker.to_producer(source("thinker/0"), credit(1))
            await asyncio.sleep(0.05)
            assert old.recv(zmq.NOBLOCK) == msgspec.msgpack.encode(wire.SlotsFreed([]))  # to see whether it is there
            assert old.recv(zmq.NOBLOCK) == msgspec.msgpack.encode(credit(1))

        run(root, play)


class TestBadFrames:
    """W1: what does not decode is dropped and counted, and harms no other request."""

    def test_w1_garbage_from_a_producer_is_counted_and_the_next_frame_is_taken(self, root: Path) -> None:
        async def play(net: Net) -> None:
            talker = net.plane("talker/0")
            raw = net.raw_producer("talker/0")
            good = msgspec.msgpack.encode(chunk(1))
            bad = [
                b"",
                good[:-1],
                good + b"\0",
                b"\x91" * 100_000,
                msgspec.msgpack.encode(credit(1)),
                msgspec.msgpack.encode(wire.Part(1, 1, 2, b"out of order")),
                msgspec.msgpack.encode(wire.Part(1, 0, 10**6, b"")),
                hello(),
            ]
            raw.send(hello())
            for message in bad:
                raw.send(message)
            raw.send(good)
            raw.send(good)
            await until(lambda: len(net.got["talker/0"]) == 2)
            assert talker.bad_frames == len(bad)
            assert net.frames("talker/0") == [chunk(1), chunk(1)]

        run(root, play)

    def test_w1_garbage_from_a_consumer_is_counted_by_the_producer(self, root: Path) -> None:
        async def play(net: Net) -> None:
            thinker, talker = net.plane("thinker/0"), net.plane("talker/0")
            thinker.to_consumer(net.target("talker/0"), chunk(1))
            await until(lambda: len(net.got["talker/0"]) == 1)
            (identity,) = talker._producers
            talker._socket.send(identity, [b"\xc1", msgspec.msgpack.encode(chunk(1))])
            talker.to_producer(source("thinker/0"), credit(1))
            await until(lambda: net.frames("thinker/0") == [credit(1)])
            assert thinker.bad_frames == 2

        run(root, play)

    def test_w1_unfinished_parts_of_one_producer_are_no_matter_of_another(self, root: Path) -> None:
        async def play(net: Net) -> None:
            talker = net.plane("talker/0")
            raw = net.raw_producer("talker/0")
            raw.send(hello(replica="thinker/1"))
            for transfer in range(wire.OPEN_TRANSFERS + 5):
                raw.send(msgspec.msgpack.encode(wire.Part(transfer, 0, 2, b"x")))
            await until(lambda: talker.bad_frames == 5)
            big = wire.ChunkFrame(RID, 1, 1, "thinker", 1, {"word": "x" * (1 << 20)}, [])
            net.plane("thinker/0").to_consumer(net.target("talker/0"), big)
            await until(lambda: net.frames("talker/0") == [big])

        run(root, play)


class TestBeforeTheFirstChunk:
    """R5: a consumer may close an edge whose producer has not connected yet, and no credit or close is lost."""

    def test_r5_what_the_producer_must_hear_waits_for_its_hello(self, root: Path) -> None:
        async def play(net: Net) -> None:
            thinker, talker = net.plane("thinker/0"), net.plane("talker/0")
            talker.to_producer(source("thinker/0"), CLOSED)
            await asyncio.sleep(0.02)
            assert net.got["thinker/0"] == []
            thinker.to_consumer(net.target("talker/0"), chunk(1))
            await until(lambda: net.frames("thinker/0") == [CLOSED])
            assert not talker._early

        run(root, play)

    def test_b1_what_waits_is_bounded_and_forgotten_with_the_producer(
        self, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(dataplane, "EARLY_FRAMES", 10)

        async def play(net: Net) -> None:
            talker = net.plane("talker/0")
            for number in range(1000):
                talker.to_producer(source("thinker/0"), credit(number))
            ((_, waiting),) = talker._early.items()
            assert list(waiting) == [credit(number) for number in range(990, 1000)]
            talker.drop(("thinker/0", 1))
            talker.to_producer(source("thinker/0"), credit(1))
            assert not talker._early

        run(root, play)


class TestDeath:
    """F3: an incarnation that is known to be dead is never heard again; the next one is another peer."""

    def test_f3_a_dropped_peer_is_forgotten_in_both_directions(self, root: Path) -> None:
        async def play(net: Net) -> None:
            talker, middle = net.plane("talker/0"), net.plane("thinker/0")
            middle.to_consumer(net.target("talker/0"), chunk(1))
            talker.to_consumer(net.target("thinker/0"), chunk(1, stage="talker"))
            await until(lambda: len(net.got["talker/0"]) == len(net.got["thinker/0"]) == 1)
            talker.drop(("thinker/0", 1))
            assert (talker._consumers, talker._producers, talker._by_peer, talker._early) == ({}, {}, {}, {})
            middle.to_consumer(net.target("talker/0"), chunk(2))
            await until(lambda: talker.bad_frames == 1)
            assert len(net.got["talker/0"]) == 1
            with pytest.raises(PeerGoneError, match="thinker/0 is dead"):
                talker.to_consumer(net.target("thinker/0"), chunk(2))
            talker.to_producer(source("thinker/0"), credit(1))
            talker.drop(("thinker/0", 1))

        run(root, play)

    def test_f3_the_next_incarnation_is_heard_and_the_dead_one_is_not(self, root: Path) -> None:
        async def play(net: Net) -> None:
            talker = net.plane("talker/0")
            old = net.raw_producer("talker/0")
            old.send(hello(incarnation=1))
            old.send(msgspec.msgpack.encode(chunk(1)))
            await until(lambda: len(net.got["talker/0"]) == 1)
            talker.drop(("thinker/0", 1))
            thinker = net.plane("thinker/0", 2)
            thinker.to_consumer(net.target("talker/0"), chunk(1, 2))
            await until(lambda: len(net.got["talker/0"]) == 2)
            assert net.got["talker/0"][-1] == (("thinker/0", 2), chunk(1, 2))
            late = net.raw_producer("talker/0")
            for message in (hello(incarnation=1), msgspec.msgpack.encode(chunk(9)), hello(incarnation=0)):
                late.send(message)
            await until(lambda: talker.bad_frames == 3)
            old.send(msgspec.msgpack.encode(chunk(2)))
            await until(lambda: talker.bad_frames == 4)
            talker.to_producer(source("thinker/0", 2), credit(1))
            await until(lambda: net.frames("thinker/0") == [credit(1)])
            assert list(talker._by_peer) == [("thinker/0", 2)]

        run(root, play)

    def test_f3_a_producer_that_was_restarted_many_times_leaves_nothing(self, root: Path) -> None:
        async def play(net: Net) -> None:
            talker = net.plane("talker/0")
            for incarnation in range(1, 21):
                raw = net.raw_producer("talker/0")
                raw.send(hello(incarnation=incarnation))
                raw.send(msgspec.msgpack.encode(chunk(1, incarnation)))
                await until(lambda incarnation=incarnation: len(net.got["talker/0"]) == incarnation)  # type: ignore[misc]
                raw.close(0)
                talker.drop(("thinker/0", incarnation))
            assert (talker._producers, talker._by_peer, talker._early) == ({}, {}, {})
            assert talker._dropped == {"thinker/0": 20}

        run(root, play)

    def test_f2_a_producer_that_left_its_connection_is_gone(self, root: Path) -> None:
        async def play(net: Net) -> None:
            talker = net.plane("talker/0")
            raw = net.raw_producer("talker/0")
            raw.send(hello())
            await until(lambda: bool(talker._producers))
            raw.close(0)

            def gone() -> bool:
                try:
                    talker.to_producer(source("thinker/0"), credit(1))
                except PeerGoneError as error:
                    assert str(error) == "thinker/0 has left its connection"  # noqa: PT017
                    return True
                return False

            await until(gone)

        run(root, play)

    def test_b1_what_a_paused_consumer_has_not_taken_waits_for_it_alone(
        self, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(transport, "HIGH_WATER_MARK", 4)

        async def play(net: Net) -> None:
            thinker = net.plane("thinker/0")
            paused = net.context.socket(zmq.ROUTER)
            paused.setsockopt(zmq.RCVHWM, 4)
            paused.bind(net.endpoint("talker/1"))
            net.raw.append(paused)
            net.plane("talker/0")
            sent = [chunk(seq) for seq in range(1, 201)]
            for one in sent:
                thinker.to_consumer(net.target("talker/1"), one)
            thinker.to_consumer(net.target("talker/0"), chunk(1))
            await until(lambda: net.frames("talker/0") == [chunk(1)])

            taken: list[bytes] = []
            unpacker = wire.Unpacker(wire.producer_to_consumer)

            def take() -> bool:
                while paused.poll(0):
                    taken.append(paused.recv_multipart()[1])
                return len(taken) == len(sent) + 1  # and the hello

            await until(take)
            assert [unpacker.unpack(data) for data in taken[1:]] == sent

        run(root, play)


# --- Rings ---------------------------------------------------------------------------------------------------------

SIZE = 20_000
RING = 1 << 20


@dataclass
class Ring:
    """A thinker with a ring, of which the talker is a reader."""

    net: Net
    thinker: DataPlane
    talker: DataPlane
    ledger: Ledger

    def write(self, number: int, nbytes: int = SIZE) -> tuple[Slot, wire.Segment | None]:
        slot = self.ledger.reserve(nbytes, ["talker/0"])
        assert slot is not None
        return slot, self.thinker.write(slot, lambda out: out.fill(number))

    def send(self, slot: Slot, spill: wire.Segment | None = None, seq: int = 1) -> None:
        shape = wire.ArrayShape("rows", "|u1", [slot.nbytes])
        place = slot.seq, slot.offset, slot.nbytes, spill
        frame = wire.RingChunk(RID, 1, 1, "thinker", seq, {}, [shape], *place)
        self.thinker.to_consumer(self.net.target("talker/0"), frame)

    async def found(self, count: int) -> list[SlotData]:
        """What the talker has found in so many slots; nothing else keeps it."""
        await until(lambda: len(self.net.data["talker/0"]) == count)
        found = list(self.net.data["talker/0"])
        self.net.data["talker/0"][:] = [None] * count
        return found

    def freed(self) -> list[list[int]]:
        return [frame.slots for frame in self.net.frames("thinker/0") if isinstance(frame, wire.SlotsFreed)]

    async def heard(self) -> None:
        """The producer has heard what was sent to it before."""
        marks = self.net.frames("thinker/0").count(CLOSED)
        self.talker.to_producer(source("thinker/0"), CLOSED)
        await until(lambda: self.net.frames("thinker/0").count(CLOSED) > marks)


async def ringed(net: Net, quota: int = RING) -> Ring:
    thinker, talker = net.plane("thinker/0"), net.plane("talker/0")
    ledger = Ledger(RING)
    ledger.admit("talker/0", quota)
    thinker.ring = RingWriter(RING)
    thinker.meet(net.target("talker/0"), quota)
    await until(lambda: len(net.got["thinker/0"]) == 1)
    assert net.frames("thinker/0") == [wire.RingAnswer(None)]
    return Ring(net, thinker, talker, ledger)


def rings_test(root: Path, play: Callable[[Net, Ring], Awaitable[None]], quota: int = RING) -> None:
    async def whole(net: Net) -> None:
        await play(net, await ringed(net, quota))

    run(root, whole)


class TestRings:
    """W3: large chunks by shared memory; their slots are freed when nothing needs them."""

    def test_w3_a_chunk_is_read_in_place_and_its_slot_freed_with_its_last_view(self, root: Path) -> None:
        async def play(_: Net, ring: Ring) -> None:
            slot, spill = ring.write(7)
            assert spill is None
            ring.send(slot)
            (view,) = await ring.found(1)
            assert isinstance(view, np.ndarray)
            assert (view.shape, view.dtype.str, view.flags.writeable) == ((SIZE,), "|u1", False)
            assert set(view.tolist()) == {7}
            assert ring.thinker.ring is not None
            ring.thinker.ring.memory[slot.offset or 0] = 8  # the very same memory
            assert view[0] == 8
            part = view[5:10]
            del view
            gc.collect()
            await ring.heard()
            assert ring.freed() == []
            del part
            gc.collect()
            await until(lambda: ring.freed() == [[1]])

        rings_test(root, play)

    def test_w3_a_view_may_die_in_any_thread_and_its_producer_hears_of_it(self, root: Path) -> None:
        async def play(_: Net, ring: Ring) -> None:
            asyncio.get_running_loop().set_debug(True)  # what is not thread-safe raises
            ring.send(ring.write(7)[0])
            held = await ring.found(1)
            thread = threading.Thread(target=held.clear)
            thread.start()
            thread.join()
            await until(lambda: ring.freed() == [[1]])

        rings_test(root, play)

    def test_b1_what_ends_together_is_told_in_one_frame_and_every_slot_once(self, root: Path) -> None:
        async def play(_: Net, ring: Ring) -> None:
            for number in range(1, 6):
                ring.send(ring.write(number)[0], seq=number)
            held = await ring.found(5)
            held.clear()
            gc.collect()
            await until(lambda: [sorted(slots) for slots in ring.freed()] == [[1, 2, 3, 4, 5]])
            ring.send(ring.write(6)[0], seq=6)
            (await ring.found(6)).clear()
            await until(lambda: ring.freed()[1:] == [[6]])

        rings_test(root, play)

    def test_b4_beyond_half_the_quota_it_is_copied_and_freed_at_once(self, root: Path) -> None:
        async def play(_: Net, ring: Ring) -> None:
            for number in (1, 2):
                ring.send(ring.write(number)[0], seq=number)
            one, two = await ring.found(2)
            await until(lambda: ring.freed() == [[2]])
            assert isinstance(two, np.ndarray)
            assert set(two.tolist()) == {2}
            del one, two
            await until(lambda: ring.freed() == [[2], [1]])

        rings_test(root, play, quota=2 * (64 + 20_032))

    def test_w3_a_spilled_chunk_has_a_segment_of_its_own_until_it_is_freed(self, root: Path) -> None:
        async def play(_: Net, ring: Ring) -> None:
            before = len(os.listdir("/proc/self/fd"))
            slot, spill = ring.write(7, RING)
            assert slot.offset is None
            assert spill is not None
            assert len(os.listdir("/proc/self/fd")) == before + 1
            ring.send(slot, spill)
            (view,) = await ring.found(1)
            await until(lambda: ring.freed() == [[1]])
            open_now = len(os.listdir("/proc/self/fd"))
            ring.thinker.free(slot)
            assert len(os.listdir("/proc/self/fd")) == open_now - 1
            assert isinstance(view, np.ndarray)
            assert (view.nbytes, set(view.tolist())) == (RING, {7})

        rings_test(root, play)

    def test_r2_a_frame_that_comes_twice_frees_nothing_that_is_in_use(self, root: Path) -> None:
        async def play(_net: Net, ring: Ring) -> None:
            slot, _ = ring.write(7)
            ring.send(slot)
            ring.send(slot)
            first, second = await ring.found(2)
            assert isinstance(second, RingError)
            await ring.heard()
            assert ring.freed() == []
            del first
            await until(lambda: ring.freed() == [[1]])

        rings_test(root, play)

    def test_r2_a_slot_with_another_record_is_an_error_and_no_other_is_harmed(self, root: Path) -> None:
        async def play(_net: Net, ring: Ring) -> None:
            slot, _ = ring.write(7)
            ring.send(Slot(9, slot.offset, slot.nbytes))
            ring.send(Slot(slot.seq, slot.offset, slot.nbytes - 1))
            ring.send(Slot(slot.seq, 2 * RING, slot.nbytes))
            ring.send(slot)
            *wrong, view = await ring.found(4)
            assert all(isinstance(one, RingError) for one in wrong)
            assert isinstance(view, np.ndarray)
            await ring.heard()
            assert ring.freed() == []

        rings_test(root, play)

    def test_f2_a_spilled_segment_that_is_gone_is_told_and_its_slot_released(self, root: Path) -> None:
        async def play(_: Net, ring: Ring) -> None:
            slot, spill = ring.write(7, RING)
            ring.thinker.free(slot)
            ring.send(slot, spill)
            (found,) = await ring.found(1)
            assert isinstance(found, SharedMemoryError)
            assert not isinstance(found, RingError)
            await until(lambda: ring.freed() == [[1]])

        rings_test(root, play)

    @pytest.mark.parametrize("change", [{"inode": 1}, {"pid": 2**22}, {"fd": 10**6}, {"nbytes": 64}], ids=str)
    def test_w3_a_consumer_that_cannot_read_the_ring_says_why(
        self, root: Path, change: dict[str, int], caplog: pytest.LogCaptureFixture
    ) -> None:
        async def play(net: Net) -> None:
            thinker, talker = net.plane("thinker/0"), net.plane("talker/0")
            thinker.ring = RingWriter(RING)
            segment = msgspec.structs.replace(dataplane._on_wire(thinker.ring.segment), **change)
            thinker.to_consumer(net.target("talker/0"), wire.RingOffer(thinker.ring.id, segment, RING))
            await until(lambda: len(net.got["thinker/0"]) == 1)
            (answer,) = net.frames("thinker/0")
            assert isinstance(answer, wire.RingAnswer)
            assert answer.refused is not None
            assert "\n" not in answer.refused
            assert "talker/0#1 cannot read the ring, so chunks for it go inline" in caplog.text
            ring = Ring(net, thinker, talker, Ledger(RING))
            ring.ledger.admit("talker/0", RING)
            ring.send(ring.write(7)[0])
            (found,) = await ring.found(1)
            assert isinstance(found, SharedMemoryError)
            assert "thinker/0 has no ring here" in str(found)
            assert net.got["talker/0"][0][1] is not None

        run(root, play)

    def test_w1_a_second_ring_of_one_producer_is_not_looked_at(self, root: Path) -> None:
        async def play(net: Net) -> None:
            ring = await ringed(net)
            with closing(RingWriter(RING)) as other:
                segment = dataplane._on_wire(other.segment)
                ring.thinker.to_consumer(net.target("talker/0"), wire.RingOffer(other.id, segment, RING))
                await until(lambda: ring.talker.bad_frames == 1)
            ring.send(*ring.write(7))
            (found,) = await ring.found(1)
            assert isinstance(found, np.ndarray)
            del found
            await ring.heard()
            assert ring.freed() == [[1]]

        run(root, play)

    def test_b3_a_slot_that_there_is_no_memory_to_copy_is_free(
        self, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(*_: object) -> None:
            raise MemoryError("391 KiB")

        monkeypatch.setattr("omnizmq.shm.ring.RingReader._copy", full)

        async def play(_: Net, ring: Ring) -> None:
            for number in (1, 2):  # the first is a view, beside which the second has to be copied
                ring.send(*ring.write(number), seq=number)
            view, found = await ring.found(2)
            assert isinstance(view, np.ndarray)
            assert isinstance(found, SharedMemoryError)
            assert str(found) == "no memory: 391 KiB"
            await ring.heard()
            assert ring.freed() == [[2]]

        rings_test(root, play, quota=3 * (SIZE + 128))

    def test_f1_what_fill_raises_passes_on_and_no_memory_is_a_stage_error(self, root: Path) -> None:
        async def play(net: Net) -> None:
            thinker = net.plane("thinker/0")
            thinker.ring = RingWriter(RING)

            def fill(_: object) -> None:
                raise ZeroDivisionError("oh")

            for offset in (64, None):
                with pytest.raises(ZeroDivisionError):
                    thinker.write(Slot(1, offset, 10), fill)
            thinker.ring.close()
            with pytest.raises(StageError, match="no memory for a chunk of 10 bytes: the ring is closed"):
                thinker.write(Slot(1, 64, 10), fill)

        run(root, play)

    def test_w3_a_mapping_is_told_of_and_again_before_it_goes(self, root: Path) -> None:
        async def play(net: Net, ring: Ring) -> None:
            (mapped,) = net.mappings
            assert isinstance(mapped, Mapped)
            assert (mapped.memory.nbytes, mapped.memory.readonly) == (RING, True)
            ring.talker.drop(("thinker/0", 1))
            _, unmapping = net.mappings
            assert isinstance(unmapping, Unmapping)
            assert unmapping.memory is mapped.memory
            slot, _ = ring.write(7)
            assert slot.offset is not None
            assert unmapping.memory[slot.offset] == 7, "it is still there"
            ring.talker.drop(("thinker/0", 1))
            assert len(net.mappings) == 2

        rings_test(root, play)

    def test_f2_views_outlive_their_dropped_producer_and_nobody_hears_of_them(self, root: Path) -> None:
        async def play(_: Net, ring: Ring) -> None:
            ring.send(ring.write(7)[0])
            (view,) = await ring.found(1)
            ring.talker.drop(("thinker/0", 1))
            ring.thinker.drop(("talker/0", 1))
            assert isinstance(view, np.ndarray)
            assert set(view.tolist()) == {7}
            del view
            gc.collect()
            await asyncio.sleep(0)
            assert ring.freed() == []

        rings_test(root, play)

    def test_f2_a_view_of_a_producer_that_has_left_its_connection_dies_in_silence(self, root: Path) -> None:
        async def play(net: Net, ring: Ring) -> None:
            ring.send(ring.write(7)[0])
            held = await ring.found(1)
            net.planes.remove(ring.thinker)
            ring.thinker.close()

            def has_left() -> bool:
                try:
                    ring.talker.to_producer(source("thinker/0"), CLOSED)
                except PeerGoneError:
                    return True
                return False

            await until(has_left)
            called: list[object] = []
            asyncio.get_running_loop().set_exception_handler(lambda _, what: called.append(what))
            held.clear()
            gc.collect()
            for _ in range(3):
                await asyncio.sleep(0)
            assert called == []

        rings_test(root, play)

    def test_f2_a_view_that_dies_after_the_end_of_its_worker_harms_nobody(self, root: Path) -> None:
        kept: list[SlotData] = []

        async def play(_: Net, ring: Ring) -> None:
            ring.send(ring.write(7)[0])
            kept.extend(await ring.found(1))

        rings_test(root, play)
        (view,) = kept
        assert isinstance(view, np.ndarray)
        assert set(view.tolist()) == {7}
        kept.clear()
        del view
        gc.collect()

    def test_w3_rings_of_two_producers_are_told_apart(self, root: Path) -> None:
        async def play(net: Net, ring: Ring) -> None:
            other = net.plane("thinker/1")
            other.ring = RingWriter(RING)
            other.meet(net.target("talker/0"), RING)
            await until(lambda: len(net.got["thinker/1"]) == 1)
            other.write(Slot(1, 64, SIZE), lambda out: out.fill(9))
            slot, _ = ring.write(7)
            assert slot == Slot(1, 64, SIZE)
            ring.send(slot)
            Ring(net, other, ring.talker, ring.ledger).send(slot)
            found = await ring.found(2)
            assert sorted(int(view[0]) for view in found if isinstance(view, np.ndarray)) == [7, 9]
            held = dict(zip([peer for peer, _ in net.got["talker/0"]], found, strict=True))
            found.clear()
            del held[("thinker/1", 1)]
            await until(lambda: wire.SlotsFreed([1]) in net.frames("thinker/1"))
            assert ring.freed() == []

        rings_test(root, play)


class TestABrokenConnection:
    """One end has sent what no peer may, so ZeroMQ has cut the connection, and both live."""

    OVERSIZED = b"x" * (wire.FRAME_BYTES + 1)

    @pytest.mark.parametrize("direction", ["forth", "back"])
    def test_w1_both_ends_hear_of_it_and_what_is_sent_later_arrives(
        self, root: Path, direction: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(dataplane, "DISCONNECTED_S", 0.05)

        async def play(net: Net) -> None:
            thinker, talker = net.plane("thinker/0"), net.plane("talker/0")
            thinker.to_consumer(net.target("talker/0"), chunk(1))
            await until(lambda: net.frames("talker/0") == [chunk(1)])
            if direction == "forth":
                thinker._consumers["talker/0", 1].send([self.OVERSIZED])
            else:
                talker._socket.send(talker._by_peer["thinker/0", 1].identity, [self.OVERSIZED])
            await until(lambda: len(net.lost) == 2)
            assert {(who, peer) for who, peer, _ in net.lost} == {
                ("thinker/0", ("talker/0", 1)),
                ("talker/0", ("thinker/0", 1)),
            }
            thinker.to_consumer(net.target("talker/0"), chunk(2))
            await until(lambda: net.frames("talker/0") == [chunk(1), chunk(2)])
            credit = wire.EdgeCredit(RID, 1, 1, "talker", 2)
            talker.to_producer(source("thinker/0"), credit)
            await until(lambda: credit in net.frames("thinker/0"))

        run(root, play)

    def test_f3_a_peer_that_has_died_is_not_called_lost(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(dataplane, "DISCONNECTED_S", 0.05)

        async def play(net: Net) -> None:
            thinker, talker = net.plane("thinker/0"), net.plane("talker/0")
            thinker.to_consumer(net.target("talker/0"), chunk(1))
            await until(lambda: net.frames("talker/0") == [chunk(1)])
            talker.close()
            thinker.drop(("talker/0", 1))
            await asyncio.sleep(0.2)
            assert net.lost == []

        run(root, play)
