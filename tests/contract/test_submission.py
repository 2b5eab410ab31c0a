"""S1-S4: who is told what before whom, in the router."""

from __future__ import annotations

import pytest
from support.pipelines import SPEECH, config, pipeline
from support.playbook import LifePlay, RouterPlay, effect, rid, terminal, to

from omnizmq.protocol import Abort, AbortAck, AbortStage, Delivery, ErrorInfo, Source, SubmitStage, Target, Terminal
from omnizmq.router import lifecycle as life
from omnizmq.router.messages import ClientSent, FrameUnsendable, KillReplica, ToWorker, WorkerUnreachable

REQUEST = rid("demo")
UNSENT = ErrorInfo("replica_lost", "it cannot be reached", None, None, True)


class TestS1TheReceiverFirst:
    def test_each_consumer_has_registered_before_its_source_is_submitted(self) -> None:
        play = LifePlay(pipeline(SPEECH).plan(None))
        assert play >> life.Bound() << life.SubmitStage("code2wav")
        assert play >> life.Registered("code2wav") << life.SubmitStage("talker")
        assert play >> life.Registered("talker") << life.SubmitStage("thinker")
        assert play >> life.Registered("thinker")

    def test_a_source_of_two_waits_for_both(self) -> None:
        play = LifePlay(pipeline("a > b:text; a > c:audio").plan(None))
        assert play >> life.Bound() << life.SubmitStage("c") << life.SubmitStage("b")
        assert play >> life.Registered("b")
        assert play >> life.Registered("c") << life.SubmitStage("a")

    def test_every_stage_is_bound_before_any_frame_that_relies_on_it(self) -> None:
        """A submission names the incarnations on both ends of each edge, and where to connect."""
        play = RouterPlay(config(SPEECH))
        assert (
            play
            >> play.submits("alice")
            << to("code2wav/0", SubmitStage, sources=[Source("talker", "talker/0", 1, "chunk")], targets=[])
        )
        assert (
            play
            >> play.registers("code2wav/0", REQUEST)
            << to(
                "talker/0",
                SubmitStage,
                sources=[Source("thinker", "thinker/0", 1, "chunk")],
                targets=[Target("code2wav", "code2wav/0", 1, "ipc://code2wav/0#1", "chunk", 32, 60.0)],
            )
        )
        assert [fact.stage for fact in play.facts if fact.event == "bound"] == ["thinker", "talker", "code2wav"]

    def test_without_room_for_every_stage_nothing_is_bound(self) -> None:
        stages = {"talker": {"max_inflight": 1, "max_registered": 1}}
        play = RouterPlay(config(SPEECH, stages=stages))
        assert play >> play.submits("alice", "first") << to("code2wav/0", SubmitStage)
        assert play >> play.submits("bob", "second")
        assert play.status()["bindings"] == 3
        assert play.status()["queued"] == 1


class TestS2FiveFacts:
    @pytest.mark.parametrize("fact", ["registered", "input_ready", "running", "first_output"])
    def test_none_is_derived_from_another(self, fact: str) -> None:
        """Each is recorded when it happens, at its own time, and brings no other with it."""
        play = RouterPlay(config("thinker:text"))
        assert play >> play.submits("alice") << to("thinker/0", SubmitStage)
        assert play.brings(play.reports("thinker/0", REQUEST, fact)) == ([], [fact])
        assert (play.facts[-1].owner, play.facts[-1].stage) == ("thinker/0", "thinker")

    def test_nor_are_the_ends_of_an_output_of_a_stage_and_of_the_request(self) -> None:
        play = RouterPlay(config("thinker:text > voice:audio"))
        assert play >> play.submits("alice") << to("voice/0", SubmitStage)
        assert play >> play.registers("voice/0", REQUEST) << to("thinker/0", SubmitStage)
        _ = play.brings(play.registers("thinker/0", REQUEST))
        ends = [
            play.makes("thinker/0", REQUEST, 1, "Hi", last=True),
            play.makes("voice/0", REQUEST, 1, None, last=True),
            play.finishes("thinker/0", REQUEST, outputs=1),
            play.finishes("voice/0", REQUEST, outputs=1),
        ]
        recorded = [play.brings(event)[1] for event in ends]
        whole = ["output_ended", "published", "delivered"]
        assert recorded == [whole, [*whole, "withheld"], ["finished"], ["finished", "terminal", "cleaned"]]

    def test_a_stage_is_submitted_once(self) -> None:
        play = LifePlay(pipeline("a > b:audio").plan(None))
        assert play >> life.Bound() >> life.Registered("b") << life.SubmitStage("b") << life.SubmitStage("a")
        play.drops(life.Registered("b"))
        play.refuses(life.Bound(), "bound twice")

    def test_what_was_not_submitted_cannot_report(self) -> None:
        play = LifePlay(pipeline(SPEECH).plan(None))
        assert play >> life.Bound() << life.SubmitStage("code2wav")
        for event in (
            life.Registered("thinker"),
            life.OutputArrived("thinker", 1, None, True),
            life.StageFinished("thinker", "stop", None, {}, None, 0),
            life.RelayArrived("thinker", "talker", b""),
            life.SubmissionFailed("thinker", UNSENT),
        ):
            play.refuses(event, "thinker was not submitted")
        play.refuses(life.Registered("nobody"), "nobody was not submitted")


class TestS3OneFailureFailsAll:
    def test_what_was_submitted_is_aborted_and_what_was_bound_released(self) -> None:
        play = LifePlay(pipeline(SPEECH).plan(None))
        assert play >> life.Bound() << life.SubmitStage("code2wav")
        assert play >> life.Registered("code2wav") << life.SubmitStage("talker")
        assert (
            play
            >> life.SubmissionFailed("talker", UNSENT)
            << life.ReleaseStage("talker")
            << life.Redrive(UNSENT)
            >> life.Failed(UNSENT)
            << terminal("error", error=UNSENT, usage_incomplete=("talker", "code2wav"))
            << life.AbortStage("code2wav")
            << life.ReleaseStage("thinker")
            << life.StartAbortTimer()
        )
        assert play >> confirmed("code2wav") << life.ReleaseStage("code2wav")
        assert play.lifecycle.settled

    def test_the_caller_hears_of_it_and_no_record_stays(self) -> None:
        play = RouterPlay(config(SPEECH))
        assert play >> play.submits("alice") << to("code2wav/0", SubmitStage)
        assert play >> play.registers("code2wav/0", REQUEST) << to("talker/0", SubmitStage)
        unreachable = WorkerUnreachable("talker/0", 1, REQUEST, 1, "it does not read")
        error = ErrorInfo("replica_lost", "talker/0 cannot be reached: it does not read", "talker", "talker/0", True)
        assert (
            play
            >> unreachable
            << to("alice", Terminal, error=error)
            << to("code2wav/0", AbortStage)
            << effect(KillReplica, replica="talker/0")
        )
        assert play >> play.finishes("code2wav/0", REQUEST, "abort")
        assert play.is_empty()

    def test_a_submission_that_fits_no_message_fails_and_its_worker_goes_on(self) -> None:
        play = RouterPlay(config("thinker:text"))
        assert play >> play.submits("alice") << to("thinker/0", SubmitStage)
        error = ErrorInfo("protocol_error", "it is too large", "thinker", "thinker/0", False)
        unsendable = FrameUnsendable("thinker/0", 1, REQUEST, 1, True, "it is too large")
        assert play >> unsendable << to("alice", Terminal, error=error)
        assert play.is_empty()
        assert play >> play.submits("alice") << to("thinker/0", SubmitStage)

    def test_one_that_has_reported_meanwhile_did_not_fail(self) -> None:
        play = LifePlay(pipeline("a ~> b:audio").plan(None))
        assert play >> life.Bound() >> life.Registered("a") >> life.RelayArrived("a", "b", b"") << life.SubmitStage("a")
        _ = play >> life.StageFinished("a", "stop", None, {}, None, 0) << life.ReleaseStage("a")
        assert play << life.SubmitStage("b") << life.FeedStage("b", "a", b"")
        play.ignores(life.SubmissionFailed("a", UNSENT))


def confirmed(stage: str) -> life.StageFinished:
    return life.StageFinished(stage, "abort", None, {}, None, 0)


def chosen_for(play: RouterPlay, external_id: str, affinity: str | None = None) -> str:
    """Submits it. The replica that gets it."""
    effects, _ = play.brings(play.submits("alice", external_id, affinity=affinity))
    (chosen,) = [effect.replica for effect in effects if isinstance(effect, ToWorker)]
    return chosen


class TestS4OneReplicaForAnAttempt:
    @pytest.mark.parametrize("policy", ["round_robin", "least_loaded", "affinity"])
    def test_every_later_frame_goes_to_it(self, policy: str) -> None:
        play = RouterPlay(config("a:text", stages={"a": {"replicas": 2, "policy": policy}}))
        busy = [f"busy{n}" for n in range(3)]
        chosen = {name: chosen_for(play, name, name) for name in [*busy, "demo"]}
        abort = ClientSent(b"alice", Abort(1, REQUEST))
        assert play >> abort << to(chosen["demo"], AbortStage, request_id=REQUEST) << to("alice", AbortAck)

    def test_round_robin_takes_turns(self) -> None:
        stages = {"thinker": {"replicas": 3, "policy": "round_robin"}}
        play = RouterPlay(config("thinker:text", stages=stages))
        for n in range(6):
            assert play >> play.submits("alice", f"demo{n}") << to(f"thinker/{n % 3}", SubmitStage)

    def test_least_loaded_looks_at_what_is_bound(self) -> None:
        play = RouterPlay(config("thinker:text", stages={"thinker": {"replicas": 2}}))
        assert [chosen_for(play, f"demo{n}") for n in range(3)] == ["thinker/0", "thinker/1", "thinker/0"]
        for n in (0, 2):
            error = ErrorInfo("stage_error", "it broke", None, None, False)
            assert play >> play.finishes("thinker/0", rid(f"demo{n}"), None, error=error) << to("alice", Terminal)
        assert [chosen_for(play, f"demo{n}") for n in range(3, 6)] == ["thinker/0", "thinker/0", "thinker/1"]

    def test_an_affinity_key_has_one_replica_and_waits_for_it(self) -> None:
        stages = {"thinker": {"replicas": 2, "policy": "affinity", "max_inflight": 2}}
        play = RouterPlay(config("thinker:text", stages=stages))
        chosen = chosen_for(play, "demo0", "key")
        assert chosen_for(play, "demo1", "key") == chosen
        assert play >> play.submits("alice", "demo2", affinity="key")
        assert play.status()["queued"] == 1, "though the other one is free"
        assert play >> play.registers(chosen, rid("demo0"))
        _ = play >> play.finishes(chosen, rid("demo0")) << to("alice", Delivery) << to("alice", Terminal)
        assert play << to(chosen, SubmitStage, request_id=rid("demo2"))

    def test_a_replica_that_is_not_ready_is_not_chosen(self) -> None:
        play = RouterPlay(config("thinker:text", stages={"thinker": {"replicas": 2}}), ready=False)
        play.starts("thinker/1")
        for n in range(3):
            assert play >> play.submits("alice", f"demo{n}") << to("thinker/1", SubmitStage)
