"""The gate's slots, by transcripts: who is let run, who waits, who gives its place to others (B1, B2)."""

from __future__ import annotations

import pytest
from support.gate_play import (
    CODE2WAV,
    INCARNATION,
    STAGE,
    THINKER,
    GatePlay,
    aborted,
    asks_abort,
    by,
    chunk,
    closes,
    counted,
    engine_failed,
    engine_id,
    fact,
    failed_on_edge,
    finished,
    forget,
    gives_credit,
    hold,
    idle,
    made,
    output,
    paused,
    probe,
    problem,
    reads,
    run,
    sent,
    small,
    submit,
)

from omnizmq import protocol as wire
from omnizmq.errors import StageError
from omnizmq.workers.messages import FeedEngine, ToConsumer

A, B, C = (f"{name}-0123456789abcdef" for name in ("a", "b", "c"))


def arrives(play: GatePlay, rid: str, *targets: wire.Target, priority: int = 0, final: bool = False) -> GatePlay:
    """A request with a prompt, which could run."""
    frame = submit(rid=rid, targets=targets, prompt="hello", priority=priority, final=final, window=1)
    play.registers(frame)
    return play << fact("input_ready", frame, play.now)


def one_slot(*others: str) -> GatePlay:
    """`a` runs, and the others wait."""
    play = GatePlay(slots=1, priority_age_s=5.0)
    assert arrives(play, A) << run(A)
    for rid in others:
        assert arrives(play, rid)
    return play


def fed_one(play: GatePlay, rid: str, *targets: wire.Target) -> GatePlay:
    """A request with an edge in and its first chunk."""
    frame = submit(THINKER, rid=rid, targets=targets)
    play.registers(frame)
    assert play
    play >> chunk(1, rid=rid) << FeedEngine(engine_id(rid), "thinker", small(1))
    return play << fact("input_ready", frame, play.now)


def sent_of(rid: str, seq: int) -> ToConsumer:
    return ToConsumer(CODE2WAV, wire.ChunkFrame(rid, 1, INCARNATION, STAGE, seq, {"n": seq}, []))


def ends(play: GatePlay, rid: str) -> GatePlay:
    return play >> made(finish_reason="stop", rid=rid) << finished(rid=rid)


class TestSlots:
    def test_b1_others_wait_in_the_gate_and_the_first_of_them_goes_on_when_one_ends(self) -> None:
        play = one_slot(B, C)
        assert [play.state(rid) for rid in (A, B, C)] == ["RUNNING", "QUEUED", "QUEUED"]
        assert ends(play, A) << run(B)
        assert ends(play, B) << run(C)
        assert ends(play, C)

    def test_b2_the_highest_priority_first(self) -> None:
        play = one_slot(B)
        assert arrives(play, C, priority=1)
        assert ends(play, A) << run(C)

    @pytest.mark.parametrize(("seconds", "first"), [(9, "c"), (10, "b"), (11, "b")])
    def test_b2_waiting_counts_as_priority(self, seconds: int, first: str) -> None:
        play = one_slot(B)
        play.now += seconds * 10**9
        assert arrives(play, C, priority=2)
        play >> made(finish_reason="stop", rid=A) << finished(rid=A, at_ns=play.now)
        assert play << run({"b": B, "c": C}[first])

    def test_b1_a_parked_request_gives_its_slot_up_and_waits_again_with_its_credit(self) -> None:
        play = GatePlay(slots=1)
        frame = submit(prompt="hello")
        play.registers(frame)
        assert play << fact("input_ready", frame) << run()
        assert arrives(play, B)
        play >> made(to={"code2wav": [small(1), small(2)]}) << fact("first_output") << sent(1) << sent(2)
        assert play << hold() << run(B)
        assert play.state() == "PARKED"
        assert play >> gives_credit(1)
        assert play.state() == "QUEUED"
        assert ends(play, B) << run()

    def test_b1_a_paused_request_gives_its_slot_up(self) -> None:
        play = GatePlay(slots=1)
        frame = submit(targets=(), prompt="hello", final=True, window=1)
        play.registers(frame)
        assert play << fact("input_ready", frame) << run()
        assert arrives(play, B)
        assert play >> made("a") << fact("first_output") << output(1, "a") << paused() << hold() << run(B)
        assert play >> reads(1) << paused(False)
        assert ends(play, B) << run()

    @pytest.mark.parametrize("way", ["abort", "failure", "last chunks wait"])
    def test_b1_whoever_ends_gives_its_slot_up(self, way: str) -> None:
        play = GatePlay(slots=1)
        frame = submit(prompt="hello")
        play.registers(frame)
        assert play << fact("input_ready", frame) << run()
        assert arrives(play, B)
        if way == "abort":
            assert play >> asks_abort() << forget() << run(B)
            assert play >> aborted() << finished("abort", edges=[counted()])
        elif way == "failure":
            error = problem("stage_error", "boom", retriable=False)
            play >> engine_failed(StageError("boom")) << failed_on_edge(error) << forget()
            assert play << finished(None, error=error, edges=[counted()]) << run(B)
        else:
            chunks = [small(1), small(2), small(3)]
            play >> made(to={"code2wav": chunks}, finish_reason="stop") << fact("first_output")
            assert play << sent(1) << sent(2) << hold() << run(B)

    def test_b1_one_that_waits_and_ends_leaves_the_line(self) -> None:
        play = one_slot(B, C)
        assert play >> asks_abort(B) << forget(B)
        assert ends(play, A) << run(C)
        assert play >> aborted(rid=B) << finished("abort", rid=B)

    def test_b1_one_that_waits_and_is_parked_again_leaves_the_line(self) -> None:
        """What its engine had made by the time it was held comes after the credit."""
        play = GatePlay(slots=1)
        assert arrives(play, A, CODE2WAV) << run(A)
        assert arrives(play, B)
        play >> made(to={"code2wav": [small(1), small(2)]}, rid=A)
        play << fact("first_output", submit(rid=A)) << sent_of(A, 1) << sent_of(A, 2)
        assert play << hold(A) << run(B)
        assert play >> gives_credit(1, rid=A)
        assert play.state(A) == "QUEUED"
        assert play >> made(to={"code2wav": [small(3)]}, rid=A) << sent_of(A, 3)
        assert play.state(A) == "PARKED"
        assert ends(play, B), "it has nobody to make way for"
        assert play >> gives_credit(2, rid=A) << run(A)

    def test_b1_requests_that_are_only_registered_take_no_slot(self) -> None:
        play = GatePlay(slots=1)
        play.registers(submit(THINKER, rid=A))
        assert play
        assert arrives(play, B) << run(B)
        assert play.state(A) == "WAITING_FOR_CHUNK"

    def test_b2_of_several_that_could_go_on_at_once_the_most_urgent_does(self) -> None:
        """A dead consumer frees two; the order in which they came here is the other one."""
        play = GatePlay(slots=2)
        for rid, priority in ((A, 0), (B, 3)):
            assert arrives(play, rid, CODE2WAV, priority=priority) << run(rid)
        for rid in (A, B):
            commands = play.gate.handle(made(to={"code2wav": [small(1), small(2)]}, rid=rid), play.now)
            assert commands[-1] == hold(rid)
        for rid in (C, "d-0123456789abcdef"):
            assert arrives(play, rid) << run(rid)
        assert play >> closes(rid=A)
        assert play >> closes(rid=B)
        assert ends(play, C) << run(B)


class TestGivingWay:
    """A request that waits for its next chunk needs no slot while others do."""

    def idle_one(self) -> GatePlay:
        """`a` runs and has used its only chunk; `b` waits."""
        play = GatePlay(slots=1)
        assert fed_one(play, A) << run(A)
        assert fed_one(play, B) << probe(A)
        return play

    def test_b1_it_is_asked_when_somebody_waits_and_gives_way_when_it_is_idle(self) -> None:
        play = self.idle_one()
        assert play >> idle(fed=1, rid=A) << hold(A) << run(B)
        assert play.state(A) == "WAITING_FOR_CHUNK"
        play >> chunk(2, rid=A) << FeedEngine(engine_id(A), "thinker", small(2))
        assert play << probe(B)
        assert play.state(A) == "QUEUED"
        assert play >> idle(fed=1, rid=B) << hold(B) << run(A)

    def test_b1_an_answer_of_before_the_last_chunk_counts_for_nothing_and_it_is_asked_again(self) -> None:
        play = self.idle_one()
        assert play >> chunk(2, rid=A) << FeedEngine(engine_id(A), "thinker", small(2))
        assert play >> idle(fed=1, rid=A) << probe(A)
        assert play >> idle(fed=2, rid=A) << hold(A) << run(B)

    def test_b1_it_is_asked_once_for_each_time_that_it_got_its_slot(self) -> None:
        play = self.idle_one()
        assert fed_one(play, C)
        assert play >> asks_abort(B) << forget(B)
        assert play >> asks_abort(C) << forget(C)
        assert play >> idle(fed=1, rid=A), "nobody waits any more"
        assert fed_one(play, "d-0123456789abcdef") << probe(A)

    def test_b1_one_whose_input_has_ended_keeps_its_slot(self) -> None:
        play = GatePlay(slots=1)
        assert arrives(play, A) << run(A)
        assert fed_one(play, B)
        assert play >> idle(rid=A)
        assert play.state(A) == "RUNNING"

    def test_b1_the_end_of_the_edge_is_something_to_do(self) -> None:
        play = self.idle_one()
        assert play >> idle(fed=1, rid=A) << hold(A) << run(B)
        end = wire.EdgeEnd(A, 1, 3, "thinker", 1)
        commands = play.gate.handle(by("thinker", end), play.now)
        assert commands[-1] == probe(B)
        assert play.state(A) == "QUEUED"

    def test_b1_at_a_heartbeat_it_tries_again_in_case_the_engine_has_something_after_all(self) -> None:
        play = self.idle_one()
        assert play >> idle(fed=1, rid=A) << hold(A) << run(B)
        assert play >> play.later(1) << probe(B)
        assert play.state(A) == "QUEUED"
        assert play >> idle(fed=1, rid=B) << hold(B) << run(A)

    def test_b1_at_a_heartbeat_whoever_has_not_answered_is_asked_again(self) -> None:
        """It may have become idle without a word, as an engine with threads of its own can."""
        play = self.idle_one()
        assert play >> play.later(1) << probe(A)
        assert play >> play.later(1) << probe(A)

    def test_b1_one_that_was_parked_meanwhile_is_not_asked(self) -> None:
        play = GatePlay(slots=1)
        assert fed_one(play, A, CODE2WAV) << run(A)
        commands = play.gate.handle(made(to={"code2wav": [small(1), small(2)]}, rid=A), play.now)
        assert commands[-1] == hold(A)
        assert fed_one(play, B) << run(B)
        assert play >> idle(fed=1, rid=A)
        assert play.state(A) == "PARKED"
        assert fed_one(play, C) << probe(B)
