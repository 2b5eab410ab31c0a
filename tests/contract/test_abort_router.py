"""A1-A3, A5-A8: how a request is aborted, in the router."""

from __future__ import annotations

import pytest
from support.pipelines import SPEECH, config, pipeline
from support.playbook import LifePlay, RouterPlay, effect, rid, terminal, to

from omnizmq.protocol import (
    Abort,
    AbortAck,
    AbortStage,
    Bye,
    Delivery,
    ErrorInfo,
    SubmitStage,
    Terminal,
    Text,
)
from omnizmq.router import lifecycle as life
from omnizmq.router.messages import ClientGone, ClientSent, Drained, StopAsked

REQUEST = rid("demo")
CHAIN = ("thinker", "talker", "code2wav")
TWO_TEXTS = "first:text > second:text > voice:audio"


def started(graph: str = SPEECH, modalities: list[str] | None = None) -> LifePlay:
    """All stages are submitted and registered."""
    plan = pipeline(graph).plan(modalities)
    play = LifePlay(plan)
    for event in (life.Bound(), *(life.Registered(stage) for stage in reversed(plan.names))):
        _ = play >> event
    for stage in reversed(plan.names):
        _ = play << life.SubmitStage(stage)
    assert play
    return play


def aborted(play: LifePlay) -> LifePlay:
    """Every stage has been told."""
    _ = play >> life.AbortAsked()
    for stage in play.lifecycle.plan.names:
        _ = play << life.AbortStage(stage)
    assert play << life.StartAbortTimer()
    return play


def confirmed(stage: str, reason: str | None = "abort", outputs: int = 0) -> life.StageFinished:
    return life.StageFinished(stage, reason, None, {"tokens": 1}, None, outputs)


def routed() -> RouterPlay:
    """Alice's request runs on three stages."""
    play = RouterPlay(config(SPEECH))
    assert play >> play.submits("alice") << to("code2wav/0", SubmitStage)
    assert play >> play.registers("code2wav/0", REQUEST) << to("talker/0", SubmitStage)
    assert play >> play.registers("talker/0", REQUEST) << to("thinker/0", SubmitStage)
    assert play >> play.registers("thinker/0", REQUEST)
    return play


def aborts(id_: str = "demo", client: bytes = b"carol") -> ClientSent:
    return ClientSent(client, Abort(7, id_))


class TestA1WhoIsTold:
    def test_its_caller_is_acknowledged_and_the_caller_of_generate_gets_one_terminal(self) -> None:
        play = routed()
        _ = play >> aborts()
        for stage in CHAIN:
            _ = play << to(f"{stage}/0", AbortStage, request_id=REQUEST)
        assert play << to("carol", AbortAck, call=7, matched=1)
        for stage in CHAIN[:2]:
            assert play >> play.finishes(f"{stage}/0", REQUEST, "abort")
        last = play.finishes("code2wav/0", REQUEST, "abort")
        assert play >> last << to("alice", Terminal, finish_reason="abort", error=None)
        assert play.is_empty()

    def test_exactly_the_replicas_that_it_was_submitted_to(self) -> None:
        """The second replica of a stage, and a stage that was bound but never submitted, hear nothing."""
        stages = {"talker": {"replicas": 2}}
        play = RouterPlay(config(SPEECH, stages=stages))
        assert play >> play.submits("alice") << to("code2wav/0", SubmitStage)
        assert play >> play.registers("code2wav/0", REQUEST) << to("talker/0", SubmitStage)
        _ = play >> aborts() << to("talker/0", AbortStage) << to("code2wav/0", AbortStage)
        assert play << to("carol", AbortAck, matched=1)
        assert play >> play.registers("talker/0", REQUEST), "its source is not submitted any more"

    def test_a_stage_that_has_finished_hears_nothing(self) -> None:
        play = started()
        assert play >> confirmed("talker", "stop") << life.ReleaseStage("talker")
        _ = play >> life.AbortAsked() << life.AbortStage("thinker") << life.AbortStage("code2wav")
        assert play << life.StartAbortTimer()

    def test_while_it_waits_for_a_replica(self) -> None:
        play = RouterPlay(config("thinker:text", stages={"thinker": {"max_inflight": 1}}))
        assert play >> play.submits("alice", "first") << to("thinker/0", SubmitStage)
        assert play >> play.submits("bob", "demo")
        assert play >> aborts() << to("bob", Terminal, finish_reason="abort") << to("carol", AbortAck, matched=1)
        assert play.waiting == []
        assert play >> play.registers("thinker/0", rid("first"))
        assert play >> play.finishes("thinker/0", rid("first")) << to("alice", Delivery) << to("alice", Terminal)
        assert play.is_empty()


class TestA2OfItsOwnLastStage:
    @pytest.mark.parametrize(
        ("modalities", "stage", "modality"),
        [(None, "code2wav", "audio"), (["audio"], "code2wav", "audio"), (["text"], "thinker", "text")],
    )
    def test_known_since_submission(self, modalities: list[str] | None, stage: str, modality: str) -> None:
        play = aborted(started(modalities=modalities))
        *others, last = play.lifecycle.plan.names
        for name in others:
            assert play >> confirmed(name) << life.ReleaseStage(name)
        assert play >> confirmed(last) << life.ReleaseStage(last) << terminal("abort", stage=stage, modality=modality)

    @pytest.mark.parametrize("first", CHAIN)
    def test_whatever_has_finished_before(self, first: str) -> None:
        play = started()
        _ = play >> confirmed(first, "stop")
        if first != "talker":
            _ = play << life.Deliver(first, play.lifecycle.plan.modality(first), None, True)
        _ = play << life.ReleaseStage(first) >> life.AbortAsked()
        others = [name for name in CHAIN if name != first]
        for name in others:
            _ = play << life.AbortStage(name)
        assert play << life.StartAbortTimer()
        assert play >> confirmed(others[0]) << life.ReleaseStage(others[0])
        last = confirmed(others[1])
        _ = play >> last << life.ReleaseStage(others[1]) << terminal("abort", stage="code2wav", modality="audio")
        assert play

    def test_also_before_anything_was_bound(self) -> None:
        play = LifePlay(pipeline(SPEECH).plan(None))
        _ = play >> life.AbortAsked()
        for stage in CHAIN:
            _ = play << life.ReleaseStage(stage)
        assert play << terminal("abort", stage="code2wav", modality="audio", usage={}, usage_incomplete=())

    def test_an_errors_terminal_is_of_it_too_with_the_stage_at_fault_inside(self) -> None:
        play = routed()
        error = ErrorInfo("stage_error", "it broke", "talker", "talker/0", False)
        _ = play >> play.finishes("talker/0", REQUEST, None, error=error)
        _ = play << to("alice", Terminal, stage="code2wav", modality="audio", finish_reason="error", error=error)
        assert play << to("thinker/0", AbortStage) << to("code2wav/0", AbortStage)


class TestA3PartialOutputsFirst:
    def test_each_as_its_own_stages_with_that_stages_end_marked_then_the_terminal(self) -> None:
        play = started(TWO_TEXTS)
        _ = (
            play
            >> life.OutputArrived("second", 1, Text("b"), False)
            << life.Deliver("second", "text", Text("b"), False)
        )
        assert play
        aborted(play)
        late = life.OutputArrived("first", 1, Text("a"), False)
        assert play >> late << life.Deliver("first", "text", Text("a"), False)
        for stage in ("first", "second"):
            assert play >> confirmed(stage) << life.ReleaseStage(stage)
        assert (
            play
            >> confirmed("voice")
            << life.ReleaseStage("voice")
            << life.Deliver("first", "text", None, True)
            << life.Deliver("second", "text", None, True)
            << terminal("abort")
        )

    def test_where_there_are_none_the_terminal_alone(self) -> None:
        play = aborted(started())
        for stage in CHAIN[:2]:
            assert play >> confirmed(stage) << life.ReleaseStage(stage)
        assert play >> confirmed("code2wav") << life.ReleaseStage("code2wav") << terminal("abort")

    def test_an_end_that_was_marked_is_not_marked_again(self) -> None:
        play = started("thinker:text")
        _ = (
            play
            >> life.OutputArrived("thinker", 1, Text("a"), True)
            << life.Deliver("thinker", "text", Text("a"), True)
        )
        assert play << life.StartGrace(("thinker",))
        aborted(play)
        assert play >> confirmed("thinker", outputs=1) << life.ReleaseStage("thinker") << terminal("abort")

    def test_the_router_delivers_what_comes_between_the_abort_and_its_confirmation(self) -> None:
        play = RouterPlay(config("thinker:text"))
        assert play >> play.submits("alice") << to("thinker/0", SubmitStage)
        assert play >> play.registers("thinker/0", REQUEST)
        assert play >> aborts() << to("thinker/0", AbortStage) << to("carol", AbortAck)
        assert play >> play.makes("thinker/0", REQUEST, 1, "Hi") << to("alice", Delivery, content=Text("Hi"))
        _ = play >> play.finishes("thinker/0", REQUEST, "abort", outputs=1)
        _ = play << to("alice", Delivery, content=None, stage_finished=True)
        assert play << to("alice", Terminal, finish_reason="abort")


class TestA5NothingToDo:
    @pytest.mark.parametrize("id_", ["nobody", "", "x" * 10_000_000])
    def test_an_unknown_id_is_a_success_that_does_nothing(self, id_: str) -> None:
        play = routed()
        assert play >> aborts(id_) << to("carol", AbortAck, call=7, matched=0)
        assert play.status()["live_requests"] == 1

    def test_so_is_one_that_has_ended(self) -> None:
        play = routed()
        error = ErrorInfo("stage_error", "it broke", None, None, False)
        _ = play >> play.finishes("talker/0", REQUEST, None, error=error) << to("alice", Terminal)
        assert play << to("thinker/0", AbortStage) << to("code2wav/0", AbortStage)
        assert play >> aborts() << to("carol", AbortAck, matched=0)
        for stage in ("thinker", "code2wav"):
            assert play >> play.finishes(f"{stage}/0", REQUEST, "abort")
        assert play >> aborts() << to("carol", AbortAck, matched=0)

    def test_it_may_be_repeated(self) -> None:
        play = RouterPlay(config("thinker:text"))
        assert play >> play.submits("alice") << to("thinker/0", SubmitStage)
        assert play >> aborts() << to("thinker/0", AbortStage) << to("carol", AbortAck, matched=1)
        assert play >> aborts() << to("carol", AbortAck, matched=1)
        assert play >> play.finishes("thinker/0", REQUEST, "abort") << to("alice", Terminal, finish_reason="abort")


class TestA6LeftBehind:
    def test_the_terminal_does_not_wait_longer_than_abort_timeout_s(self) -> None:
        play = RouterPlay(config(SPEECH, router={"abort_timeout_s": 2.0}))
        assert play >> play.submits("alice") << to("code2wav/0", SubmitStage)
        assert play >> play.registers("code2wav/0", REQUEST) << to("talker/0", SubmitStage)
        _ = play >> aborts() << to("talker/0", AbortStage) << to("code2wav/0", AbortStage)
        assert play << to("carol", AbortAck)
        assert play >> play.finishes("talker/0", REQUEST, "abort")
        assert play.waits(1.9)
        ended = to("alice", Terminal, finish_reason="abort", stage="code2wav", usage_incomplete=["code2wav"])
        assert play.waits(0.1) << ended
        left = [fact for fact in play.facts if fact.event == "left_behind"]
        assert [(fact.stage, fact.detail) for fact in left] == [("code2wav", {"replica": "code2wav/0"})]

    @pytest.fixture
    def left(self) -> RouterPlay:
        play = RouterPlay(config("thinker:text", stages={"thinker": {"max_inflight": 1}}))
        assert play >> play.submits("alice") << to("thinker/0", SubmitStage)
        assert play >> aborts() << to("thinker/0", AbortStage) << to("carol", AbortAck)
        assert play.waits(5) << to("alice", Terminal, finish_reason="abort")
        status = play.status()
        assert (status["live_requests"], status["leftovers"], status["bindings"]) == (0, 1, 1)
        return play

    def test_it_keeps_its_place_until_its_replica_confirms(self, left: RouterPlay) -> None:
        assert left >> left.submits("bob", "next")
        assert left.status()["queued"] == 1
        assert left >> left.makes("thinker/0", REQUEST, 1, "late")
        assert left.counts("late_frames") == 1
        assert left.status()["leftovers"] == 1
        confirmed_late = left.finishes("thinker/0", REQUEST, "abort")
        assert left >> confirmed_late << to("thinker/0", SubmitStage, request_id=rid("next"))
        assert left.counts("late_frames") == 2
        assert left.status()["leftovers"] == 0

    def test_or_until_it_is_replaced(self, left: RouterPlay) -> None:
        assert left >> left.dies("thinker/0")
        left.starts("thinker/0")
        assert left.is_empty()
        assert left >> left.submits("bob", "next") << to("thinker/0", SubmitStage)


class TestA7CallersThatAreGone:
    @pytest.mark.parametrize("how", [ClientGone(b"alice", "its process ended"), ClientSent(b"alice", Bye("done"))])
    def test_their_requests_are_aborted_and_nobody_elses(self, how: ClientGone | ClientSent) -> None:
        play = RouterPlay(config("thinker:text", stages={"thinker": {"max_inflight": 2}}))
        for client, name in (("alice", "one"), ("bob", "two")):
            assert play >> play.submits(client, name) << to("thinker/0", SubmitStage)
        assert play >> play.submits("alice", "queued")
        assert play >> how << to("thinker/0", AbortStage, request_id=rid("one"))
        assert play.waiting == []
        assert play >> play.registers("thinker/0", rid("one"))
        assert play >> play.makes("thinker/0", rid("one"), 1, "for nobody")
        assert play >> play.finishes("thinker/0", rid("one"), "abort", outputs=1)
        assert play.live == [rid("two")]
        why = [fact.detail["why"] for fact in play.facts if fact.event == "abort_asked"]
        assert len(why) == 2
        assert all(str(one).startswith("disconnect: ") for one in why)


class TestA8AResultThatRacesAnAbort:
    def test_the_result_first(self) -> None:
        play = RouterPlay(config("thinker:text"))
        assert play >> play.submits("alice") << to("thinker/0", SubmitStage)
        assert play >> play.registers("thinker/0", REQUEST)
        _ = play >> play.finishes("thinker/0", REQUEST) << to("alice", Delivery)
        assert play << to("alice", Terminal, finish_reason="stop")
        assert play >> aborts() << to("carol", AbortAck, matched=0)

    def test_the_abort_first(self) -> None:
        """The worker had reported its success before it heard of the abort."""
        play = RouterPlay(config("thinker:text"))
        assert play >> play.submits("alice") << to("thinker/0", SubmitStage)
        assert play >> play.registers("thinker/0", REQUEST)
        assert play >> aborts() << to("thinker/0", AbortStage) << to("carol", AbortAck, matched=1)
        assert (
            play >> play.makes("thinker/0", REQUEST, 1, "Hi", last=True) << to("alice", Delivery, stage_finished=True)
        )
        finished = play.finishes("thinker/0", REQUEST, "stop", outputs=1)
        assert play >> finished << to("alice", Terminal, finish_reason="abort")
        assert play.is_empty()

    def test_a_success_that_comes_after_the_abort_brings_nothing_new(self) -> None:
        """No end is marked that the abort would not mark, and nothing is handed on."""
        play = started("thinker:text; source ~> join:audio; thinker > join")
        assert play >> life.RelayArrived("source", "join", b"x")
        aborted(play)
        for stage in ("thinker", "source"):
            assert play >> confirmed(stage, "stop") << life.ReleaseStage(stage)
        assert play >> confirmed("join", "stop") << life.ReleaseStage("join") << terminal("abort")

    def test_an_error_first(self) -> None:
        play = aborted(started("thinker:text"))
        broken = ErrorInfo("stage_error", "it broke", "thinker", "thinker/0", False)
        report = life.StageFinished("thinker", None, broken, {}, None, 0)
        assert play >> report << life.ReleaseStage("thinker") << terminal("abort", error=None)

    def test_a_stop_of_the_deployment(self) -> None:
        play = RouterPlay(config("thinker:text"))
        assert play >> play.submits("alice") << to("thinker/0", SubmitStage)
        assert play >> aborts() << to("thinker/0", AbortStage) << to("carol", AbortAck)
        assert play >> StopAsked("enough")
        ended = play.finishes("thinker/0", REQUEST, "abort")
        assert play >> ended << to("alice", Terminal, finish_reason="abort") << effect(Drained)
