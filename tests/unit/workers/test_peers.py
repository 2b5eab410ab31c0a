"""What carries out the gate's orders towards other workers, over two real planes and a real ring (W3, F1, F2, R3)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.gate_play import RID, STAGE, closed, ended, engine_id, frees_slot, meets, rows, sent, small, target, writes

from omnizmq import protocol as wire
from omnizmq import transport
from omnizmq.errors import StageError
from omnizmq.shm.ledger import Slot
from omnizmq.shm.ring import RingError, RingWriter
from omnizmq.transport import make_context
from omnizmq.workers.chunks import slot_bytes, unpack_chunk, unpack_slot
from omnizmq.workers.dataplane import DataPlane, Peer, SlotData
from omnizmq.workers.engine import Chunk
from omnizmq.workers.messages import (
    DropPeer,
    EngineFailed,
    GateEvent,
    PeerSent,
    PeerUnreachable,
    SlotUnwritten,
    ToConsumer,
    ToProducer,
    WriteSlot,
)
from omnizmq.workers.peers import Peers

SIZE = 80_000
RING = 1 << 20
Frame = wire.ProducerToConsumer | wire.ConsumerToProducer


@dataclass
class Pair:
    """`talker/0` (7), whose orders are carried out, and its consumers `code2wav/0` (5) and `captions/0` (6)."""

    root: Path
    later: list[GateEvent] = field(default_factory=list)
    got: list[tuple[Peer, Frame]] = field(default_factory=list)
    read: dict[str, list[tuple[Frame, SlotData]]] = field(default_factory=lambda: {"code2wav": [], "captions": []})

    def __post_init__(self) -> None:
        self.context = make_context()
        self.plane = self._plane(STAGE, 7, lambda peer, frame, _: self.got.append((peer, frame)))
        self.plane.ring = RingWriter(RING)
        self.code2wav = self._plane("code2wav", 5, lambda _, frame, data: self.read["code2wav"].append((frame, data)))
        self.captions = self._plane("captions", 6, lambda _, frame, data: self.read["captions"].append((frame, data)))
        self.peers = Peers(self.plane, STAGE, f"{STAGE}/0", self.later.append)

    def _plane(self, stage: str, incarnation: int, received: Callable[[Peer, Any, SlotData], None]) -> DataPlane:
        plane = DataPlane(
            self.context,
            f"ipc://{self.root}/{stage}",
            replica=f"{stage}/0",
            incarnation=incarnation,
            nonce="secret",
            received=received,
            lost=lambda peer, why: pytest.fail(f"{peer}: {why}"),
            mapping=lambda change: None,  # noqa: ARG005
        )
        plane.start()
        return plane

    def to(self, stage: str = "code2wav") -> wire.Target:
        one = target(stage, window=8)
        return wire.Target(
            one.stage, one.replica, one.incarnation, f"ipc://{self.root}/{stage}", one.mode, one.window, 60.0
        )

    async def met(self, *stages: str) -> None:
        for stage in stages:
            self.peers.carry_out(meets(self.to(stage), RING))
        await until(lambda: len(self.got) == len(stages))
        assert all(isinstance(frame, wire.RingAnswer) and frame.refused is None for _, frame in self.got)
        self.got.clear()

    async def came(self, stage: str, count: int) -> list[Frame]:
        await until(lambda: len(self.read[stage]) >= count)
        return [frame for frame, _ in self.read[stage]]

    def close(self) -> None:
        for plane in (self.plane, self.code2wav, self.captions):
            plane.close()
        self.context.term()


@pytest.fixture
def root(home: Path, no_leaks: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:  # noqa: ARG001
    monkeypatch.setattr(transport, "SAFETY_TICK_S", 600.0)  # it would hide what was missed
    path = home / "run" / "omnizmq"
    yield path
    for socket in path.iterdir():
        socket.unlink()


def run(root: Path, play: Callable[[Pair], Awaitable[None]]) -> None:
    async def main() -> None:
        pair = Pair(root)
        try:
            await play(pair)
        finally:
            pair.read.clear()
            pair.close()

    asyncio.run(main())


async def until(holds: Callable[[], bool], limit_s: float = 10.0) -> None:
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline, "stalled"
        await asyncio.sleep(0.002)


def failed(text: str) -> wire.EdgeFailed:
    return wire.EdgeFailed(RID, 1, 7, STAGE, wire.ErrorInfo("stage_error", text, STAGE, f"{STAGE}/0", False))


class Broken:
    """An engine's own array that raises instead of copying itself."""

    def __init__(self, error: type[BaseException], text: str) -> None:
        self.dtype, self.shape = np.dtype(np.uint8), (SIZE,)
        self._error, self._text = error, text  # not an exception: its traceback would keep the ring

    def copy_to(self, out: NDArray[Any]) -> None:
        out[: SIZE // 2] = 9
        raise self._error(self._text)


class TestFrames:
    def test_w3_frames_go_where_they_are_ordered(self, root: Path) -> None:
        async def play(pair: Pair) -> None:
            to = pair.to()
            for command in (sent(1, to=to), ended(1, to=to)):
                pair.peers.carry_out(command)
            assert await pair.came("code2wav", 2) == [sent(1).frame, ended(1).frame]
            assert pair.read["captions"] == []
            back = wire.EdgeCredit(RID, 1, 5, "code2wav", 1)
            source = wire.Source(STAGE, f"{STAGE}/0", 7, "chunk")
            Peers(pair.code2wav, "code2wav", "code2wav/0", pair.later.append).carry_out(ToProducer(source, back))
            await until(lambda: pair.got == [(("code2wav/0", 5), back)])
            assert pair.later == []

        run(root, play)

    def test_f2_who_cannot_be_reached_is_told_to_the_gate_later(self, root: Path) -> None:
        async def play(pair: Pair) -> None:
            pair.peers.carry_out(DropPeer("code2wav/0", 5))
            for command in (sent(1, to=pair.to()), meets(pair.to(), RING)):
                pair.peers.carry_out(command)
                assert pair.later == [PeerUnreachable("code2wav/0", 5, "code2wav/0 is dead")]
                pair.later.clear()
            pair.peers.carry_out(closed())  # a producer that has not connected yet hears it when it does
            assert pair.later == []

        run(root, play)

    def test_f1_a_frame_that_is_too_large_fails_its_request(self, root: Path) -> None:
        async def play(pair: Pair) -> None:
            word: dict[str, wire.Value] = {"word": "x" * wire.MESSAGE_BYTES}
            pair.peers.carry_out(ToConsumer(pair.to(), wire.ChunkFrame(RID, 1, 7, STAGE, 1, word, [])))
            (event,) = pair.later
            assert isinstance(event, EngineFailed)
            assert event.engine_id == engine_id()
            assert "larger than a message may be" in event.error.message

        run(root, play)


class TestSlots:
    def test_w3_the_bytes_are_there_before_any_consumer_hears_of_them(self, root: Path) -> None:
        async def play(pair: Pair) -> None:
            await pair.met("code2wav", "captions")
            chunk = rows(SIZE, 7)
            pair.peers.carry_out(writes(chunk, 1, 64, (1, pair.to()), (4, pair.to("captions"))))
            for stage, seq in (("code2wav", 1), ("captions", 4)):
                await pair.came(stage, 1)
                ((frame, data),) = pair.read[stage]
                assert isinstance(frame, wire.RingChunk)
                assert isinstance(data, np.ndarray)
                assert (frame.seq, frame.slot, frame.offset, frame.spill) == (seq, 1, 64, None)
                came = unpack_slot(frame, data)
                assert came.meta == chunk.meta
                assert np.array_equal(came.arrays["rows"], chunk.arrays["rows"])
            assert pair.later == []

        run(root, play)

    def test_w3_a_spilled_slot_tells_each_consumer_where_it_is_and_freeing_it_closes_it(self, root: Path) -> None:
        async def play(pair: Pair) -> None:
            await pair.met("code2wav", "captions")
            chunk = rows(SIZE, 7)
            pair.peers.carry_out(writes(chunk, 1, None, (1, pair.to()), (4, pair.to("captions"))))
            for stage in ("code2wav", "captions"):
                await pair.came(stage, 1)
                ((frame, data),) = pair.read[stage]
                assert isinstance(frame, wire.RingChunk)
                assert frame.spill is not None
                assert isinstance(data, np.ndarray)
                assert np.array_equal(unpack_slot(frame, data).arrays["rows"], chunk.arrays["rows"])
            assert pair.plane.ring is not None
            assert list(pair.plane.ring._spills) == [1]
            pair.peers.carry_out(frees_slot(1, None, SIZE))
            assert pair.plane.ring._spills == {}

        run(root, play)

    @pytest.mark.parametrize("offset", [64, None], ids=["in the ring", "spilled"])
    @pytest.mark.parametrize(
        ("error", "text"),
        [(ZeroDivisionError, "ZeroDivisionError: oh"), (StageError, "oh"), (SystemExit, "SystemExit: oh")],
        ids=["any", "its own", "exit"],
    )
    def test_f1_a_chunk_that_does_not_copy_itself_is_an_error_on_each_edge_and_an_event_later(
        self, root: Path, offset: int | None, error: type[BaseException], text: str
    ) -> None:
        """R3: the consumers get the error in place of the chunk, before whatever was ordered with it."""

        async def play(pair: Pair) -> None:
            await pair.met("code2wav", "captions")
            command = writes(
                Chunk({}, {}, {"t": Broken(error, "oh")}), 1, offset, (1, pair.to()), (4, pair.to("captions"))
            )
            for one in (command, ended(1, to=pair.to()), ended(4, to=pair.to("captions"))):
                pair.peers.carry_out(one)
            assert await pair.came("code2wav", 2) == [failed(text), ended(1).frame]
            assert await pair.came("captions", 2) == [failed(text), ended(4).frame]
            (event,) = pair.later
            assert isinstance(event, SlotUnwritten)
            assert (event.engine_id, event.slot) == (engine_id(), Slot(1, offset, SIZE))
            assert (event.error.message, event.error.stage, event.error.replica) == (text, STAGE, f"{STAGE}/0")
            assert pair.plane.ring is not None
            assert pair.plane.ring._spills == {}

        run(root, play)

    def test_b1_no_memory_for_a_chunk_fails_its_request(self, root: Path) -> None:
        async def play(pair: Pair) -> None:
            await pair.met("code2wav")
            nbytes = 1 << 55
            huge = WriteSlot(
                engine_id(), Slot(1, None, nbytes), small(1), writes(small(1), 1, None, (1, pair.to())).sends
            )
            pair.peers.carry_out(huge)
            (event,) = pair.later
            assert isinstance(event, SlotUnwritten)
            assert event.error.message.startswith(f"no memory for a chunk of {nbytes} bytes: ")
            (frame,) = await pair.came("code2wav", 1)
            assert frame == failed(event.error.message)

        run(root, play)

    def test_f1_half_a_chunk_is_not_published(self, root: Path) -> None:
        async def play(pair: Pair) -> None:
            await pair.met("code2wav")
            bad = Chunk({}, {}, {"t": Broken(ZeroDivisionError, "oh")})
            command = writes(bad, 1, 64, (1, pair.to()))
            pair.peers.carry_out(command)
            ((_, frame),) = command.sends
            pair.peers.carry_out(sent(1, to=pair.to()))
            pair.plane.to_consumer(pair.to(), frame)  # as if somebody had been told of it
            await pair.came("code2wav", 3)
            assert isinstance(pair.read["code2wav"][2][1], RingError)

        run(root, play)

    def test_f2_a_consumer_that_is_gone_does_not_keep_the_others_from_their_slot(self, root: Path) -> None:
        async def play(pair: Pair) -> None:
            await pair.met("code2wav", "captions")
            pair.peers.carry_out(DropPeer("code2wav/0", 5))
            chunk = rows(SIZE, 7)
            pair.peers.carry_out(writes(chunk, 1, 64, (1, pair.to()), (4, pair.to("captions"))))
            unread = PeerSent("code2wav/0", 5, wire.SlotsFreed([1]))
            assert pair.later == [PeerUnreachable("code2wav/0", 5, "code2wav/0 is dead"), unread]
            await pair.came("captions", 1)
            assert isinstance(pair.read["captions"][0][1], np.ndarray)

        run(root, play)

    def test_w3_small_and_large_chunks_of_an_edge_stay_in_order(self, root: Path) -> None:
        async def play(pair: Pair) -> None:
            await pair.met("code2wav")
            to = pair.to()
            for number in range(1, 9, 2):
                pair.peers.carry_out(sent(number, to=to))
                offset = 64 + 81_920 * number
                pair.peers.carry_out(writes(rows(SIZE, number + 1), number, offset, (number + 1, to)))
            await pair.came("code2wav", 8)
            numbers = []
            for frame, data in pair.read["code2wav"]:
                if isinstance(frame, wire.RingChunk):
                    assert isinstance(data, np.ndarray)
                    assert data.nbytes == slot_bytes(rows(SIZE))
                    numbers.append(int(unpack_slot(frame, data).arrays["rows"][0]))
                else:
                    assert isinstance(frame, wire.ChunkFrame)
                    numbers.append(int(unpack_chunk(frame).meta["n"]))  # type: ignore[arg-type]
            assert numbers == list(range(1, 9))

        run(root, play)
