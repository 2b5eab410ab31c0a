"""The grace for missing reports is over: who is past it, and who never was in it (C5, A8)."""

from __future__ import annotations

from support.pipelines import pipeline
from support.playbook import LifePlay, terminal

from omnizmq.protocol import Text
from omnizmq.router import lifecycle as life


def at_work() -> LifePlay:
    play = LifePlay(pipeline("a:text").plan(None))
    assert play >> life.Bound() << life.SubmitStage("a")
    assert play >> life.Registered("a")
    return play


def complete() -> LifePlay:
    """Its output is whole, its report is awaited."""
    play = at_work()
    _ = play >> life.OutputArrived("a", 1, Text("Hi"), True) << life.Deliver("a", "text", Text("Hi"), True)
    assert play << life.StartGrace(("a",))
    return play


def test_c5_before_all_outputs_are_complete_it_ends_nothing() -> None:
    at_work().ignores(life.GraceExpired())


def test_a8_nor_when_an_abort_came_in_between() -> None:
    """The stage still has to confirm, within a time of its own."""
    play = complete()
    assert play >> life.AbortAsked() << life.AbortStage("a") << life.StartAbortTimer()
    play.ignores(life.GraceExpired())
    report = life.StageFinished("a", "abort", None, {}, None, 1)
    assert play >> report << life.ReleaseStage("a") << terminal("abort")


def test_c4_nor_when_the_request_has_ended() -> None:
    play = complete()
    _ = play >> life.GraceExpired() << terminal("stop", usage_incomplete=("a",))
    assert play << life.AbortStage("a") << life.StartAbortTimer()
    play.ignores(life.GraceExpired())
