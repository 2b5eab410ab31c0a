"""What an operator's order leaves behind: in whose service a replica is afterwards, and what a refusal counts."""

from __future__ import annotations

from typing import Any

from support.pipelines import config
from support.playbook import RouterPlay, effect, rid, to

from omnizmq import protocol as wire
from omnizmq.protocol import Operated, Refused, SubmitStage
from omnizmq.router.messages import DrainAsked, RestartReplica, ToClient, WorkerSent
from omnizmq.router.pools import Replica

DONE = to("operator", Operated, call=1, error=None)


def thinkers(replicas: int, graph: str = "thinker:text", **stage: Any) -> RouterPlay:
    return RouterPlay(config(graph, stages={"thinker": {"replicas": replicas, **stage}}))


def thinker(play: RouterPlay) -> Replica:
    return play.core.pools.replicas["thinker/0"]


def restarted(play: RouterPlay) -> RouterPlay:
    """The only thinker, which is idle, from the order to its next incarnation."""
    assert play >> play.orders("operator", "restart", "thinker/0")
    play.now += 0.5
    assert play >> play.beats("thinker/0") << effect(RestartReplica)
    assert play >> play.dies("thinker/0", "restarted")
    assert play.starts("thinker/0") == [DONE]
    return play


def test_f4_a_restart_that_has_ended_excuses_no_later_death() -> None:
    """Nobody wants it to return any more, so requests are refused at once."""
    play = restarted(thinkers(1))
    assert not thinker(play).returning
    assert play >> play.dies("thinker/0")
    assert play >> play.submits("alice") << to("alice", Refused)


def test_f4_one_that_was_resumed_serves_also_in_its_next_incarnation() -> None:
    play = thinkers(1)
    assert play >> play.orders("operator", "drain", "thinker/0") << DONE
    assert play >> play.orders("operator", "resume", "thinker/0") << DONE
    assert play >> play.dies("thinker/0")
    assert play.starts("thinker/0") == []
    assert thinker(play).state == "ready"
    assert play >> play.submits("alice") << to("thinker/0", SubmitStage)


def test_f4_a_drain_that_the_deployments_stop_cuts_short_brings_nobody_back_into_service() -> None:
    play = thinkers(2)
    assert play >> play.submits("alice") << to("thinker/0", SubmitStage)
    assert play >> play.orders("operator", "drain", "thinker/0")
    assert play >> DrainAsked() << to("operator", Operated, call=1)
    assert (thinker(play).state, thinker(play).drained) == ("draining", True)


def test_f2_a_restart_that_was_late_for_requests_counts_requests_and_not_bytes() -> None:
    """The ring of one that still computes is seldom empty."""
    play = thinkers(1, "thinker:text > voice:audio")
    play.silent.add("thinker/0")
    _ = play >> play.submits("alice") << to("voice/0", SubmitStage)
    assert play
    assert play >> play.registers("voice/0", rid("demo")) << to("thinker/0", SubmitStage)
    assert play >> play.orders("operator", "restart", "thinker/0", timeout_s=5.0)
    rings = [wire.RingUse("voice", 64, 8, 1)]
    assert play >> WorkerSent("thinker/0", 1, wire.Heartbeat(1, "stepping", 0, "", rings, 0, 0, 0))
    assert play.waits(5)
    text = "1 request is left on thinker/0 after 5 s; it was not restarted"
    error = wire.ErrorInfo("unavailable", text, "thinker", "thinker/0", True)
    assert play.waits(1) << to("operator", Operated, call=1, error=error)


def test_f4_an_order_may_wait_for_a_day_and_no_longer() -> None:
    play = thinkers(2)
    assert play >> play.submits("alice") << to("thinker/0", SubmitStage)
    (answer,), _ = play.brings(play.orders("operator", "drain", "thinker/0", timeout_s=86_400.5))
    assert isinstance(answer, ToClient)
    assert isinstance(answer.frame, Operated)
    assert answer.frame.error is not None
    assert answer.frame.error.code == "invalid_request"
    assert play >> play.orders("operator", "drain", "thinker/0", timeout_s=86_400.0)
    assert thinker(play).state == "draining"
