"""The gate and rings, by transcripts: who is offered one, what goes by it, who waits, what is freed (B1, B4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray
from support.gate_play import (
    NOW,
    RID,
    STAGE,
    THINKER,
    GatePlay,
    aborted,
    answers,
    asks_abort,
    by,
    chunk,
    closed,
    closes,
    counted,
    credit,
    edge_end,
    ended,
    engine_failed,
    engine_id,
    engine_request,
    fact,
    failed_on_edge,
    fed,
    finished,
    forget,
    frees,
    frees_slot,
    gives_credit,
    hold,
    input_ended,
    lost,
    made,
    meets,
    problem,
    ring_chunk,
    rows,
    run,
    sent,
    sent_inline,
    small,
    source,
    submit,
    target,
    unreachable,
    unwritten,
    writes,
)

from omnizmq import protocol as wire
from omnizmq.errors import StageError
from omnizmq.shm.ledger import Slot
from omnizmq.shm.memory import SegmentGoneError, SharedMemoryError
from omnizmq.shm.ring import RingError
from omnizmq.workers.chunks import INLINE_BYTES, copied, fill_slot, slot_bytes
from omnizmq.workers.engine import Chunk
from omnizmq.workers.messages import (
    AddToEngine,
    DropPeer,
    FeedEngine,
    GateCommand,
    RouterSent,
    ToConsumer,
    ToRouter,
    WriteSlot,
)
from omnizmq.workers.ring import Share

SIZE = 80_000
RECORD = 64 + 80_000  # with its header
QUOTA = 2 * RECORD
SHARES = {stage: Share(QUOTA, QUOTA) for stage in ("code2wav", "captions")}
CODE, CAPTIONS = target(window=8), target("captions", window=8)
OTHER, THIRD = "other-0123456789abcdef", "third-0123456789abcdef"
FIRST, SECOND = 64, 64 + RECORD  # where the ring's first slots are


def offered(*targets: wire.Target, shares: dict[str, Share] | None = None) -> GatePlay:
    """One request with a prompt, whose consumers were offered the ring and have not answered."""
    play = GatePlay(shares=SHARES if shares is None else shares)
    frame = submit(targets=targets, prompt="hello")
    play >> RouterSent(frame)
    for to in targets:
        play << meets(to, QUOTA)
    assert play << fact("registered", frame) << AddToEngine(engine_request(frame)) << fact("input_ready") << run()
    return play


def ringed(*targets: wire.Target, others: Sequence[str] = ()) -> GatePlay:
    """The request `demo` and `others`, all with these consumers, who read the ring."""
    play = offered(*targets)
    for to in targets:
        assert play >> answers(to.stage)
    for rid in others:
        join(play, rid, *targets)
    return play


def join(play: GatePlay, rid: str, *targets: wire.Target) -> None:
    frame = submit(targets=targets, prompt="hello", rid=rid)
    play.registers(frame)
    assert play << fact("input_ready", frame) << run(rid)


def begins(play: GatePlay, rid: str = RID, to: wire.Target = CODE) -> None:
    """Its first output is behind it: a small chunk, which goes inline."""
    play >> made(to={to.stage: [small(1)]}, rid=rid) << fact("first_output", submit(rid=rid))
    frame = wire.ChunkFrame(rid, 1, 7, STAGE, 1, {"n": 1}, [])
    assert play << ToConsumer(to, frame)


def full(play: GatePlay, rid: str = RID, to: wire.Target = CODE) -> list[Chunk]:
    """The request fills that reader's quota: slots 1 and 2. Its edge stands at chunk 3."""
    begins(play, rid, to)
    chunks = [rows(SIZE, 2), rows(SIZE, 3)]
    play >> made(to={to.stage: chunks}, rid=rid)
    assert play << writes(chunks[0], 1, FIRST, (2, to), rid=rid) << writes(chunks[1], 2, SECOND, (3, to), rid=rid)
    return chunks


def used(play: GatePlay) -> dict[str, int]:
    return {use.target: use.used for use in play.gate.rings()}


def is_idle(play: GatePlay) -> bool:
    """B3: nothing is reserved, and nobody waits."""
    ring = play.gate._ring
    return not (any(used(play).values()) or ring._ledger.used or ring._ledger.spilled or any(ring._lines.values()))


class TestMeeting:
    def test_w3_a_consumer_is_met_at_its_first_submission_only(self) -> None:
        play = offered(CODE)
        join(play, OTHER, CODE)
        assert play >> answers()
        join(play, THIRD, CODE)

    def test_f3_another_incarnation_is_another_reader(self) -> None:
        play = offered(CODE)
        again = msgspec.structs.replace(CODE, incarnation=6)
        frame = submit(targets=[again], prompt="hello", rid=OTHER)
        play >> RouterSent(frame) << meets(again, QUOTA)
        assert (
            play
            << fact("registered", frame)
            << AddToEngine(engine_request(frame))
            << fact("input_ready", frame)
            << run(OTHER)
        )

    def test_w3_two_consumers_are_both_met(self) -> None:
        offered(CODE, CAPTIONS)

    def test_p5_the_consumer_of_a_relay_edge_is_not_met(self) -> None:
        play = GatePlay(shares=SHARES)
        play.registers(submit(targets=[target(mode="relay")], prompt="hello"))
        assert play << fact("input_ready") << run()

    def test_a_worker_without_a_ring_meets_nobody(self) -> None:
        play = GatePlay()
        play.registers(submit(targets=[CODE], prompt="hello"))
        assert play << fact("input_ready") << run()

    def test_w3_a_payload_edge_has_a_ring_too(self) -> None:
        offered(target(mode="payload", window=8))

    def test_f3_a_consumer_that_was_reaped_is_met_again_and_never_admitted_by_its_late_answer(self) -> None:
        play = offered(CODE)
        assert play >> lost("code2wav") << DropPeer("code2wav/0", 5)
        assert play >> answers()
        big = rows(SIZE)
        frame = submit(targets=[CODE], prompt="hello", rid=OTHER)
        play >> RouterSent(frame) << meets(CODE, QUOTA) << fact("registered", frame)
        assert play << AddToEngine(engine_request(frame)) << fact("input_ready", frame) << run(OTHER)
        play >> made(to={"code2wav": [big]}, rid=OTHER) << fact("first_output", frame)
        assert play << sent_inline(1, big, CODE, OTHER)


class TestInline:
    def test_w3_a_large_chunk_goes_inline_until_the_consumer_has_answered(self) -> None:
        play = offered(CODE)
        chunks = [rows(SIZE, 1), rows(SIZE, 2)]
        assert play >> made(to={"code2wav": chunks[:1]}) << fact("first_output") << sent_inline(1, chunks[0], CODE)
        assert play >> answers()
        assert play >> made(to={"code2wav": chunks[1:]}) << writes(chunks[1], 1, FIRST, (2, CODE))

    def test_w3_a_large_chunk_goes_inline_to_a_consumer_that_cannot_read_the_ring(self) -> None:
        play = offered(CODE)
        big = rows(SIZE)
        assert play >> answers(refused="not on this machine")
        assert play >> made(to={"code2wav": [big]}) << fact("first_output") << sent_inline(1, big, CODE)
        assert is_idle(play)

    @pytest.mark.parametrize("nbytes", [0, 1, INLINE_BYTES - 1, INLINE_BYTES])
    def test_w3_what_is_small_goes_inline(self, nbytes: int) -> None:
        play = ringed(CODE)
        one = rows(nbytes)
        assert play >> made(to={"code2wav": [one]}) << fact("first_output") << sent_inline(1, one, CODE)

    def test_w3_one_byte_more_goes_by_the_ring(self) -> None:
        play = ringed(CODE)
        one = rows(INLINE_BYTES + 1)
        assert play >> made(to={"code2wav": [one]}) << fact("first_output") << writes(one, 1, FIRST, (1, CODE))

    def test_w3_the_arrays_of_a_chunk_count_together_and_its_scalars_do_not(self) -> None:
        play = ringed(CODE)
        half = np.zeros(INLINE_BYTES // 2 + 64, np.uint8)
        one, two = Chunk({"n": 1}, {"a": half, "b": half}), Chunk({"word": "x" * 160_000})
        assert play >> made(to={"code2wav": [one]}) << fact("first_output") << writes(one, 1, FIRST, (1, CODE))
        assert play >> made(to={"code2wav": [two]}) << sent_inline(2, two, CODE)

    def test_w3_a_chunk_larger_than_half_a_quota_gets_a_segment_of_its_own(self) -> None:
        play = ringed(CODE)
        one = rows(RECORD)
        assert play >> made(to={"code2wav": [one]}) << fact("first_output") << writes(one, 1, None, (1, CODE))
        assert play.gate.rings()[0] == wire.RingUse("code2wav", QUOTA, 0, RECORD + 64)
        assert play >> frees(1) << frees_slot(1, None, RECORD)
        assert is_idle(play)


class TestFanOut:
    def test_w3_one_slot_for_two_consumers_that_can_both_take_it(self) -> None:
        play = ringed(CODE, CAPTIONS)
        one = rows(SIZE)
        play >> made(to={"code2wav": [one], "captions": [one]})
        assert play << fact("first_output") << writes(one, 1, FIRST, (1, CODE), (1, CAPTIONS))
        assert used(play) == {"code2wav": RECORD, "captions": RECORD}
        assert play >> frees(1)
        assert used(play) == {"code2wav": 0, "captions": RECORD}
        assert play >> frees(1, stage="captions") << frees_slot(1, FIRST, SIZE)
        assert is_idle(play)

    def test_w3_each_consumer_gets_its_own_edges_number(self) -> None:
        play = ringed(CODE, CAPTIONS)
        begins(play, to=CAPTIONS)
        one = rows(SIZE)
        assert (
            play >> made(to={"code2wav": [one], "captions": [one]}) << writes(one, 1, FIRST, (1, CODE), (2, CAPTIONS))
        )

    def test_w3_a_chunk_with_numpys_scalars_is_still_one_for_both(self) -> None:
        play = ringed(CODE, CAPTIONS)
        one = Chunk({"n": np.int64(1)}, {"rows": np.zeros(SIZE, np.uint8)})  # type: ignore[dict-item]
        commands = play.gate.handle(made(to={"code2wav": [one], "captions": [one]}), NOW)
        (written,) = [command for command in commands if isinstance(command, WriteSlot)]
        assert [(to, type(frame.meta["n"]), frame.seq) for to, frame in written.sends] == [
            (CODE, int, 1),
            (CAPTIONS, int, 1),
        ]

    def test_r2_chunks_that_are_made_one_by_one_are_told_apart(self) -> None:
        """Each is gone before the next one is made: none has another's place."""
        play = ringed(CODE)
        numbers = [np.int64(1), 2, 3, np.int64(4), 5]
        chunks = (Chunk({"n": number}) for number in numbers)  # type: ignore[dict-item]
        play >> made(to={"code2wav": chunks}) << fact("first_output")  # type: ignore[dict-item]
        for number in range(1, 6):
            play << sent(number, to=CODE)
        assert play

    def test_w3_the_same_chunk_twice_on_an_edge_goes_twice(self) -> None:
        play = ringed(CODE, CAPTIONS)
        one = rows(SIZE)
        play >> made(to={"code2wav": [one, one], "captions": [one, one]}) << fact("first_output")
        play << writes(one, 1, FIRST, (1, CODE), (1, CAPTIONS))
        assert play << writes(one, 2, SECOND, (2, CODE), (2, CAPTIONS))

    def test_w3_equal_chunks_that_are_not_the_same_have_a_slot_each(self) -> None:
        play = ringed(CODE, CAPTIONS)
        one, two = rows(SIZE), rows(SIZE)
        play >> made(to={"code2wav": [one], "captions": [two]}) << fact("first_output")
        assert play << writes(one, 1, FIRST, (1, CODE)) << writes(two, 2, SECOND, (1, CAPTIONS))

    def test_b1_one_that_has_no_credit_gets_a_slot_of_its_own_when_it_has(self) -> None:
        captions = target("captions", window=1)
        play = ringed(CODE, captions)
        play >> made(to={"captions": [small(1)]}) << fact("first_output")
        assert play << sent(1, to=captions) << hold()
        one = rows(SIZE)
        assert play >> made(to={"code2wav": [one], "captions": [one]}) << writes(one, 1, FIRST, (1, CODE))
        assert play >> gives_credit(1, "captions") << writes(one, 2, SECOND, (2, captions))

    @pytest.mark.parametrize("targets", [(CODE, CAPTIONS), (CAPTIONS, CODE)], ids=["full first", "full last"])
    def test_b1_one_that_has_no_room_gets_a_slot_of_its_own_when_it_has(self, targets: Sequence[wire.Target]) -> None:
        play = ringed(*targets)
        full(play)
        one = rows(SIZE, 4)
        play >> made(to={"code2wav": [one], "captions": [one]})
        assert play << writes(one, 3, SECOND + RECORD, (1, CAPTIONS)) << hold()
        assert play >> frees(1) << frees_slot(1, FIRST, SIZE) << writes(one, 4, FIRST, (4, CODE)) << run()

    def test_w3_one_that_cannot_read_the_ring_gets_it_inline(self) -> None:
        play = offered(CODE, CAPTIONS)
        assert play >> answers("captions")
        one = rows(SIZE)
        play >> made(to={"code2wav": [one], "captions": [one]}) << fact("first_output")
        assert play << sent_inline(1, one, CODE) << writes(one, 1, FIRST, (1, CAPTIONS))

    def test_p5_a_relay_edge_with_the_same_chunk_waits_for_the_end(self) -> None:
        relay = target("captions", mode="relay")
        play = GatePlay(shares=SHARES)
        frame = submit(targets=[CODE, relay], prompt="hello")
        play >> RouterSent(frame) << meets(CODE, QUOTA) << fact("registered") << AddToEngine(engine_request(frame))
        assert play << fact("input_ready") << run() >> answers() >> answers("captions")
        one = rows(SIZE)
        play >> made(to={"code2wav": [one], "captions": [one]}) << fact("first_output")
        assert play << writes(one, 1, FIRST, (1, CODE))

    def test_r5_one_that_has_closed_gets_nothing(self) -> None:
        play = ringed(CODE, CAPTIONS)
        assert play >> closes("captions")
        one = rows(SIZE)
        play >> made(to={"code2wav": [one], "captions": [one]}) << fact("first_output")
        assert play << writes(one, 1, FIRST, (1, CODE))

    def test_w3_a_chunk_that_had_numpys_scalars_is_still_one_for_both(self) -> None:
        play = ringed(CODE, CAPTIONS)
        one = Chunk({"n": np.int64(1)}, {"rows": np.zeros(SIZE, np.uint8)})  # type: ignore[dict-item]
        commands = play.gate.handle(made(to={"code2wav": [one], "captions": [one]}), NOW)
        (written,) = [command for command in commands if isinstance(command, WriteSlot)]
        assert [target.stage for target, _ in written.sends] == ["code2wav", "captions"]
        assert written.chunk.meta == {"n": 1}


class TestFullRing:
    """B1: a full ring parks this request only."""

    def test_b1_it_parks_the_request_and_room_lets_it_go_on(self) -> None:
        play = ringed(CODE)
        full(play)
        one = rows(SIZE, 4)
        assert play >> made(to={"code2wav": [one]}) << hold()
        assert play.state() == "PARKED"
        assert play >> frees(2) << frees_slot(2, SECOND, SIZE) << writes(one, 3, SECOND, (4, CODE)) << run()
        assert play.state() == "RUNNING"

    def test_b1_a_request_to_another_reader_goes_on(self) -> None:
        play = ringed(CODE, CAPTIONS)
        join(play, OTHER, CAPTIONS)
        full(play)
        assert play >> made(to={"code2wav": [rows(SIZE, 4)]}) << hold()
        one = rows(SIZE, 9)
        play >> made(to={"captions": [one]}, rid=OTHER) << fact("first_output", submit(rid=OTHER))
        assert play << writes(one, 3, SECOND + RECORD, (1, CAPTIONS), rid=OTHER)

    def test_b1_small_chunks_of_another_request_go_on(self) -> None:
        play = ringed(CODE, others=[OTHER])
        full(play)
        assert play >> made(to={"code2wav": [rows(SIZE, 4)]}) << hold()
        begins(play, OTHER)

    def test_r2_a_small_chunk_does_not_pass_a_large_one_of_its_own_edge(self) -> None:
        play = ringed(CODE)
        full(play)
        one = rows(SIZE, 4)
        assert play >> made(to={"code2wav": [one, small(5)]}) << hold()
        play >> frees(1) << frees_slot(1, FIRST, SIZE) << writes(one, 3, FIRST, (4, CODE))
        assert play << sent(5, to=CODE) << run()

    def test_b1_the_other_edge_of_a_parked_request_gets_what_there_is(self) -> None:
        play = ringed(CODE, CAPTIONS)
        full(play)
        one, two = rows(SIZE, 4), rows(SIZE, 5)
        play >> made(to={"code2wav": [one], "captions": [two]})
        assert play << writes(two, 3, SECOND + RECORD, (1, CAPTIONS)) << hold()

    def test_b1_credit_alone_does_not_let_it_go_on(self) -> None:
        play = ringed(CODE)
        full(play)
        assert play >> made(to={"code2wav": [rows(SIZE, 4)]}) << hold()
        assert play >> gives_credit(3)

    def test_b1_a_reader_that_holds_nothing_takes_a_chunk_of_any_size(self) -> None:
        play = ringed(CODE)
        one = rows(10 * QUOTA)
        assert play >> made(to={"code2wav": [one]}) << fact("first_output") << writes(one, 1, None, (1, CODE))
        assert play >> made(to={"code2wav": [rows(SIZE, 2)]}) << hold()

    def test_b4_a_chunk_over_half_the_quota_needs_no_room_but_only_one_such_is_under_way(self) -> None:
        """It is never held as a view: a reader that keeps all the views it may would wait for ever."""
        play = ringed(CODE)
        full(play)
        large, again = rows(QUOTA, 4), rows(RECORD, 5)
        assert play >> made(to={"code2wav": [large]}) << writes(large, 3, None, (4, CODE))
        assert play >> made(to={"code2wav": [again]}) << hold()
        assert play >> frees(1, 2) << frees_slot(1, FIRST, SIZE) << frees_slot(2, SECOND, SIZE)
        play >> frees(3) << frees_slot(3, None, QUOTA) << writes(again, 4, None, (5, CODE))
        assert play << run()

    def test_r2_the_end_of_the_edge_comes_only_after_the_last_chunk_is_out(self) -> None:
        play = ringed(CODE)
        full(play)
        one = rows(SIZE, 4)
        assert play >> made(to={"code2wav": [one]}, finish_reason="stop") << hold()
        assert play.state() == "SENDING"
        play >> frees(1) << frees_slot(1, FIRST, SIZE) << writes(one, 3, FIRST, (4, CODE)) << ended(4, CODE)
        assert play << finished(edges=[counted(chunks=4, size=3 * SIZE)])

    def test_r2_of_two_edges_each_ends_after_its_own_last_chunk(self) -> None:
        play = ringed(CODE, CAPTIONS)
        full(play)
        one = rows(SIZE, 4)
        play >> made(to={"code2wav": [one], "captions": [one]}, finish_reason="stop")
        assert play << writes(one, 3, SECOND + RECORD, (1, CAPTIONS)) << ended(1, CAPTIONS) << hold()
        play >> frees(1) << frees_slot(1, FIRST, SIZE) << writes(one, 4, FIRST, (4, CODE)) << ended(4, CODE)
        counts = [counted(chunks=4, size=3 * SIZE), counted("captions", chunks=1, size=SIZE)]
        assert play << finished(edges=counts)

    def test_r2_both_edges_of_a_shared_last_chunk_end_after_it(self) -> None:
        play = ringed(CODE, CAPTIONS)
        one = rows(SIZE)
        play >> made(to={"code2wav": [one], "captions": [one]}, finish_reason="stop") << fact("first_output")
        play << writes(one, 1, FIRST, (1, CODE), (1, CAPTIONS)) << ended(1, CODE) << ended(1, CAPTIONS)
        assert play << finished(edges=[counted(chunks=1, size=SIZE), counted("captions", chunks=1, size=SIZE)])


def waiting(*rids: str) -> tuple[GatePlay, dict[str, Chunk]]:
    """`demo` has filled the quota of code2wav; then these have each a large chunk for it, in this order."""
    play = ringed(CODE, others=[rid for rid in rids if rid != RID])
    full(play)
    chunks = {}
    for number, rid in enumerate(rids, 10):
        if rid != RID:
            begins(play, rid)
        chunks[rid] = rows(SIZE, number)
        assert play >> made(to={"code2wav": [chunks[rid]]}, rid=rid) << hold(rid)
    return play, chunks


def crowded() -> tuple[GatePlay, Chunk, Chunk]:
    """Of a quota of five, `demo` has four. `other`, first in line, has a chunk of nearly two; then `demo` of one."""
    quota = 5 * RECORD
    play = GatePlay(shares=dict.fromkeys(SHARES, Share(quota, quota)))
    for rid, targets, met in ((RID, [CODE], [CODE]), (OTHER, [CODE, CAPTIONS], [CAPTIONS])):
        frame = submit(targets=targets, prompt="hello", rid=rid)
        play >> RouterSent(frame)
        for to in met:
            play << meets(to, quota)
        play << fact("registered", frame) << AddToEngine(engine_request(frame))
        assert play << fact("input_ready", frame) << run(rid)
    assert play >> answers()
    full(play)
    more = [rows(SIZE, 4), rows(SIZE, 5)]
    play >> made(to={"code2wav": more})
    for number, one in enumerate(more):
        play << writes(one, 3 + number, FIRST + (2 + number) * RECORD, (4 + number, CODE))
    assert play
    begins(play, OTHER)
    large, fitting = rows(2 * SIZE, 10), rows(SIZE, 11)
    assert play >> made(to={"code2wav": [large]}, rid=OTHER) << hold(OTHER)
    assert play >> made(to={"code2wav": [fitting]}) << hold()
    return play, large, fitting


class TestLine:
    """B1: first come, first served, for each reader."""

    def test_b1_they_go_on_in_the_order_in_which_they_came(self) -> None:
        play, chunks = waiting(THIRD, RID, OTHER)
        play >> frees(1) << frees_slot(1, FIRST, SIZE)
        assert play << writes(chunks[THIRD], 3, FIRST, (2, CODE), rid=THIRD) << run(THIRD)
        play >> frees(2) << frees_slot(2, SECOND, SIZE)
        assert play << writes(chunks[RID], 4, SECOND, (4, CODE)) << run()
        play >> frees(3) << frees_slot(3, FIRST, SIZE)
        assert play << writes(chunks[OTHER], 5, FIRST, (2, CODE), rid=OTHER) << run(OTHER)

    def test_b1_slots_that_are_freed_together_let_as_many_go_on(self) -> None:
        play, chunks = waiting(THIRD, RID, OTHER)
        play >> frees(1, 2) << frees_slot(1, FIRST, SIZE) << frees_slot(2, SECOND, SIZE)
        play << writes(chunks[THIRD], 3, FIRST, (2, CODE), rid=THIRD) << writes(chunks[RID], 4, SECOND, (4, CODE))
        assert play << run(THIRD) << run()

    def test_b1_a_large_chunk_is_not_overtaken_by_one_that_would_fit(self) -> None:
        play, large, fitting = crowded()
        play >> frees(1) << frees_slot(1, FIRST, SIZE)
        play << writes(large, 5, FIRST + 4 * RECORD, (2, CODE), rid=OTHER) << run(OTHER)
        assert play
        play >> frees(2) << frees_slot(2, SECOND, SIZE) << writes(fitting, 6, FIRST, (6, CODE))
        assert play << run()

    def test_b1_whoever_went_on_stands_at_the_end_again(self) -> None:
        play, chunks = waiting(RID, OTHER)
        play >> frees(1) << frees_slot(1, FIRST, SIZE)
        assert play << writes(chunks[RID], 3, FIRST, (4, CODE)) << run()
        again = rows(SIZE, 20)
        assert play >> made(to={"code2wav": [again]}) << hold()
        play >> frees(2) << frees_slot(2, SECOND, SIZE)
        assert play << writes(chunks[OTHER], 4, SECOND, (2, CODE), rid=OTHER) << run(OTHER)
        play >> frees(3) << frees_slot(3, FIRST, SIZE) << writes(again, 5, FIRST, (5, CODE))
        assert play << run()

    def test_b1_a_request_with_more_than_one_chunk_lets_the_next_one_in_between(self) -> None:
        play, chunks = waiting(RID, OTHER)
        more = rows(SIZE, 20)
        assert play >> made(to={"code2wav": [more]})  # of the step that was under way
        play >> frees(1, 2) << frees_slot(1, FIRST, SIZE) << frees_slot(2, SECOND, SIZE)
        play << writes(chunks[RID], 3, FIRST, (4, CODE))
        assert play << writes(chunks[OTHER], 4, SECOND, (2, CODE), rid=OTHER) << run(OTHER)
        assert play >> frees(3) << frees_slot(3, FIRST, SIZE) << writes(more, 5, FIRST, (5, CODE)) << run()

    def test_b1_the_lines_of_two_readers_are_two(self) -> None:
        play = ringed(CODE, CAPTIONS)
        join(play, OTHER, CAPTIONS, CODE)
        full(play)
        theirs = [rows(SIZE, 30), rows(SIZE, 31)]
        play >> made(to={"captions": theirs}, rid=OTHER) << fact("first_output", submit(rid=OTHER))
        play << writes(theirs[0], 3, SECOND + RECORD, (1, CAPTIONS), rid=OTHER)
        assert play << writes(theirs[1], 4, SECOND + 2 * RECORD, (2, CAPTIONS), rid=OTHER)
        one, two = rows(SIZE, 4), rows(SIZE, 5)
        assert play >> made(to={"code2wav": [one]}) << hold()
        assert play >> made(to={"captions": [two]}, rid=OTHER) << hold(OTHER)
        play >> frees(4, stage="captions") << frees_slot(4, SECOND + 2 * RECORD, SIZE)
        assert play << writes(two, 5, SECOND + 2 * RECORD, (3, CAPTIONS), rid=OTHER) << run(OTHER)

    def test_b1_an_edge_that_was_closed_leaves_the_line(self) -> None:
        play, chunks = waiting(OTHER, THIRD)
        assert (
            play
            >> frees(1)
            << frees_slot(1, FIRST, SIZE)
            << writes(chunks[OTHER], 3, FIRST, (2, CODE), rid=OTHER)
            << run(OTHER)
        )
        again = rows(SIZE, 20)
        assert play >> made(to={"code2wav": [again]}, rid=OTHER) << hold(OTHER)
        assert play >> closes(rid=THIRD) << run(THIRD)
        assert (
            play
            >> frees(2)
            << frees_slot(2, SECOND, SIZE)
            << writes(again, 4, SECOND, (3, CODE), rid=OTHER)
            << run(OTHER)
        )

    def test_b1_an_edge_closed_at_the_head_lets_the_next_one_go_if_it_fits(self) -> None:
        play, _, fitting = crowded()
        play >> closes(rid=OTHER) << writes(fitting, 5, FIRST + 4 * RECORD, (6, CODE))
        assert play << run(OTHER) << run()

    @pytest.mark.parametrize("end", ["abort", "failure", "peer that cannot be reached"])
    def test_b1_the_head_that_ends_lets_the_next_one_go_if_it_fits(self, end: str) -> None:
        play, _, fitting = crowded()
        counts = [counted(chunks=1), counted("captions")]
        if end == "abort":
            play >> asks_abort(OTHER) << forget(OTHER)
        elif end == "failure":
            error = problem("stage_error", "boom", retriable=False)
            play >> engine_failed(StageError("boom"), OTHER) << failed_on_edge(error, CODE, OTHER)
            play << failed_on_edge(error, CAPTIONS, OTHER)
            play << forget(OTHER) << finished(None, error=error, edges=counts, rid=OTHER)
        else:
            text = "captions/0 cannot be reached on its edge from talker: it does not read"
            error = problem("replica_lost", text, "captions", "captions/0", retriable=True)
            play >> unreachable("captions") << failed_on_edge(error, CODE, OTHER)
            play << forget(OTHER) << finished(None, error=error, edges=counts, rid=OTHER)
        assert play << writes(fitting, 5, FIRST + 4 * RECORD, (6, CODE)) << run()

    def test_b1_an_abort_in_the_middle_of_the_line_leaves_it(self) -> None:
        play, chunks = waiting(RID, OTHER, THIRD)
        assert play >> asks_abort(OTHER) << forget(OTHER)
        play >> frees(1, 2) << frees_slot(1, FIRST, SIZE) << frees_slot(2, SECOND, SIZE)
        play << writes(chunks[RID], 3, FIRST, (4, CODE)) << writes(chunks[THIRD], 4, SECOND, (2, CODE), rid=THIRD)
        assert play << run() << run(THIRD)
        assert play >> aborted(rid=OTHER) << finished("abort", edges=[counted(chunks=1)], rid=OTHER)

    def test_b1_an_aborted_request_writes_nothing_when_there_is_room(self) -> None:
        play, _ = waiting(RID)
        assert play >> asks_abort() << forget()
        assert play >> frees(1, 2) << frees_slot(1, FIRST, SIZE) << frees_slot(2, SECOND, SIZE)
        assert play >> aborted() << finished("abort", edges=[counted(chunks=3, size=2 * SIZE)])
        assert is_idle(play)

    def test_b1_a_request_that_has_finished_stands_in_line_until_its_last_chunk_is_out(self) -> None:
        play, chunks = waiting(OTHER, RID)
        assert play >> made(finish_reason="stop", rid=OTHER)
        play >> frees(1) << frees_slot(1, FIRST, SIZE) << writes(chunks[OTHER], 3, FIRST, (2, CODE), rid=OTHER)
        play << ended(2, CODE, OTHER) << finished(edges=[counted(chunks=2, size=SIZE)], rid=OTHER)
        assert play

    def test_f2_a_reader_whose_connection_broke_gets_its_chunks_inline_until_it_is_another_one(self) -> None:
        """What it still reads in the ring nobody knows any more."""
        play = ringed(CODE)
        play >> unreachable("code2wav") << forget()
        error = problem(
            "replica_lost",
            "code2wav/0 cannot be reached on its edge from talker: it does not read",
            "code2wav",
            "code2wav/0",
            retriable=True,
        )
        assert play << finished(None, error=error, edges=[counted()])
        join(play, OTHER, CODE)
        large = rows(SIZE)
        play >> made(to={"code2wav": [large]}, rid=OTHER) << fact("first_output", submit(rid=OTHER))
        assert play << sent_inline(1, large, CODE, OTHER)
        assert play >> lost("code2wav") << DropPeer("code2wav/0", 5)
        frame = submit(targets=[CODE], prompt="hello", rid=THIRD)
        play >> RouterSent(frame) << meets(CODE, QUOTA) << fact("registered", frame)
        assert play << AddToEngine(engine_request(frame)) << fact("input_ready", frame) << run(THIRD)
        assert play >> answers()
        play >> made(to={"code2wav": [large]}, rid=THIRD) << fact("first_output", submit(rid=THIRD))
        assert play << writes(large, 1, FIRST, (1, CODE), rid=THIRD)

    def test_f2_the_line_of_a_reader_that_was_reaped_is_gone(self) -> None:
        play = ringed(CODE, CAPTIONS)
        full(play)
        assert play >> made(to={"code2wav": [rows(SIZE, 4)]}) << hold()
        assert (
            play
            >> lost("code2wav")
            << frees_slot(1, FIRST, SIZE)
            << frees_slot(2, SECOND, SIZE)
            << DropPeer("code2wav/0", 5)
            << run()
        )
        assert is_idle(play)

    def test_b1_a_slot_that_could_not_be_written_lets_the_next_one_go_on(self) -> None:
        play, chunks = waiting(OTHER, THIRD)
        error = problem("stage_error", "boom", retriable=False)
        play >> unwritten(Slot(2, SECOND, SIZE)) << failed_on_edge(error, CODE) << forget()
        play << finished(None, error=error, edges=[counted(chunks=3, size=2 * SIZE)])
        assert play << writes(chunks[OTHER], 3, SECOND, (2, CODE), rid=OTHER) << run(OTHER)

    def test_b1_a_shared_slot_that_could_not_be_written_moves_the_lines_of_all_its_readers(self) -> None:
        play = ringed(CODE, CAPTIONS)
        join(play, OTHER, CODE)
        join(play, THIRD, CAPTIONS)
        one = rows(QUOTA)
        play >> made(to={"code2wav": [one], "captions": [one]})
        assert play << fact("first_output") << writes(one, 1, None, (1, CODE), (1, CAPTIONS))
        two, three = rows(SIZE, 2), rows(SIZE, 3)
        assert play >> made(to={"code2wav": [two]}, rid=OTHER) << fact("first_output", submit(rid=OTHER)) << hold(OTHER)
        play >> made(to={"captions": [three]}, rid=THIRD) << fact("first_output", submit(rid=THIRD))
        assert play << hold(THIRD)
        commands = play.gate.handle(unwritten(Slot(1, None, QUOTA)), NOW)
        written = {command.engine_id: command.chunk for command in commands if isinstance(command, WriteSlot)}
        assert written == {engine_id(OTHER): two, engine_id(THIRD): three}


class TestFreed:
    """B3: what is freed is exact, whatever comes late, twice or from others."""

    @pytest.mark.parametrize(
        "event",
        [
            frees(3),
            frees(0),
            frees(-1, 2**63),
            frees(),
            frees(1, 2, stage="captions"),
            frees(1, 2, incarnation=4),
            frees(1, 2, stage="thinker"),
        ],
        ids=["not yet", "none", "numbers", "nothing", "another reader", "another incarnation", "no reader"],
    )
    def test_b3_what_is_not_held_is_not_freed(self, event: Any) -> None:
        play = ringed(CODE, CAPTIONS)
        full(play)
        assert play >> made(to={"code2wav": [rows(SIZE, 4)]}) << hold()
        assert play >> event
        assert used(play) == {"code2wav": QUOTA, "captions": 0}

    def test_b3_what_is_freed_twice_is_freed_once(self) -> None:
        play = ringed(CODE)
        full(play)
        assert play >> frees(1, 1) << frees_slot(1, FIRST, SIZE)
        one = rows(SIZE, 4)
        assert play >> made(to={"code2wav": [one]}) << writes(one, 3, FIRST, (4, CODE))
        assert play >> frees(1)
        assert used(play)["code2wav"] == QUOTA

    def test_b3_slots_outlive_their_request(self) -> None:
        play = ringed(CODE)
        full(play)
        assert (
            play >> made(finish_reason="stop") << ended(3, CODE) << finished(edges=[counted(chunks=3, size=2 * SIZE)])
        )
        assert used(play)["code2wav"] == QUOTA
        assert play >> frees(2, 1) << frees_slot(2, SECOND, SIZE) << frees_slot(1, FIRST, SIZE)
        assert is_idle(play)

    def test_f2_what_a_reaped_reader_held_is_free(self) -> None:
        play = ringed(CODE, CAPTIONS)
        one, two = rows(SIZE, 1), rows(QUOTA, 2)
        play >> made(to={"code2wav": [one], "captions": [one, two]}) << fact("first_output")
        assert play << writes(one, 1, FIRST, (1, CODE), (1, CAPTIONS)) << writes(two, 2, None, (2, CAPTIONS))
        assert play >> lost("captions") << frees_slot(2, None, QUOTA) << DropPeer("captions/0", 6)
        assert used(play) == {"code2wav": RECORD, "captions": 0}
        assert play >> frees(2, stage="captions")
        assert play >> lost("code2wav") << frees_slot(1, FIRST, SIZE) << DropPeer("code2wav/0", 5)
        assert is_idle(play)

    def test_f2_what_a_living_reader_shares_with_a_reaped_one_stays(self) -> None:
        play = ringed(CODE, CAPTIONS)
        one = rows(SIZE)
        play >> made(to={"code2wav": [one], "captions": [one]})
        assert play << fact("first_output") << writes(one, 1, FIRST, (1, CODE), (1, CAPTIONS))
        assert play >> lost("captions") << DropPeer("captions/0", 6)
        assert play >> frees(1) << frees_slot(1, FIRST, SIZE)

    def test_f2_a_reader_that_cannot_be_reached_still_holds_what_it_holds(self) -> None:
        play = ringed(CODE)
        full(play)
        text = "code2wav/0 cannot be reached on its edge from talker: it does not read"
        error = problem("replica_lost", text, "code2wav", "code2wav/0", retriable=True)
        play >> unreachable("code2wav") << forget()
        assert play << finished(None, error=error, edges=[counted(chunks=3, size=2 * SIZE)])
        assert used(play)["code2wav"] == QUOTA
        assert (
            play
            >> lost("code2wav")
            << frees_slot(1, FIRST, SIZE)
            << frees_slot(2, SECOND, SIZE)
            << DropPeer("code2wav/0", 5)
        )
        assert is_idle(play)

    def test_f2_a_dead_producer_frees_nothing_here(self) -> None:
        play = ringed(CODE)
        full(play)
        assert play >> lost("thinker") << DropPeer("thinker/0", 3)
        assert used(play)["code2wav"] == QUOTA


class TestUnwritten:
    """F1: a chunk that cannot be copied fails its own request, once."""

    def test_f1_it_fails_its_request_and_its_slot_is_free(self) -> None:
        play = ringed(CODE, others=[OTHER])
        full(play)
        error = problem("stage_error", "boom", retriable=False)
        play >> unwritten(Slot(2, SECOND, SIZE)) << failed_on_edge(error, CODE) << forget()
        assert play << finished(None, error=error, edges=[counted(chunks=3, size=2 * SIZE)])
        assert used(play)["code2wav"] == RECORD
        assert play >> unwritten(Slot(2, SECOND, SIZE))
        assert play.gate.live == 1
        assert play.gate.late == 0

    def test_f1_both_slots_that_could_not_be_written_fail_it_once(self) -> None:
        play = ringed(CODE)
        full(play)
        error = problem("stage_error", "boom", retriable=False)
        play >> unwritten(Slot(1, FIRST, SIZE)) >> unwritten(Slot(2, SECOND, SIZE))
        play << failed_on_edge(error, CODE) << forget()
        assert play << finished(None, error=error, edges=[counted(chunks=3, size=2 * SIZE)])
        assert is_idle(play)

    def test_a8_an_abort_that_came_first_stands(self) -> None:
        play = ringed(CODE)
        full(play)
        assert play >> asks_abort() << forget()
        assert play >> unwritten(Slot(2, SECOND, SIZE))
        assert used(play)["code2wav"] == RECORD
        assert play >> aborted() << finished("abort", edges=[counted(chunks=3, size=2 * SIZE)])

    def test_f1_a_request_that_has_reported_keeps_its_report(self) -> None:
        play = ringed(CODE)
        one = rows(SIZE)
        play >> made(to={"code2wav": [one]}, finish_reason="stop") << fact("first_output")
        play << writes(one, 1, FIRST, (1, CODE)) << ended(1, CODE)
        assert play << finished(edges=[counted(chunks=1, size=SIZE)])
        assert play >> unwritten(Slot(1, FIRST, SIZE))
        assert is_idle(play)

    def test_f2_a_reader_that_was_reaped_meanwhile_changes_nothing(self) -> None:
        play = ringed(CODE, CAPTIONS)
        one = rows(SIZE)
        play >> made(to={"code2wav": [one], "captions": [one]})
        assert play << fact("first_output") << writes(one, 1, FIRST, (1, CODE), (1, CAPTIONS))
        assert play >> lost("captions") << DropPeer("captions/0", 6)
        error = problem("stage_error", "boom", retriable=False)
        play >> unwritten(Slot(1, FIRST, SIZE)) << failed_on_edge(error, CODE) << forget()
        counts = [counted(chunks=1, size=SIZE), counted("captions", chunks=1, size=SIZE)]
        assert play << finished(None, error=error, edges=counts)
        assert is_idle(play)


class Tensor:
    """An engine's own array; `error` is what it raises instead of copying itself."""

    def __init__(self, nbytes: int, error: BaseException | None = None) -> None:
        self.dtype = np.dtype(np.uint8)
        self.shape: Any = (nbytes,)
        self._error = error

    def copy_to(self, out: NDArray[Any]) -> None:
        if self._error is not None:
            raise self._error
        out[:] = 7


def fails_alone(play: GatePlay, chunk: Chunk) -> None:
    """F1: with one line; the other request goes on."""
    report = play.gate.handle(made(to={"code2wav": [chunk]}), NOW)[-1]
    assert isinstance(report, ToRouter)
    assert isinstance(report.frame, wire.StageFinished)
    assert report.frame.error is not None
    assert report.frame.error.code == "stage_error"
    assert "\n" not in report.frame.error.message
    begins(play, OTHER)
    assert play.gate.live == 1
    assert is_idle(play)


class TestTensors:
    def test_w3_a_tensor_that_is_small_goes_inline_as_bytes(self) -> None:
        play = ringed(CODE)
        one = Chunk({}, {}, {"t": Tensor(10)})
        frame = wire.ChunkFrame(RID, 1, 7, STAGE, 1, {}, [wire.ArrayData("t", "|u1", [10], b"\7" * 10)])
        assert play >> made(to={"code2wav": [one]}) << fact("first_output") << ToConsumer(CODE, frame)

    def test_w3_a_tensor_that_is_large_goes_by_the_ring_and_is_not_copied_here(self) -> None:
        play = ringed(CODE)
        one = Chunk({}, {}, {"t": Tensor(SIZE, MemoryError("too soon"))})
        ran, written = play.gate.handle(made(to={"code2wav": [one]}), NOW)
        assert ran == fact("first_output")
        assert isinstance(written, WriteSlot)
        assert [written] == [writes(written.chunk, 1, FIRST, (1, CODE))]
        assert written.chunk.tensors["t"].shape == (SIZE,)

    @pytest.mark.parametrize("refused", [False, True])
    def test_f1_a_tensor_that_does_not_copy_itself_fails_its_own_request(self, refused: bool) -> None:
        play = ringed(CODE, others=[OTHER])
        nbytes = 10
        if refused:
            play = offered(CODE)
            join(play, OTHER, CODE)
            nbytes = SIZE
        bad = Chunk({}, {}, {"t": Tensor(nbytes, ZeroDivisionError("oh"))})
        error = problem("stage_error", "array 't' was not copied: ZeroDivisionError: oh", retriable=False)
        play >> made(to={"code2wav": [small(1), bad, small(3)]}) << fact("first_output") << sent(1, to=CODE)
        play << failed_on_edge(error, CODE) << forget() << finished(None, error=error, edges=[counted(chunks=1)])
        assert play
        begins(play, OTHER)
        assert play.gate.live == 1

    def test_f1_one_that_waits_for_a_credit_fails_when_it_is_copied(self) -> None:
        to = target(window=1)
        play = GatePlay()
        play.registers(submit(targets=[to], prompt="hello"))
        assert play << fact("input_ready") << run()
        bad = Chunk({}, {}, {"t": Tensor(10, ZeroDivisionError("oh"))})
        play >> made(to={"code2wav": [small(1), bad]}, finish_reason="stop") << fact("first_output")
        assert play << sent(1, to=to) << hold()
        error = problem("stage_error", "array 't' was not copied: ZeroDivisionError: oh", retriable=False)
        play >> gives_credit(1) << failed_on_edge(error, to) << forget()
        assert play << finished(None, error=error, edges=[counted(chunks=1)])

    def test_p5_one_for_a_relay_edge_fails_its_request(self) -> None:
        play = GatePlay()
        play.registers(submit(targets=[target(mode="relay")], prompt="hello"))
        assert play << fact("input_ready") << run()
        bad = Chunk({}, {}, {"t": Tensor(10, ZeroDivisionError("oh"))})
        error = problem("stage_error", "array 't' was not copied: ZeroDivisionError: oh", retriable=False)
        play >> made(to={"code2wav": [bad]}, finish_reason="stop") << fact("first_output") << forget()
        assert play << finished(None, error=error, edges=[counted(chunks=1, size=10)])

    @pytest.mark.parametrize("nbytes", [10, SIZE], ids=["inline", "by ring"])
    @pytest.mark.parametrize("shape", [(-1,), (2.5, 4), ("a",), (None,), 7, None, (1 << 70,)], ids=str)
    def test_f1_a_tensor_with_a_shape_that_no_array_has_fails_its_own_request(self, shape: Any, nbytes: int) -> None:
        play = ringed(CODE, others=[OTHER])
        bad = Tensor(nbytes)
        bad.shape = shape if not isinstance(shape, tuple) else (*shape, nbytes)
        fails_alone(play, Chunk({}, {}, {"t": bad}))

    @pytest.mark.parametrize("error", [RuntimeError, SystemExit])
    def test_f1_a_tensor_whose_shape_cannot_be_asked_fails_its_own_request(self, error: type[BaseException]) -> None:
        class Lost(Tensor):
            @property
            def shape(self) -> tuple[int, ...]:
                raise error("the device is lost")

            @shape.setter
            def shape(self, _: object) -> None:
                pass

        fails_alone(ringed(CODE, others=[OTHER]), Chunk({}, {}, {"t": Lost(10)}))

    @pytest.mark.parametrize("nbytes", [10, SIZE], ids=["inline", "by ring"])
    def test_w1_a_shape_of_numpys_integers_travels(self, nbytes: int) -> None:
        play = ringed(CODE)
        one = Tensor(nbytes)
        one.shape = tuple(np.array([nbytes]))
        packer = wire.Packer()
        for command in play.gate.handle(made(to={"code2wav": [Chunk({}, {}, {"t": one})]}), NOW):
            frames: list[Any] = [frame for _, frame in command.sends] if isinstance(command, WriteSlot) else []
            frames += [command.frame] if isinstance(command, ToConsumer | ToRouter) else []
            for frame in frames:
                assert list(packer.pack(frame))

    def test_f1_a_tensor_that_asks_to_exit_fails_its_own_request(self) -> None:
        """As an engine's own methods do."""
        fails_alone(ringed(CODE, others=[OTHER]), Chunk({}, {}, {"t": Tensor(10, SystemExit(1))}))

    def test_f1_two_arrays_of_one_name_are_an_error(self) -> None:
        play = ringed(CODE)
        bad = Chunk({}, {"t": np.zeros(3)}, {"t": Tensor(10)})
        error = problem("stage_error", "the engine made a chunk with two arrays 't'", retriable=False)
        play >> made(to={"code2wav": [bad]}) << failed_on_edge(error, CODE) << forget()
        assert play << finished(None, error=error, edges=[counted()])


# --- The consumer's side -------------------------------------------------------------------------------------------


def in_slot(chunk: Chunk) -> NDArray[np.uint8]:
    """What a reader finds."""
    data = np.zeros(slot_bytes(chunk), np.uint8)
    fill_slot(chunk, data)
    data.flags.writeable = False
    return data


def consumer(*sources: wire.Source, ready: str = "all") -> GatePlay:
    play = GatePlay(ready=ready)
    play.registers(submit(*sources, targets=()))
    assert play
    return play


def feeds(play: GatePlay, event: Any) -> tuple[list[Chunk], list[GateCommand]]:
    """The chunks that the engine is fed, and what else is ordered."""
    commands = play.gate.handle(event, NOW)
    chunks = [command.chunk for command in commands if isinstance(command, FeedEngine)]
    return chunks, [command for command in commands if not isinstance(command, FeedEngine)]


def is_same(came: Chunk, went: Chunk) -> bool:
    arrays = all(np.array_equal(came.arrays[name], array) for name, array in went.arrays.items())
    return came.meta == went.meta and came.arrays.keys() == went.arrays.keys() and arrays


class TestConsumer:
    def test_w3_a_running_request_is_fed_views_of_the_slot(self) -> None:
        play = consumer(THINKER)
        for seq, expected in ((1, [fact("input_ready"), run()]), (2, [])):
            went = rows(SIZE, seq)
            data = in_slot(went)
            (came,), others = feeds(play, ring_chunk(seq, went, data=data))
            assert others == expected
            assert is_same(came, went)
            assert np.shares_memory(came.arrays["rows"], data)
            assert not came.arrays["rows"].flags.writeable

    def test_r1_the_chunk_that_makes_a_request_ready_is_a_view(self) -> None:
        hearer = source("hearer")
        play = consumer(THINKER, hearer)
        assert play >> chunk(1) << fed(1) << credit(1)
        went = rows(SIZE)
        data = in_slot(went)
        (came,), others = feeds(play, ring_chunk(1, went, "hearer", data=data))
        assert others == [fact("input_ready"), run()]
        assert np.shares_memory(came.arrays["rows"], data)

    def test_b4_what_a_waiting_join_is_fed_is_its_own(self) -> None:
        play = consumer(THINKER, source("hearer"))
        for seq in (1, 2):
            went = rows(SIZE, seq)
            data = in_slot(went)
            (came,), others = feeds(play, ring_chunk(seq, went, data=data))
            assert others == [credit(seq)]
            assert is_same(came, went)
            assert not np.shares_memory(came.arrays["rows"], data)
            assert not came.arrays["rows"].flags.writeable

    def test_b4_any_of_several_edges_is_enough_for_views(self) -> None:
        play = consumer(THINKER, source("hearer"), ready="any")
        went = rows(SIZE)
        data = in_slot(went)
        (came,), others = feeds(play, ring_chunk(1, went, data=data))
        assert others == [fact("input_ready"), run()]
        assert np.shares_memory(came.arrays["rows"], data)

    def test_b4_what_a_payload_edge_holds_is_its_own(self) -> None:
        thinker = source(mode="payload")
        play = consumer(thinker)
        went = [rows(SIZE, seq) for seq in (1, 2)]
        slots = [in_slot(one) for one in went]
        for seq in (1, 2):
            assert play >> ring_chunk(seq, went[seq - 1], data=slots[seq - 1]) << credit(seq, thinker)
        (work,) = play.gate._work.values()
        for one, data in zip(work.sources["thinker"].held, slots, strict=True):
            assert not np.shares_memory(one.arrays["rows"], data)
        came, others = feeds(play, edge_end(2))
        assert others == [input_ended(), fact("input_ready"), run()]
        assert all(map(is_same, came, went))
        assert not any(one.arrays["rows"].flags.writeable for one in came)

    def test_b4_what_is_credited_in_advance_is_bounded_and_beyond_it_a_view(self) -> None:
        play = consumer(THINKER, source("hearer"))
        half = rows(wire.MESSAGE_BYTES // 2)
        data = in_slot(half)
        for seq in (1, 2):
            (came,), others = feeds(play, ring_chunk(seq, half, data=data))
            assert others == [credit(seq)]
            assert not np.shares_memory(came.arrays["rows"], data)
        (came,), others = feeds(play, ring_chunk(3, half, data=data))
        assert others == []
        assert np.shares_memory(came.arrays["rows"], data)

    def test_b4_inline_chunks_count_against_what_is_credited_in_advance(self) -> None:
        play = consumer(THINKER, source("hearer"))
        data = np.zeros(wire.MESSAGE_BYTES - 100, np.uint8)
        feeds(play, ring_chunk(1, Chunk({}, {"rows": data}), data=data))
        inline = wire.ArrayData("rows", "|u1", [101], bytes(101))
        _, others = feeds(play, by("thinker", wire.ChunkFrame(RID, 1, 3, "thinker", 2, {}, [inline])))
        assert others == []

    def test_r2_a_chunk_that_came_before_is_dropped_whatever_was_found(self) -> None:
        play = consumer(THINKER)
        feeds(play, ring_chunk(1, rows(SIZE), data=in_slot(rows(SIZE))))
        play.drops(ring_chunk(1, rows(SIZE), data=in_slot(rows(SIZE))))
        play.drops(ring_chunk(1, rows(SIZE), data=RingError("record 1 was taken before")))

    def test_r5_a_chunk_for_nobody_is_dropped_and_its_edge_closed(self) -> None:
        play = GatePlay()
        play.closes_again(ring_chunk(1, rows(SIZE), data=in_slot(rows(SIZE))))

    @pytest.mark.parametrize(
        ("found", "code", "stage"),
        [
            (RingError("record 1 is not there"), "stage_error", "thinker"),
            (None, "stage_error", "thinker"),
            (SegmentGoneError("the process is gone"), "replica_lost", "thinker"),
            (SharedMemoryError("too many open files"), "stage_error", STAGE),
        ],
        ids=["another record", "nothing", "gone", "no memory"],
    )
    def test_r2_a_slot_that_cannot_be_read_fails_the_request_and_says_whose_fault_it_is(
        self, found: SharedMemoryError | None, code: str, stage: str
    ) -> None:
        play = consumer(THINKER)
        text = f"chunk 1 of thinker/0 cannot be read: {found}"
        error = problem(code, text, stage, f"{stage}/0", retriable=code == "replica_lost")
        play >> ring_chunk(1, rows(SIZE), data=found) << closed() << forget() << finished(None, error=error)
        assert play
        assert play.gate.live == 0

    @pytest.mark.parametrize("mode", ["chunk", "payload"])
    def test_b3_a_chunk_for_which_there_is_no_memory_fails_its_request_alone(
        self, mode: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(_: Chunk) -> Chunk:
            raise MemoryError("391 KiB")

        monkeypatch.setattr("omnizmq.workers.arrivals.copied", full)
        play = consumer(source("thinker", mode), source("hearer"))  # it waits for the other, so it keeps a copy
        text = "chunk 1 from thinker cannot be kept: no memory: 391 KiB"
        error = problem("stage_error", text, retriable=False)
        commands = play.gate.handle(ring_chunk(1, rows(SIZE), data=in_slot(rows(SIZE))), NOW)
        assert commands[-1] == finished(None, error=error)
        assert play.gate.live == 0

    def test_r2_a_gap_is_found_before_the_slot_is_looked_at(self) -> None:
        play = consumer(THINKER)
        error = problem(
            "incomplete_input", "edge from thinker: chunk 2 follows chunk 0", "thinker", "thinker/0", retriable=True
        )
        play >> ring_chunk(2, rows(SIZE), data=RingError("gone")) << closed() << forget()
        assert play << finished(None, error=error)

    @pytest.mark.parametrize("nbytes", [0, SIZE - 1])
    def test_w1_a_slot_that_does_not_fill_its_arrays_fails_the_request(self, nbytes: int) -> None:
        play = consumer(THINKER)
        report = play.gate.handle(ring_chunk(1, rows(SIZE), data=np.zeros(nbytes, np.uint8)), NOW)[-1]
        assert isinstance(report, ToRouter)
        assert isinstance(report.frame, wire.StageFinished)
        assert report.frame.error is not None
        assert report.frame.error.code == "protocol_error"

    def test_b1_a_payload_by_ring_may_not_grow_without_bound(self) -> None:
        thinker = source(mode="payload")
        play = consumer(thinker)
        most = rows(wire.MESSAGE_BYTES)
        assert play >> ring_chunk(1, most, data=in_slot(most)) << credit(1, thinker)
        text = f"the payload from thinker is over {wire.MESSAGE_BYTES} bytes"
        error = problem("stage_error", text, retriable=False)
        play >> ring_chunk(2, rows(SIZE), data=in_slot(rows(SIZE))) << closed(thinker) << forget()
        assert play << finished(None, error=error)

    def test_b3_nothing_of_a_chunk_stays_in_the_gate(self) -> None:
        """A gate that kept what it has fed would keep the slot."""
        play = consumer(THINKER)
        went = rows(SIZE)
        feeds(play, ring_chunk(1, went, data=in_slot(went)))
        assert play.gate._commands == []
        (work,) = play.gate._work.values()
        assert work.sources["thinker"].held == []

    def test_a_copied_chunk_keeps_every_array(self) -> None:
        one = Chunk({"n": 1}, {"a": np.arange(3), "b": np.zeros((0, 2), np.float32), "c": np.array(1.5)})
        assert is_same(copied(one), one)


class TestUses:
    def test_b3_what_the_edges_hold_is_told(self) -> None:
        play = ringed(CODE, CAPTIONS)
        assert play.gate.rings() == [wire.RingUse("code2wav", QUOTA, 0, 0), wire.RingUse("captions", QUOTA, 0, 0)]
        full(play)
        assert play.gate.rings() == [wire.RingUse("code2wav", QUOTA, QUOTA, 0), wire.RingUse("captions", QUOTA, 0, 0)]

    def test_a_worker_without_a_ring_tells_of_none(self) -> None:
        assert GatePlay().gate.rings() == []
