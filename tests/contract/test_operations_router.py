"""F2 and F4 under an operator's hands: `drain`, `resume` and `restart` lose no request, in the router."""

from __future__ import annotations

from typing import Any

import pytest
from support.pipelines import config
from support.playbook import RouterPlay, effect, rid, to

from omnizmq import protocol as wire
from omnizmq.protocol import ErrorInfo, Operated, PeerLost, Refused, SubmitStage, Terminal
from omnizmq.router.messages import (
    ClientGone,
    ClientSent,
    DrainAsked,
    Drained,
    KillReplica,
    ReplicaReady,
    ReplicaStarting,
    RestartReplica,
    StopAsked,
    WorkerSent,
)

REQUEST = rid("demo")
BROKEN = ErrorInfo("stage_error", "it broke", None, None, False)
DONE = to("operator", Operated, call=1, error=None)
TWO = "thinker:text > voice:audio"


def thinkers(replicas: int = 2, graph: str = "thinker:text", **router: Any) -> RouterPlay:
    return RouterPlay(config(graph, stages={"thinker": {"replicas": replicas}}, router=router))


def busy(replicas: int = 1, **router: Any) -> RouterPlay:
    """Alice's request runs on the first thinker."""
    play = thinkers(replicas, **router)
    assert play >> play.submits("alice") << to("thinker/0", SubmitStage)
    return play


def ends(play: RouterPlay, replica: str = "thinker/0", request: str = REQUEST, attempt: int = 1) -> RouterPlay:
    """Its request leaves the replica."""
    _ = play >> play.finishes(replica, request, None, error=BROKEN, attempt=attempt)
    _ = play << to("alice", Terminal)
    return play


def state(play: RouterPlay, replica: str = "thinker/0") -> str:
    return play.core.pools.replicas[replica].state


def refused(play: RouterPlay, *order: str, code: str, match: str, **how: Any) -> None:
    (answer,), _ = play.brings(play.orders("operator", *order, **how))
    assert isinstance(answer.frame, Operated)  # type: ignore[union-attr]
    error = answer.frame.error  # type: ignore[union-attr]
    assert error is not None
    assert error.code == code
    assert match in error.message


def begin_restart(play: RouterPlay, target: str = "thinker/0", **how: Any) -> RouterPlay:
    return play >> play.orders("operator", "restart", target, **how)


def ends_its_process(play: RouterPlay, replica: str = "thinker/0") -> RouterPlay:
    """Idle, and its ring is read, says a heartbeat; so it is told to end, and ends."""
    play.now += 0.5
    assert play >> play.beats(replica) << effect(RestartReplica, replica=replica)
    _ = play >> play.dies(replica, "restarted")
    for other in play.core.pools.replicas.values():
        if other.state in ("ready", "draining"):
            _ = play << to(other.id, PeerLost, replica=replica)
    assert play
    return play


class TestRefusals:
    @pytest.mark.parametrize("action", ["drain", "resume", "restart"])
    @pytest.mark.parametrize("target", ["nobody", "thinker/7", "", "x" * 1_000_000])
    def test_one_that_does_not_exist(self, action: str, target: str) -> None:
        play = thinkers()
        match = "no such replica; there are thinker/0, thinker/1"
        refused(play, action, target, code="invalid_request", match=match)

    @pytest.mark.parametrize("action", ["drain", "resume"])
    def test_a_whole_stage_can_only_be_restarted(self, action: str) -> None:
        match = f"{action} takes one replica, not a stage: thinker has thinker/0, thinker/1"
        refused(thinkers(), action, "thinker", code="invalid_request", match=match)

    @pytest.mark.parametrize("action", ["drain", "resume"])
    def test_only_a_restart_has_force(self, action: str) -> None:
        refused(thinkers(), action, "thinker/0", code="invalid_request", match="force belongs to a restart", force=True)

    @pytest.mark.parametrize("other", ["drain", "restart", "resume"])
    @pytest.mark.parametrize("target", ["thinker/0", "thinker"])
    def test_one_at_which_another_order_is_at_work(self, other: str, target: str) -> None:
        play = busy(replicas=2)
        assert begin_restart(play, target)
        refused(play, other, "thinker/0", code="unavailable", match="thinker/0: a restart is under way; wait for")

    def test_also_one_whose_turn_has_not_come(self) -> None:
        play = busy(replicas=2)
        assert begin_restart(play, "thinker")
        refused(play, "drain", "thinker/1", code="unavailable", match="thinker/1: a restart is under way")

    def test_a_dead_one_cannot_be_drained(self) -> None:
        play = thinkers(1)
        assert play >> play.dies("thinker/0")
        refused(play, "drain", "thinker/0", code="unavailable", match="thinker/0 is dead: only a ready replica")

    @pytest.mark.parametrize("action", ["drain", "resume", "restart"])
    def test_everything_when_the_deployment_stops(self, action: str) -> None:
        play = busy()
        assert play >> DrainAsked()
        refused(play, action, "thinker/0", code="unavailable", match="the deployment is stopping")


class TestF4Drain:
    def test_f4_no_new_requests_and_done_when_the_last_one_has_ended(self) -> None:
        play = busy(replicas=2)
        assert play >> play.orders("operator", "drain", "thinker/0")
        for n in range(3):
            assert play >> play.submits("alice", f"new{n}") << to("thinker/1", SubmitStage)
        assert ends(play) << DONE
        assert play.status()["stages"]["thinker"]["replicas"][0]["state"] == "draining"

    def test_f4_one_that_is_idle_is_drained_at_once_and_again(self) -> None:
        play = thinkers()
        for _ in range(2):
            assert play >> play.orders("operator", "drain", "thinker/0") << DONE

    def test_f4_the_only_replica_drained_is_none(self) -> None:
        """Unlike one that is restarted: nobody says when it is back."""
        play = thinkers(1)
        assert play >> play.orders("operator", "drain", "thinker/0") << DONE
        assert play >> play.submits("alice") << to("alice", Refused)
        assert play.status()["ready"] is False

    def test_f4_resume(self) -> None:
        play = thinkers(1)
        assert play >> play.orders("operator", "drain", "thinker/0") << DONE
        assert play >> play.orders("operator", "resume", "thinker/0") << DONE
        assert play >> play.submits("alice") << to("thinker/0", SubmitStage)

    def test_f4_a_resume_lets_in_who_waits(self) -> None:
        stages = {"thinker": {"replicas": 2, "max_inflight": 1}}
        play = RouterPlay(config("thinker:text", stages=stages))
        assert play >> play.orders("operator", "drain", "thinker/0") << DONE
        assert play >> play.submits("alice", "a") << to("thinker/1", SubmitStage)
        assert play >> play.submits("alice", "b")
        resume = play.orders("operator", "resume", "thinker/0")
        assert play >> resume << DONE << to("thinker/0", SubmitStage, request_id=rid("b"))

    def test_f4_a_resume_of_one_that_serves_does_nothing(self) -> None:
        play = thinkers(1)
        assert play >> play.orders("operator", "resume", "thinker/0") << DONE

    def test_f4_one_that_dies_while_it_is_drained_comes_back_drained(self) -> None:
        """And its requests go on elsewhere, as after any death."""
        play = busy(replicas=2)
        assert play >> play.orders("operator", "drain", "thinker/0")
        _ = play >> play.dies("thinker/0") << to("thinker/1", PeerLost)
        _ = play << DONE << to("thinker/1", SubmitStage, attempt=2)
        assert play
        assert play.starts("thinker/0") == []
        assert state(play) == "draining"
        assert play >> play.submits("bob", "other") << to("thinker/1", SubmitStage)
        assert play >> play.orders("operator", "resume", "thinker/0") << DONE
        assert state(play) == "ready"

    def test_f4_it_does_not_wait_for_ever(self) -> None:
        play = busy(replicas=2)
        assert play >> play.orders("operator", "drain", "thinker/0", timeout_s=5.0)
        assert play.waits(5)
        text = "1 request is left on thinker/0 after 5 s; it takes no new ones and is still draining"
        error = ErrorInfo("unavailable", text, "thinker", "thinker/0", True)
        assert play.waits(1) << to("operator", Operated, call=1, error=error)
        assert play >> play.submits("bob", "other") << to("thinker/1", SubmitStage)

    def test_f4_one_that_was_left_behind_counts(self) -> None:
        play = busy(replicas=2)
        _ = play.brings(ClientSent(b"carol", wire.Abort(1, "demo")))
        assert play >> play.orders("operator", "drain", "thinker/0")
        assert play.waits(6) << to("alice", Terminal, finish_reason="abort")
        assert play >> play.finishes("thinker/0", REQUEST, "abort") << DONE


class TestF2Restart:
    def test_f2_it_waits_for_its_requests_then_ends_it_then_for_the_next_one(self) -> None:
        play = busy(replicas=2)
        assert begin_restart(play)
        assert play >> play.submits("bob", "other") << to("thinker/1", SubmitStage)
        ends(play)
        assert play
        ends_its_process(play)
        assert play >> ReplicaStarting("thinker/0", 2, 4711)
        assert play.starts("thinker/0") == [DONE]
        assert state(play) == "ready"
        assert play.counts("replicas_lost") == play.counts("redriven") == 0

    def test_f2_requests_are_queued_meanwhile_though_it_is_the_only_one(self) -> None:
        """F4: unavailable at once; but this one is about to be back."""
        play = busy()
        assert begin_restart(play)
        assert play >> play.submits("bob", "other")
        ends(play)
        assert play
        ends_its_process(play)
        assert play >> play.submits("bob", "third")
        assert play.waiting == [rid("other"), rid("third")]
        came = play.starts("thinker/0")
        assert came == [DONE, *(to("thinker/0", SubmitStage, request_id=rid(name)) for name in ("other", "third"))]

    def test_f2_what_it_has_sent_is_read_first(self) -> None:
        """Its ring goes with it: a heartbeat after its last report has to say that nobody needs that any more."""
        play = thinkers(1, graph=TWO)
        assert begin_restart(play)
        play.now += 0.5
        for used, spilled in ((8, 0), (0, 8)):
            rings = [wire.RingUse("voice", 64, used, spilled)]
            assert play >> WorkerSent("thinker/0", 1, wire.Heartbeat(1, "idle", 0, "", rings, 0, 0, 0))
        assert play >> play.beats("thinker/0") << effect(RestartReplica)

    def test_f2_one_that_is_idle_and_only_has_to_say_so_is_not_late(self) -> None:
        play = thinkers(1)
        play.silent.add("thinker/0")
        assert begin_restart(play, timeout_s=0.0)
        assert play.waits(3)
        assert play >> play.beats("thinker/0") << effect(RestartReplica)

    def test_f2_one_whose_ring_is_not_read_in_time_serves_on(self) -> None:
        play = thinkers(1, graph=TWO)
        play.silent.add("thinker/0")
        assert begin_restart(play, timeout_s=5.0)
        play.now += 0.5
        rings = [wire.RingUse("voice", 64, 8, 1)]
        assert play >> WorkerSent("thinker/0", 1, wire.Heartbeat(1, "idle", 0, "", rings, 0, 0, 0))
        assert play.waits(4)
        text = "9 bytes that thinker/0 has sent are still in use by their consumers after 5 s; it was not restarted"
        error = ErrorInfo("unavailable", text, "thinker", "thinker/0", True)
        assert play.waits(1) << to("operator", Operated, call=1, error=error)

    def test_f2_a_heartbeat_from_before_says_nothing(self) -> None:
        play = busy()
        assert begin_restart(play)
        assert play >> play.beats("thinker/0")
        assert ends(play)
        assert play >> play.beats("thinker/0"), "it may have been sent before the report"
        play.now += 0.5
        assert play >> play.beats("thinker/0") << effect(RestartReplica)

    def test_f2_it_is_told_once(self) -> None:
        play = thinkers(1)
        assert begin_restart(play)
        play.now += 0.5
        assert play >> play.beats("thinker/0") << effect(RestartReplica)
        assert play >> play.beats("thinker/0")
        assert play.waits(60)

    def test_f2_a_stage_one_after_another(self) -> None:
        play = thinkers(2)
        assert begin_restart(play, "thinker")
        assert (state(play), state(play, "thinker/1")) == ("draining", "ready")
        ends_its_process(play)
        assert play >> play.submits("alice") << to("thinker/1", SubmitStage), "somebody always serves"
        assert play.starts("thinker/0") == []
        assert (state(play), state(play, "thinker/1")) == ("ready", "draining")
        assert ends(play, "thinker/1")
        ends_its_process(play, "thinker/1")
        assert play.starts("thinker/1") == [DONE]
        assert play.core.operations._orders == []

    @pytest.mark.parametrize("comes_back", [True, False])
    def test_f2_when_the_deployment_stops_whoever_was_told_to_come_back_is_waited_for(self, comes_back: bool) -> None:
        """What was taken in is still driven there. No other replica's turn follows, and nobody waits for who failed."""
        play = busy(replicas=2)
        assert begin_restart(play, "thinker", timeout_s=0.0, force=True)
        assert play.waits(1) << effect(RestartReplica, replica="thinker/0")
        assert play >> play.dies("thinker/1") << to("thinker/0", PeerLost)
        assert play >> DrainAsked() << to("operator", Operated, call=1)
        assert play >> play.dies("thinker/0", "restarted")
        assert play.waiting == [REQUEST]
        if comes_back:
            assert play.starts("thinker/0") == [to("thinker/0", SubmitStage, attempt=2)]
            assert play.status()["stages"]["thinker"]["replicas"][0]["returning"] is False
        else:
            assert play >> ReplicaStarting("thinker/0", 2, 1002)
            assert play >> play.dies("thinker/0", "exit code 1") << to("alice", Terminal) << effect(Drained)
        assert len(play.core.operations) == 0

    def test_b3_when_the_deployment_stops_no_order_is_left_that_nothing_ends(self) -> None:
        """A restart whose replica has not been told to end, and a drain."""
        play = busy(replicas=2)
        assert begin_restart(play)
        assert play >> play.submits("bob", "other") << to("thinker/1", SubmitStage)
        assert play >> play.orders("carol", "drain", "thinker/1", call=7)
        assert len(play.core.operations) == 2
        assert play >> DrainAsked() << to("operator", Operated, call=1) << to("carol", Operated, call=7)
        assert len(play.core.operations) == 0
        assert (state(play), state(play, "thinker/1")) == ("ready", "draining")

    def test_f2_who_does_not_end_in_time_stops_it_and_all_serve_as_before(self) -> None:
        play = busy(replicas=2)
        assert begin_restart(play, "thinker", timeout_s=5.0)
        assert play.waits(5)
        text = "1 request is left on thinker/0 after 5 s; it was not restarted"
        error = ErrorInfo("unavailable", text, "thinker", "thinker/0", True)
        assert play.waits(1) << to("operator", Operated, call=1, error=error)
        assert (state(play), state(play, "thinker/1")) == ("ready", "ready")
        assert play >> play.submits("bob", "a") << to("thinker/1", SubmitStage)
        assert play >> play.submits("bob", "b") << to("thinker/0", SubmitStage)

    def test_f2_with_force_it_is_ended_there_and_driven_anew(self) -> None:
        play = busy(replicas=1)
        assert begin_restart(play, timeout_s=5.0, force=True)
        assert play.waits(5)
        assert play.waits(1) << effect(RestartReplica, replica="thinker/0", incarnation=1)
        assert play >> play.dies("thinker/0", "restarted")
        assert play.waiting == [REQUEST]
        came = play.starts("thinker/0")
        assert came == [DONE, to("thinker/0", SubmitStage, attempt=2)], "though the policy is `other`: it is back"
        assert play.counts("redriven") == 1
        assert play.counts("replicas_lost") == 0

    def test_f2_with_force_and_never_it_ends_with_replica_lost(self) -> None:
        play = busy(replicas=1, redrive="never")
        assert begin_restart(play, timeout_s=0.0, force=True)
        assert play.waits(1) << effect(RestartReplica)
        assert play >> play.dies("thinker/0", "restarted") << to("alice", Terminal, finish_reason="error")

    def test_f2_one_that_dies_while_it_is_drained_is_restarted_by_that(self) -> None:
        """A death all the same."""
        play = busy(replicas=2)
        assert begin_restart(play)
        _ = play >> play.dies("thinker/0") << to("thinker/1", PeerLost)
        assert play << to("thinker/1", SubmitStage, attempt=2)
        assert play.counts("replicas_lost") == 1
        assert play.starts("thinker/0") == [DONE]

    def test_f2_one_whose_new_process_dies_did_not_come_back(self) -> None:
        """And who waits for it hears so."""
        play = thinkers(1)
        assert begin_restart(play)
        ends_its_process(play)
        assert play >> play.submits("alice")
        assert play >> ReplicaStarting("thinker/0", 2, 4711)
        text = "thinker/0 did not come back: its process ended before it was ready (see its log)"
        error = ErrorInfo("unavailable", text, "thinker", "thinker/0", True)
        _ = play >> play.dies("thinker/0", "exit status 3") << to("operator", Operated, call=1, error=error)
        assert play << to("alice", Terminal, finish_reason="error")
        assert play.counts("replicas_lost") == 1, "that one was not on purpose"
        assert play >> play.submits("alice") << to("alice", Refused)
        assert play.starts("thinker/0") == []
        assert play >> play.submits("alice") << to("thinker/0", SubmitStage)

    def test_f2_one_that_loads_for_too_long_neither(self) -> None:
        play = RouterPlay(config("thinker:text", stages={"thinker": {"start_timeout_s": 20.0}}))
        assert begin_restart(play)
        ends_its_process(play)
        assert play >> ReplicaStarting("thinker/0", 2, 4711)
        assert play.waits(20)
        assert play.waits(1) << effect(KillReplica) << to("operator", Operated, call=1)

    def test_f2_the_rest_of_a_stage_is_left_alone_then(self) -> None:
        play = thinkers(2)
        assert begin_restart(play, "thinker")
        ends_its_process(play)
        assert play >> ReplicaStarting("thinker/0", 2, 4711)
        _ = play >> play.dies("thinker/0", "exit status 3") << to("thinker/1", PeerLost) << to("operator", Operated)
        assert play
        assert state(play, "thinker/1") == "ready"

    def test_f2_a_dead_one_is_awaited(self) -> None:
        play = thinkers(2)
        assert play >> play.dies("thinker/0") << to("thinker/1", PeerLost)
        assert begin_restart(play)
        assert play.starts("thinker/0") == [DONE]

    def test_f2_so_is_one_that_starts(self) -> None:
        play = thinkers(2)
        assert play >> play.dies("thinker/0") << to("thinker/1", PeerLost)
        assert play >> ReplicaStarting("thinker/0", 2, 4711)
        assert begin_restart(play)
        assert play >> play.beats("thinker/0") << effect(ReplicaReady) << DONE

    def test_f2_a_restart_brings_a_drained_one_back_into_service(self) -> None:
        play = thinkers(1)
        assert play >> play.orders("operator", "drain", "thinker/0") << DONE
        assert begin_restart(play)
        ends_its_process(play)
        assert play.starts("thinker/0") == [DONE]
        assert state(play) == "ready"

    def test_f2_whoever_gave_the_order_need_not_stay(self) -> None:
        play = busy(replicas=2)
        assert begin_restart(play)
        assert play >> ClientGone(b"operator", "its process ended")
        assert ends(play)
        ends_its_process(play)
        assert play.starts("thinker/0") == [DONE], "nobody hears it"

    def test_f2_two_at_different_stages_at_once(self) -> None:
        play = thinkers(1, graph=TWO)
        assert begin_restart(play)
        assert begin_restart(play, "voice/0", call=2)
        ends_its_process(play)
        ends_its_process(play, "voice/0")
        assert play.starts("voice/0") == [to("operator", Operated, call=2, error=None)]
        assert play.starts("thinker/0") == [DONE]


class TestTheDeploymentStops:
    @pytest.mark.parametrize("action", ["drain", "restart"])
    def test_every_order_is_answered(self, action: str) -> None:
        play = busy(replicas=2)
        assert play >> play.orders("operator", action, "thinker/0")
        error = ErrorInfo("unavailable", "the deployment is stopping", None, None, True)
        assert play >> DrainAsked() << to("operator", Operated, call=1, error=error)
        assert ends(play) << effect(Drained)

    def test_a_stop_says_why(self) -> None:
        play = busy(replicas=2)
        assert begin_restart(play)
        error = ErrorInfo("unavailable", "enough", None, None, True)
        effects, _ = play.brings(StopAsked("enough"))
        assert effects[0] == to("operator", Operated, call=1, error=error)

    def test_who_waits_for_a_restart_that_will_not_be_is_served(self) -> None:
        play = busy()
        assert begin_restart(play)
        assert play >> play.submits("bob", "other")
        _ = play >> DrainAsked() << to("operator", Operated)
        assert play << to("thinker/0", SubmitStage, request_id=rid("other"))


class TestF2AsBefore:
    """A restart that came to nothing has changed nothing."""

    def test_f2_one_that_was_drained_stays_out_of_service(self) -> None:
        play = RouterPlay(config("thinker:text", stages={"thinker": {"replicas": 2}}))
        assert play >> play.submits("alice", "a") << to("thinker/0", SubmitStage)
        assert play >> play.orders("operator", "drain", "thinker/0", timeout_s=100)
        play.waits(101)
        _ = play << to("operator", Operated)
        assert play >> play.orders("operator", "restart", "thinker/0", timeout_s=1)
        play.waits(2)
        _ = play << to("operator", Operated)
        replica = play.core.pools.replicas["thinker/0"]
        assert (replica.state, replica.drained, replica.returning) == ("draining", True, False)
        assert play >> play.submits("alice", "b") << to("thinker/1", SubmitStage)

    def test_b2_who_waits_for_a_replica_to_come_back_keeps_no_places(self) -> None:
        """A text-only request goes on, however long the restart of the voice takes."""
        play = RouterPlay(config("thinker:text > voice:audio"))
        assert play >> play.orders("operator", "restart", "voice/0", timeout_s=1000)
        play.waits(2)
        _ = play << effect(RestartReplica, replica="voice/0")
        assert play >> play.dies("voice/0", "restarted") << to("thinker/0", wire.PeerLost)
        assert play >> play.submits("alice", "both")
        play.waits(60)
        assert play
        assert play >> play.submits("alice", "words", modalities=["text"]) << to("thinker/0", SubmitStage)


class TestF2LaterOrders:
    def test_f2_a_drain_that_nobody_can_wait_for_is_undone_by_a_resume(self) -> None:
        play = busy()
        assert play >> play.orders("operator", "drain", "thinker/0", timeout_s=3600)
        text = "thinker/0: a later resume has ended the drain"
        ended = ErrorInfo("unavailable", text, None, None, True)
        play >> play.orders("other", "resume", "thinker/0", call=2)
        assert play << to("operator", Operated, error=ended) << to("other", Operated, call=2, error=None)
        assert state(play) == "ready"

    def test_f2_a_forced_restart_takes_a_drains_place(self) -> None:
        play = busy()
        assert play >> play.orders("operator", "drain", "thinker/0", timeout_s=3600)
        play >> play.orders("other", "restart", "thinker/0", timeout_s=0.0, force=True, call=2)
        _ = play << to("operator", Operated, call=1)
        play.waits(1)
        assert play << effect(RestartReplica, replica="thinker/0")

    @pytest.mark.parametrize("timeout_s", [-1.0, 86_401.0, float("nan"), float("inf")])
    @pytest.mark.parametrize("action", ["drain", "restart", "resume"])
    def test_a_time_limit_that_is_none_is_refused(self, action: str, timeout_s: float) -> None:
        refused(busy(), action, "thinker/0", code="invalid_request", match="0 to 86400 seconds", timeout_s=timeout_s)

    def test_f2_an_order_that_is_refused_ends_no_drain(self) -> None:
        play = busy(2)
        assert play >> play.submits("alice", "b") << to("thinker/1", SubmitStage)
        assert play >> play.orders("operator", "drain", "thinker/0", timeout_s=3600)
        assert play >> play.orders("other", "restart", "thinker/1", timeout_s=3600, call=2)
        refused(play, "restart", "thinker", code="unavailable", match="a restart is under way", call=3)
        assert play.core.pools.replicas["thinker/0"].drained
