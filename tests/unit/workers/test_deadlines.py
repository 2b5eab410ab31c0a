"""When a stage's own deadline runs, and when the caller's is up: to the second, and not for who is excused (R4, B1)."""

from __future__ import annotations

from support.gate_play import (
    NOW,
    THINKER,
    GatePlay,
    chunk,
    fact,
    fed,
    hold,
    idle,
    made,
    output,
    paused,
    probe,
    problem,
    reads,
    run,
    submit,
)

from omnizmq import protocol as wire
from omnizmq.errors import SlowReaderError
from omnizmq.workers.caller import CallerEdge
from omnizmq.workers.deadlines import Deadlines
from omnizmq.workers.work import Times, Work

S = 10**9
T = 60


def last_stage(window: int = 8) -> GatePlay:
    """The only stage of a request, which its engine has begun."""
    play = GatePlay(output_timeout_s=float(T), reader_grace_s=1000.0 * T)
    play.registers(submit(targets=(), prompt="hello", final=True, window=window))
    assert play << fact("input_ready") << run()
    return play


class TestR4TheStagesOwnDeadline:
    def test_r4_whatever_is_made_renews_it(self) -> None:
        play = last_stage()
        for seq in (1, 2, 3):
            assert play >> play.later(T - 1)
            play >> made("a", at_ns=play.now)
            if seq == 1:
                play << fact("first_output", at_ns=play.now)
            assert play << output(seq, "a", at_ns=play.now)
        assert play >> play.later(T - 1)
        assert play >> play.later(1) << probe()
        error = problem(
            "stage_error", "nothing was made after output 3 for 60 s (stage.output_timeout_s)", retriable=False
        )
        report = play.gate.handle(idle(), play.now)[-1].frame  # type: ignore[union-attr]
        assert isinstance(report, wire.StageFinished)
        assert report.error == error

    def test_r4_an_engine_that_does_not_answer_is_asked_once_in_that_time(self) -> None:
        play = last_stage()
        for _ in range(3):
            assert play >> play.later(T - 1)
            assert play >> play.later(1) << probe()

    def test_r4_it_does_not_run_while_the_caller_has_to_read(self) -> None:
        play = last_stage(window=1)
        assert play >> made("a") << fact("first_output") << output(1, "a") << paused() << hold()
        assert play >> play.later(3 * T)
        assert play >> idle(), "of before it was paused"
        assert play >> reads(1) << paused(False, at_ns=play.now) << run()
        assert play >> play.later(T - 1)
        assert play >> play.later(1) << probe()

    def test_r4_it_does_not_run_while_there_is_input_to_come(self) -> None:
        play = GatePlay(output_timeout_s=float(T))
        play.registers(submit(THINKER, targets=()))
        assert play >> chunk(1) << fed(1) << fact("input_ready") << run()
        assert play >> play.later(3 * T)
        assert play >> idle(fed=1)
        assert play.gate.live == 1


class TestB1TheCallersGrace:
    def passed(self, after_ns: int, *, is_paused: bool = True) -> Exception | None:
        caller = CallerEdge(window=1, window_bytes=1, sent=3, consumed=1, paused=is_paused, since_ns=NOW)
        work = Work(submit(), "all", {}, {}, caller, Times(NOW), input_ready=True)
        return Deadlines("talker", "talker/0", 10.0, {}).passed(work, NOW + after_ns)

    def test_b1_it_is_up_at_its_last_second_and_not_before(self) -> None:
        assert self.passed(10 * S - 1) is None
        error = self.passed(10 * S)
        assert isinstance(error, SlowReaderError)
        text = "the caller has left 2 outputs of talker unread, and has read none for 10 s (router.slow_reader_grace_s)"
        assert str(error) == text

    def test_b1_it_runs_in_a_pause_alone(self) -> None:
        assert self.passed(100 * S, is_paused=False) is None
