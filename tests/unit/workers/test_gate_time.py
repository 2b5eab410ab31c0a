"""The gate and silence, by transcripts: whose edge is judged, when, and what excuses it (R4)."""

from __future__ import annotations

import pytest
from support.gate_play import (
    CODE2WAV,
    THINKER,
    GatePlay,
    aborted,
    asks_abort,
    by,
    chunk,
    closed,
    closes,
    counted,
    credit,
    edge_end,
    fact,
    failed_on_edge,
    fed,
    finished,
    forget,
    gives_credit,
    hold,
    idle,
    input_ended,
    made,
    output,
    paused,
    probe,
    problem,
    reads,
    relayed,
    run,
    sent,
    small,
    source,
    submit,
    target,
)

from omnizmq import protocol as wire
from omnizmq.workers.messages import ToRouter

T = 60  # of every edge of these transcripts


def first_stage(*targets: wire.Target) -> GatePlay:
    """A request with a prompt: it has all that it needs."""
    play = GatePlay()
    play.registers(submit(targets=targets or (CODE2WAV,), prompt="hello"))
    assert play << fact("input_ready") << run()
    return play


def fed_whole() -> GatePlay:
    """A request whose input has come and ended: two things were fed."""
    play = GatePlay()
    play.registers(submit(THINKER))
    assert play >> chunk(1) << fed(1) << fact("input_ready") << run()
    assert play >> edge_end(1) << input_ended()
    return play


def silent(seconds: str, after: str = "from the start", to: str = "code2wav") -> wire.ErrorInfo:
    text = f"edge talker->{to}: talker/0 sent nothing for {seconds} s {after} (edge.input_timeout_s)"
    return problem("input_timeout", text, retriable=True)


class TestSilence:
    def test_r4_a_stage_that_has_all_it_needs_and_sends_nothing_is_named(self) -> None:
        play = first_stage()
        assert play >> play.later(T - 1)
        assert play >> play.later(1) << probe()
        error = silent("60")
        play >> idle() << failed_on_edge(error) << forget()
        assert play << finished(None, error=error, edges=[counted()], at_ns=play.now)
        assert play.gate.live == 0

    def test_r4_the_error_names_the_last_chunk(self) -> None:
        play = first_stage(target(window=8))
        play >> made(to={"code2wav": [small(1), small(2), small(3)]}) << fact("first_output")
        assert play << sent(1, to=target(window=8)) << sent(2, to=target(window=8)) << sent(3, to=target(window=8))
        assert play >> play.later(T + 0.25) << probe()
        error = silent("60.2", "after chunk 3")
        report = play.gate.handle(idle(), play.now)[-1]
        assert isinstance(report, ToRouter)
        assert isinstance(report.frame, wire.StageFinished)
        assert report.frame.error == error

    @pytest.mark.parametrize("mode", ["chunk", "payload", "relay"])
    def test_r4_edges_of_every_mode_are_judged(self, mode: str) -> None:
        to = target(mode=mode, window=8)
        play = first_stage(to)
        play >> made(to={"code2wav": [small(1)]}) << fact("first_output")
        if mode != "relay":
            play << sent(1, to=to)
        assert play
        assert play >> play.later(T) << probe()
        error = silent("60", "after chunk 1")
        play >> idle()
        if mode != "relay":
            play << failed_on_edge(error, to)
        edges = [counted(chunks=mode != "relay")]
        assert play << forget() << finished(None, error=error, edges=edges, at_ns=play.now)

    def test_r4_whatever_is_made_renews_the_deadline(self) -> None:
        play = first_stage()
        for seq in (1, 2, 3):
            assert play >> play.later(T - 1)
            play >> made(to={"code2wav": [small(seq)]}, at_ns=play.now)
            if seq == 1:
                play << fact("first_output", at_ns=play.now)
            assert play << sent(seq)
            assert play >> gives_credit(seq)
        assert play >> play.later(T - 1)
        assert play >> play.later(1) << probe()

    def test_r4_an_answer_that_was_overtaken_by_an_output_harms_nobody(self) -> None:
        play = first_stage()
        assert play >> play.later(T) << probe()
        play >> made(to={"code2wav": [small(1)]}, at_ns=play.now) << fact("first_output", at_ns=play.now) << sent(1)
        assert play >> idle()
        assert play.gate.live == 1

    def test_r4_an_engine_that_was_at_work_until_now_begins_to_be_silent_now(self) -> None:
        play = first_stage()
        assert play >> play.later(T) << probe()
        stepped_ns = play.now + 100 * 10**9  # a long step: nothing was heard meanwhile
        for _ in range(4):
            play >> play.later(25)
        play << probe()  # once more, for the time that has passed
        assert play
        assert play >> idle(stepped_ns)
        assert play >> play.later(T - 1)
        assert play >> play.later(1) << probe()
        error = silent("60")
        play >> idle(stepped_ns) << failed_on_edge(error) << forget()
        assert play << finished(None, error=error, edges=[counted()], at_ns=play.now)

    def test_r4_an_engine_that_does_not_answer_is_asked_again_and_its_request_lives(self) -> None:
        play = first_stage()
        for _ in range(3):
            assert play >> play.later(T) << probe()
            assert play >> play.later(1)
            assert play >> play.later(T - 2)
            play.now += 10**9
        assert play.gate.live == 1

    def test_r4_of_two_edges_the_one_whose_time_is_up_is_named(self) -> None:
        quick = wire.Target("captions", "captions/0", 6, "ipc:///run/captions", "chunk", 2, 5.0)
        play = first_stage(CODE2WAV, quick)
        assert play >> play.later(5) << probe()
        error = silent("5", to="captions")
        play >> idle() << failed_on_edge(error) << failed_on_edge(error, quick) << forget()
        assert play << finished(None, error=error, edges=[counted(), counted("captions")], at_ns=play.now)

    def test_r4_an_edge_that_the_consumer_has_closed_or_that_has_ended_is_none(self) -> None:
        play = first_stage()
        assert play >> closes()
        assert play >> play.later(T)
        play = first_stage()
        play >> made(ended=True)
        play.gate.handle(play.later(T), play.now)
        assert play.gate.live == 1

    def test_r4_a_stage_that_nobody_waits_for_has_all_the_time(self) -> None:
        play = GatePlay()
        play.registers(submit(targets=(), final=True, prompt="hello"))
        assert play << fact("input_ready") << run()
        assert play >> play.later(10 * T)
        assert play >> idle()

    def test_r4_the_answer_of_a_request_that_has_ended_is_late(self) -> None:
        play = first_stage()
        assert play >> asks_abort() << forget()
        play.drops(idle())
        assert play >> aborted() << finished("abort", edges=[counted()])
        play.drops(idle())


class TestExcuses:
    """The clock runs only while the producer has what it needs."""

    def test_r4_a_stage_that_waits_for_its_first_chunk_is_not_the_silent_one(self) -> None:
        play = GatePlay()
        play.registers(submit(THINKER))
        assert play
        assert play >> play.later(2 * T)
        assert play >> chunk(1) << fed(1) << fact("input_ready", at_ns=play.now) << run()

    def test_r4_a_stage_whose_input_is_still_open_is_not_the_silent_one(self) -> None:
        play = GatePlay()
        play.registers(submit(THINKER))
        assert play >> chunk(1) << fed(1) << fact("input_ready") << run()
        assert play >> play.later(2 * T)
        assert play >> idle(fed=1)
        assert play >> edge_end(1) << input_ended()
        assert play >> play.later(T - 1), "what it was fed renews its deadline"
        assert play >> play.later(1) << probe()

    @pytest.mark.parametrize("mode", ["payload", "relay"])
    def test_r4_a_payload_or_a_relayed_output_counts_when_it_is_whole(self, mode: str) -> None:
        thinker = source(mode=mode)
        play = GatePlay()
        play.registers(submit(thinker))
        assert play
        assert play >> play.later(2 * T)
        if mode == "payload":
            assert play >> chunk(1) << credit(1, thinker)
            play >> edge_end(1)
        else:
            play >> relayed(small(1))
        assert play << fed(1) << input_ended() << fact("input_ready", at_ns=play.now) << run()
        assert play >> play.later(T - 1)
        assert play >> play.later(1) << probe()
        assert play >> idle(fed=1), "it was fed more than that answer knows of"
        error = silent("60")
        play >> idle(fed=2) << failed_on_edge(error) << forget()
        assert play << finished(None, error=error, edges=[counted()], at_ns=play.now)

    def test_r4_a_parked_stage_is_not_silent_and_begins_anew_with_the_credit(self) -> None:
        play = first_stage()
        play >> made(to={"code2wav": [small(1), small(2)]}) << fact("first_output") << sent(1) << sent(2) << hold()
        assert play >> play.later(3 * T)
        assert play >> idle(), "of before it was parked"
        assert play >> gives_credit(1) << run()
        assert play >> play.later(T - 1)
        assert play >> play.later(1) << probe()

    def test_r4_a_stage_whose_caller_has_to_read_is_not_silent(self) -> None:
        play = GatePlay(reader_grace_s=10.0 * T)
        play.registers(submit(prompt="hello", final=True, window=1))
        assert play << fact("input_ready") << run()
        assert play >> made("a") << fact("first_output") << output(1, "a") << paused() << hold()
        assert play >> play.later(3 * T)
        assert play >> reads(1) << paused(False, at_ns=play.now) << run()
        assert play >> play.later(T - 1)

    def test_r4_a_stage_that_waits_for_a_slot_is_not_silent(self) -> None:
        play, other = GatePlay(slots=1), "other-0123456789abcdef"
        play.registers(submit(targets=(), prompt="hello", rid=other))
        assert play << fact("input_ready", submit(rid=other)) << run(other)
        play.registers(submit(prompt="hello"))
        assert play << fact("input_ready")
        assert play.state() == "QUEUED"
        assert play >> play.later(10 * T)
        assert play >> made(finish_reason="stop", rid=other) << finished(rid=other, at_ns=play.now) << run()
        assert play >> play.later(T - 1)
        assert play >> play.later(1) << probe()

    def test_r4_a_request_that_is_being_aborted_or_only_sends_is_not_silent(self) -> None:
        play = first_stage(target(window=1))
        play >> made(to={"code2wav": [small(1), small(2)]}, finish_reason="stop")
        assert play << fact("first_output") << sent(1, to=target(window=1)) << hold()
        assert play >> play.later(2 * T)
        assert play >> asks_abort() << forget()
        assert play >> play.later(2 * T)

    def test_r4_the_producers_error_reaches_the_consumer_as_it_is(self) -> None:
        """R3: whichever report is first, it is this one."""
        play = fed_whole()
        assert play >> play.later(T) << probe()
        error = silent("60")
        play >> idle(fed=2) << failed_on_edge(error) << forget()
        assert play << finished(None, error=error, edges=[counted()], at_ns=play.now)
        assert (error.stage, error.replica, error.retriable) == ("talker", "talker/0", True)


class TestJoin:
    """An edge that stays away while another one's credits are held back (B4): its consumer alone can know."""

    def join(self, **timeouts: float) -> GatePlay:
        play = GatePlay(input_timeouts_s=timeouts)
        play.registers(submit(THINKER, source("hearer"), targets=()))
        assert play
        return play

    def large(self, play: GatePlay, seq: int) -> bool:
        """A chunk of 24 MiB, of which so much may be kept that its credit goes back."""
        size = 24 << 20
        array = wire.ArrayData("rows", "|u1", [size], bytes(size))
        frame = wire.ChunkFrame(submit().request_id, 1, 3, "thinker", seq, {}, [array])
        return credit(seq) in play.gate.handle(by("thinker", frame), play.now)

    def starved(self, play: GatePlay) -> wire.ErrorInfo:
        commands = play.gate.handle(play.later(1), play.now)
        assert commands[:3] == [closed(), closed(source("hearer")), forget()]
        report = commands[3]
        assert isinstance(report, ToRouter)
        assert isinstance(report.frame, wire.StageFinished)
        assert report.frame.error is not None
        return report.frame.error

    def test_r4_a_join_that_cannot_be_fed_fails_and_names_both_edges(self) -> None:
        play = self.join(hearer=20.0, thinker=5.0)
        assert [self.large(play, seq) for seq in (1, 2, 3)] == [True, True, False]
        assert play >> play.later(19)
        error = self.starved(play)
        assert error == problem(
            "input_timeout",
            "edge hearer->talker: hearer/0 sent nothing for 20 s from the start (edge.input_timeout_s), "
            f"and edge thinker->talker cannot go on before: {48 << 20} bytes of it wait at talker/0",
            "hearer",
            "hearer/0",
            retriable=True,
        )

    def test_r4_as_long_as_the_first_edge_may_go_on_nobody_is_blamed_here(self) -> None:
        play = self.join(hearer=20.0)
        assert [self.large(play, seq) for seq in (1, 2)] == [True, True]
        assert play >> play.later(100)

    def test_r4_what_still_comes_renews_that_deadline_too(self) -> None:
        play = self.join(hearer=20.0)
        for seq in (1, 2, 3):
            self.large(play, seq)
        assert play >> play.later(19)
        assert not self.large(play, 4)
        assert play >> play.later(19)
        assert self.starved(play).code == "input_timeout"

    def test_r4_an_edge_that_has_come_is_not_waited_for(self) -> None:
        play = self.join(hearer=20.0)
        for seq in (1, 2, 3):
            self.large(play, seq)
        assert play >> chunk(1, "hearer") << fed(1, "hearer") << fact("input_ready") << run()
        assert play >> play.later(100)

    def test_r4_an_edge_that_has_ended_holds_nobody_up(self) -> None:
        play = self.join(hearer=20.0)
        for seq in (1, 2, 3):
            self.large(play, seq)
        assert play >> edge_end(3) << input_ended()
        assert play >> play.later(100)

    def test_r4_without_a_time_for_that_edge_nobody_is_blamed(self) -> None:
        play = self.join(thinker=5.0)
        for seq in (1, 2, 3):
            self.large(play, seq)
        assert play >> play.later(100)


class TestNothingMade:
    """A stage whose silence no edge would tell: the last one, or one whose edges have ended."""

    def test_r4_a_last_stage_that_makes_nothing_fails(self) -> None:
        play = GatePlay(output_timeout_s=float(T))
        play.registers(submit(targets=(), prompt="hello"))
        assert play << fact("input_ready") << run()
        assert play >> play.later(T - 1)
        assert play >> play.later(1) << probe()
        error = problem(
            "stage_error", "nothing was made after output 0 for 60 s (stage.output_timeout_s)", retriable=False
        )
        play >> idle() << forget()
        assert play << finished(None, error=error, edges=[], at_ns=play.now)
        assert play.gate.live == 0

    def test_r4_its_end_is_awaited_as_long(self) -> None:
        play = GatePlay(output_timeout_s=float(T))
        play.registers(submit(targets=(), prompt="hello"))
        assert play << fact("input_ready") << run()
        assert play >> made("a", ended=True) << fact("first_output")
        assert play >> play.later(T) << probe()
        error = problem("stage_error", "its end was not reported for 60 s (stage.output_timeout_s)", retriable=False)
        play >> idle() << forget()
        assert play << finished(None, error=error, edges=[], at_ns=play.now)

    def test_r4_an_engine_with_work_for_it_is_left_alone(self) -> None:
        play = GatePlay(output_timeout_s=float(T))
        play.registers(submit(targets=(), prompt="hello"))
        assert play << fact("input_ready") << run()
        assert play >> play.later(T) << probe()
        assert play >> play.later(5 * T) << probe()  # no answer: it is in a step, and that has a limit of its own
        assert play.gate.live == 1
