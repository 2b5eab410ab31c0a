"""Relayed content for a stage that is at work already, and what an attempt that repeats itself wrongly may still do."""

from __future__ import annotations

from support.pipelines import pipeline
from support.playbook import LifePlay, terminal

from omnizmq.protocol import ErrorInfo, Text
from omnizmq.router import lifecycle as life
from omnizmq.router.delivered import Delivered


def done(stage: str, reason: str = "stop", outputs: int = 0) -> life.StageFinished:
    return life.StageFinished(stage, reason, None, {}, None, outputs)


def joined() -> LifePlay:
    """`c` hears of `b` as it goes, and of `a` when that has finished; all three are at work."""
    play = LifePlay(pipeline("a ~> c:text; b > c").plan(None))
    _ = play >> life.Bound() << life.SubmitStage("c") << life.SubmitStage("a")
    _ = play >> life.Registered("c") << life.SubmitStage("b")
    assert play >> life.Registered("a") >> life.Registered("b")
    return play


class TestP5ARelayToAStageThatIsAtWork:
    def test_p5_it_goes_on_when_its_source_has_finished(self) -> None:
        play = joined()
        assert play >> life.RelayArrived("a", "c", b"whole")
        assert play >> done("a") << life.ReleaseStage("a") << life.FeedStage("c", "a", b"whole")

    def test_r5_one_that_has_finished_already_gets_nothing(self) -> None:
        play = joined()
        assert play >> life.RelayArrived("a", "c", b"whole")
        _ = play >> done("c") << life.Deliver("c", "text", None, True) << life.ReleaseStage("c")
        assert play << life.StartGrace(("a", "b"))
        assert play >> done("a") << life.ReleaseStage("a")


def test_a_new_one_has_dropped_nothing() -> None:
    assert joined().lifecycle.late == 0


def test_f2_while_it_is_aborted_an_attempt_that_says_something_else_may_go_on_and_is_not_heard() -> None:
    told = Delivered("a", hashed=True)
    assert told.pass_on(Text("Hello"), last=False, cut=False) is not None
    told.begin_attempt("a/0")
    play = LifePlay(pipeline("a:text").plan(None), {"a": told})
    assert play >> life.Bound() << life.SubmitStage("a")
    assert play >> life.Registered("a")
    assert play >> life.AbortAsked() << life.AbortStage("a") << life.StartAbortTimer()
    assert play >> life.OutputArrived("a", 1, Text("Jello"), False)
    assert play >> life.OutputArrived("a", 2, Text("!"), False) << life.PassOver("a")
    _ = play >> done("a", "abort", outputs=2) << life.ReleaseStage("a") << life.Deliver("a", "text", None, True)
    assert play << terminal("abort")


def test_f1_a_stage_that_was_not_asked_to_abort_and_did_may_do_better_next_time() -> None:
    error = ErrorInfo("stage_error", "a aborted without having been asked", "a", None, True)
    play = LifePlay(pipeline("a:text").plan(None))
    assert play >> life.Bound() << life.SubmitStage("a")
    _ = play >> life.Registered("a") >> done("a", "abort") << life.ReleaseStage("a")
    assert play << terminal("error", error=error)
