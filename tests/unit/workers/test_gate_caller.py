"""The gate and callers, by transcripts: what goes, what waits, who is paused, who read too slowly (B1, A3, C6)."""

from __future__ import annotations

import numpy as np
import pytest
from support.gate_play import (
    CODE2WAV,
    NOW,
    THINKER,
    GatePlay,
    aborted,
    asks_abort,
    chunk,
    counted,
    edge_failed,
    ended,
    engine_failed,
    fact,
    failed_on_edge,
    fed,
    finished,
    forget,
    gives_credit,
    hold,
    made,
    output,
    paused,
    problem,
    ran,
    reads,
    run,
    sent,
    small,
    submit,
)

from omnizmq import protocol as wire
from omnizmq.errors import StageError
from omnizmq.workers.engine import Audio
from omnizmq.workers.messages import RouterSent, Ticked, ToRouter

GRACE = 30


def final(*targets: wire.Target, window: int = 2, window_bytes: int = 1000, unread: int = 0) -> GatePlay:
    """A final stage with a prompt, which runs."""
    play = GatePlay(reader_grace_s=float(GRACE))
    frame = submit(targets=targets, final=True, prompt="hello", window=window, window_bytes=window_bytes, unread=unread)
    play.registers(frame)
    assert play << fact("input_ready") << run()
    return play


def full(*targets: wire.Target) -> GatePlay:
    """Its window of two outputs is full, and a third waits."""
    play = final(*targets)
    assert play >> made("a") << fact("first_output") << output(1, "a")
    assert play >> made("b") << output(2, "b") << paused() << hold()
    assert play >> made("c")  # of the step that was under way
    return play


class TestWindow:
    def test_b1_beyond_the_window_the_request_is_paused_and_goes_on_with_credits(self) -> None:
        play = full()
        assert play.state() == "PAUSED"
        assert play >> reads(1) << output(3, "c"), "one more went, and the window is full again"
        assert play >> reads(2) << paused(False) << run()
        assert play.state() == "RUNNING"
        assert play >> made("d") << output(4, "d") << paused() << hold()
        assert play >> reads(4) << paused(False) << run()

    def test_b1_bytes_fill_the_window_as_outputs_do(self) -> None:
        play = final(window=100, window_bytes=1000)
        sound = Audio(np.zeros(250, np.float32), 24_000)
        frame = wire.Audio(bytes(1000), 24_000)
        assert play >> made(sound) << fact("first_output") << output(1, frame) << paused() << hold()
        assert play >> made("a")
        assert play >> reads(1) << output(2, "a") << paused(False) << run()

    def test_b1_a_duplicate_or_old_credit_changes_nothing(self) -> None:
        play = full()
        assert play >> reads(1) << output(3, "c")
        for old in (1, 0, -5):
            assert play >> reads(old)
        assert play >> reads(2) << paused(False) << run()
        assert play >> reads(2)
        assert play >> reads(1)
        assert (play.gate.late, play.state()) == (0, "RUNNING")

    def test_b1_credits_for_what_was_never_sent_let_nobody_overrun(self) -> None:
        play = full()
        assert play >> reads(10**6) << output(3, "c") << paused(False) << run()
        assert play >> made("d") << output(4, "d") << paused() << hold()

    def test_b1_credits_of_another_attempt_or_request_are_dropped(self) -> None:
        play = full()
        play.drops(reads(2, attempt=2))
        play.drops(reads(2, rid="other-0123456789abcdef"))
        assert play.state() == "PAUSED"

    def test_b1_a_stage_that_is_not_final_has_no_credits_to_get(self) -> None:
        play = GatePlay()
        play.registers(submit(targets=(), prompt="hello", window=1))
        assert play << fact("input_ready") << run()
        play.drops(reads(1))
        assert play >> made("a") << fact("first_output")
        assert play >> made("b")
        assert play.state() == "RUNNING"

    def test_b1_what_earlier_attempts_left_unread_fills_the_window(self) -> None:
        play = GatePlay()
        play.registers(submit(targets=(), final=True, prompt="hello", window=2, unread=2))
        assert play << paused() << fact("input_ready")
        assert play.state() == "PAUSED"
        assert play >> reads(-1) << paused(False) << run()
        assert play >> made("a") << fact("first_output") << output(1, "a") << paused() << hold()

    def test_b1_a_paused_request_feeds_its_consumers_what_there_is(self) -> None:
        play = final(CODE2WAV, window=1)
        play >> made("a", to={"code2wav": [small(1)]}) << fact("first_output") << output(1, "a")
        assert play << sent(1) << paused() << hold()
        assert play >> made("b", to={"code2wav": [small(2)]}) << sent(2)
        assert play >> gives_credit(2)
        assert play.state() == "PAUSED"
        assert play >> reads(1) << output(2, "b")

    def test_b1_a_request_that_waits_for_both_goes_on_when_both_have_come(self) -> None:
        play = full(CODE2WAV)
        assert play >> made(to={"code2wav": [small(1), small(2)]}) << sent(1) << sent(2)
        assert play >> reads(3) << output(3, "c") << paused(False)
        assert play.state() == "PARKED"
        assert play >> gives_credit(1) << run()

    def test_b1_another_request_is_not_paused(self) -> None:
        play, other = full(), "other-0123456789abcdef"
        frame = submit(rid=other, targets=(), final=True, prompt="hello", window=2)
        play.registers(frame)
        assert play << fact("input_ready", frame) << run(other)
        assert play.state(other) == "RUNNING"


class TestEnds:
    def test_c2_the_report_waits_until_all_outputs_are_out(self) -> None:
        play = full()
        assert play >> made("d", finish_reason="stop")
        assert play.state() == "SENDING"
        assert play >> reads(1) << output(3, "c")
        assert play >> reads(2) << output(4, "d", last=True) << paused(False) << finished(outputs=4)
        assert play.gate.live == 0
        play.drops(reads(4))

    def test_c3_the_end_of_the_output_is_with_the_last_that_goes(self) -> None:
        play = full()
        assert play >> made(ended=True)
        assert play >> made(usage={"completion_tokens": 3}, finish_reason="length")
        assert play >> reads(1) << output(3, "c")
        play >> reads(2) << output(4, None, last=True) << paused(False)
        assert play << finished("length", outputs=4, usage={"completion_tokens": 3})

    def test_b1_with_its_last_output_out_nobody_waits_for_the_caller(self) -> None:
        play = final(window=1)
        assert play >> made("a", ended=True) << fact("first_output") << output(1, "a", last=True)
        assert play.state() == "RUNNING"
        assert play >> made(finish_reason="stop") << finished(outputs=1)

    def test_b1_the_report_waits_for_edges_and_the_caller_whichever_is_slower(self) -> None:
        play = full(CODE2WAV)
        play >> made(to={"code2wav": [small(1), small(2), small(3)]}, finish_reason="stop") << sent(1) << sent(2)
        assert play
        assert play >> gives_credit(1) << sent(3) << ended(3)
        assert (
            play
            >> reads(2)
            << output(3, "c")
            << output(4, None, last=True)
            << paused(False)
            << finished(outputs=4, edges=[counted(chunks=3)])
        )

    def test_a3_an_abort_delivers_what_the_window_allows_and_counts_the_rest(self) -> None:
        play = full()
        assert play >> asks_abort() << forget()
        assert play >> made("d")  # of the step that was under way
        assert (
            play
            >> aborted("e", "f", usage={"completion_tokens": 6})
            << finished("abort", outputs=2, usage={"completion_tokens": 6})
        )
        assert play.gate.discarded == 4

    def test_a3_an_abort_fills_the_window_before_it_discards(self) -> None:
        play = final(window=3)
        assert play >> made("a") << fact("first_output") << output(1, "a")
        assert play >> asks_abort() << forget()
        play >> aborted("b", "c", "d") << output(2, "b") << output(3, "c") << finished("abort", outputs=3)
        assert play
        assert play.gate.discarded == 1

    def test_a6_the_confirmation_does_not_wait_for_credits_nor_take_any(self) -> None:
        play = full()
        assert play >> asks_abort() << forget()
        play.drops(reads(2))
        assert play >> aborted() << finished("abort", outputs=2)

    def test_b1_an_error_needs_no_credit_and_what_waits_is_dropped(self) -> None:
        play = full()
        error = problem("stage_error", "boom", retriable=False)
        assert play >> engine_failed(StageError("boom")) << forget() << finished(None, error=error, outputs=2)
        assert (play.gate.live, play.gate.discarded) == (0, 1)

    def test_r3_a_producers_error_needs_no_credit(self) -> None:
        play = GatePlay()
        play.registers(submit(THINKER, targets=(), final=True, window=1))
        assert play >> chunk(1) << fed(1) << fact("input_ready") << run()
        assert play >> made("a") << fact("first_output") << output(1, "a") << paused() << hold()
        error = problem("stage_error", "boom", "thinker", "thinker/0", retriable=False)
        assert play >> edge_failed(error) << forget() << finished(None, error=error, outputs=1)


class TestSlowReader:
    def test_b1_a_caller_that_reads_nothing_for_the_grace_ends_its_request(self) -> None:
        play = full(CODE2WAV)
        assert play >> play.later(GRACE - 1)
        text = "the caller has left 2 outputs of talker unread, and has read none for 30 s (router.slow_reader_grace_s)"
        error = problem("slow_reader", text, retriable=False)
        play >> play.later(1) << failed_on_edge(error) << forget()
        assert play << finished(None, error=error, outputs=2, edges=[counted()], at_ns=play.now)
        assert (play.gate.live, play.gate.discarded) == (0, 1)

    def test_b1_each_credit_renews_the_grace_also_one_that_says_only_that_other_stages_are_read(self) -> None:
        play = final(window=8)
        assert play >> made("x") << fact("first_output") << output(1, "x")
        for number in range(2, 8):
            assert play >> made("x") << output(number, "x")
        assert play >> made("x") << output(8, "x") << paused() << hold()
        assert play >> made("y")
        assert play >> made("z")
        assert play >> play.later(GRACE - 1)
        assert play >> reads(1) << output(9, "y", at_ns=play.now)
        assert play >> play.later(GRACE - 1)
        assert play >> reads(1)
        assert play >> play.later(GRACE - 1)
        report = play.gate.handle(play.later(1), play.now)[-1]
        assert isinstance(report, ToRouter)
        assert isinstance(report.frame, wire.StageFinished)
        assert report.frame.error is not None
        assert report.frame.error.code == "slow_reader"
        assert "8 outputs" in report.frame.error.message

    def test_b1_a_caller_that_reads_slowly_but_reads_is_kept(self) -> None:
        play = final(window=1)
        assert play >> made("a") << fact("first_output") << output(1, "a") << paused() << hold()
        for number in range(1, 6):
            assert play >> made("x")
            assert play >> play.later(GRACE - 1)
            assert play >> reads(number) << output(number + 1, "x", at_ns=play.now)

    def test_b1_a_request_that_is_not_paused_has_all_the_time(self) -> None:
        play = final(window=2)
        assert play >> made("a") << fact("first_output") << output(1, "a")
        assert play >> play.later(100 * GRACE)
        assert play >> made("b") << output(2, "b", at_ns=play.now) << paused(at_ns=play.now) << hold()
        assert play >> play.later(GRACE - 1), "the grace begins with the pause"

    def test_b1_it_holds_too_while_the_last_outputs_wait(self) -> None:
        play = full()
        assert play >> made("d", finish_reason="stop")
        text = "the caller has left 2 outputs of talker unread, and has read none for 31 s (router.slow_reader_grace_s)"
        error = problem("slow_reader", text, retriable=False)
        assert play >> play.later(GRACE + 1) << forget() << finished(None, error=error, outputs=2, at_ns=play.now)

    def test_a1_a_request_that_is_being_aborted_is_not_failed_by_it(self) -> None:
        play = full()
        assert play >> asks_abort() << forget()
        assert play >> play.later(2 * GRACE)
        assert play >> aborted() << finished("abort", outputs=2, at_ns=play.now)


class TestC6:
    """The times of a stage, in seconds, in its report's usage."""

    def usage(self, play: GatePlay, event: object) -> dict[str, int | float]:
        report = play.gate.handle(event, play.now)[-1]  # type: ignore[arg-type]
        assert isinstance(report, ToRouter)
        assert isinstance(report.frame, wire.StageFinished)
        return report.frame.usage

    def make(self) -> GatePlay:
        play = GatePlay()
        play.gate.handle(RouterSent(submit(THINKER, targets=())), play.now)
        return play

    def test_c6_a_report_says_how_long_the_stage_waited_for_input_and_for_output_and_had_the_request(self) -> None:
        play = self.make()
        play.now += 250_000_499
        play.gate.handle(chunk(1), play.now)
        play.now += 1_500_000_000
        play.gate.handle(ran(), play.now)
        play.gate.handle(made(usage={"prompt_tokens": 3}), play.now)
        play.now += 1_600
        play.gate.handle(made("a"), play.now)
        play.now += 10**9
        play.gate.handle(made("b"), play.now)
        assert self.usage(play, made(finish_reason="stop")) == {
            "prompt_tokens": 3,
            "input_wait_s": 0.25,
            "first_output_s": 1.500002,
            "stage_s": 2.750002,
        }

    def test_c6_what_has_not_happened_has_no_time(self) -> None:
        play = self.make()
        play.now += 2 * 10**9
        assert self.usage(play, engine_failed(StageError("boom"))) == {"stage_s": 2.0}

    def test_c6_without_output_there_is_no_time_to_it(self) -> None:
        play = self.make()
        play.now += 10**9
        play.gate.handle(chunk(1), play.now)
        play.gate.handle(asks_abort(), play.now)
        assert self.usage(play, aborted()) == {"input_wait_s": 1.0, "stage_s": 1.0}

    def test_c6_an_engines_own_counts_win(self) -> None:
        play = self.make()
        play.gate.handle(chunk(1), play.now)
        usage = self.usage(play, made(usage={"stage_s": 7.5}, finish_reason="stop"))
        assert usage == {"input_wait_s": 0.0, "stage_s": 7.5}

    @pytest.mark.parametrize("at_ns", [0, NOW, 10**15])
    def test_c6_the_gates_own_clock_counts_not_the_engines(self, at_ns: int) -> None:
        play = self.make()
        play.gate.handle(chunk(1), play.now)
        play.now += 10**9
        play.gate.handle(made("a", at_ns=at_ns), play.now)
        assert self.usage(play, made(finish_reason="stop"))["first_output_s"] == 1.0


class TestADeafGate:
    def test_b1_a_callers_grace_does_not_run_while_the_router_is_silent(self) -> None:
        """Whatever it has read, nobody could say so."""
        play = full()
        play.later(GRACE - 1)
        assert play >> Ticked(deaf=True)
        assert play >> play.later(GRACE - 1)
        assert play.gate.live == 1
        play.later(1)
        _ = play >> Ticked()
        play._said.clear()
        assert play.gate.live == 0
