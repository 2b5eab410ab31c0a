"""When the router's core wants to be told that time has passed: seldom, and often enough."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from support.pipelines import config
from support.playbook import RouterPlay, rid, to

from omnizmq.config import RouterConfig
from omnizmq.protocol import ErrorInfo, SubmitStage, Terminal
from omnizmq.router import messages as msg
from omnizmq.router.messages import Effect, KillReplica, Ticked

JITTER_S = 0.003


def play_of(**router: Any) -> RouterPlay:
    return RouterPlay(config("thinker:text", router=router))


def ticks_on(play: RouterPlay, seconds: float) -> tuple[list[float], list[Effect]]:
    """Time passes as in the router's process: a tick whenever one is wanted, a moment late. Only they are fed."""
    at: list[float] = []
    effects: list[Effect] = []
    end = play.now + seconds
    while (wanted := play.core.next_tick()) < end:
        play.now = max(play.now, wanted) + JITTER_S
        at.append(play.now)
        effects += play.brings(Ticked())[0]
    play.now = end
    return at, effects


class TestIdle:
    def test_nothing_is_wanted_more_often_than_the_heartbeat(self) -> None:
        play = play_of()
        at, _ = ticks_on(play, 60)
        pauses = [after - before for before, after in pairwise(at[1:])]
        assert len(at) == pytest.approx(60, abs=2)
        assert min(pauses) >= RouterConfig().heartbeat_interval_s

    def test_every_tick_of_an_idle_router_beats(self) -> None:
        play = play_of()
        for _ in range(8):
            play.now = max(play.now, play.core.next_tick()) + JITTER_S
            sent = [effect for effect in play.core.handle(Ticked(), play.now) if isinstance(effect, msg.ToWorker)]
            assert [effect.replica for effect in sent] == ["thinker/0"]

    def test_a_request_s_timer_is_not_waited_for_longer_than_it_takes(self) -> None:
        play = play_of()
        ticks_on(play, 5.5)
        _ = play >> play.submits("alice", deadline_s=0.25) << to("thinker/0", SubmitStage)
        assert play.core.next_tick() == play.now + 0.25

    def test_f2_nor_is_a_wait_for_a_replica_that_does_not_come_back(self) -> None:
        play = play_of(redrive="wait", redrive_wait_s=7.3)
        ticks_on(play, 5.5)
        _ = play >> play.submits("alice") << to("thinker/0", SubmitStage)
        assert play >> play.dies("thinker/0")
        died = play.now
        _, effects = ticks_on(play, 7.2)
        assert not [one for one in effects if isinstance(one, msg.ToClient)]
        play.now = play.core.next_tick()
        assert play.now == died + 7.3
        assert play >> Ticked() << to("alice", Terminal)
        assert play.is_empty()
        assert play.core.next_tick() > play.now


class TestF2Silence:
    @pytest.mark.parametrize(("interval_s", "timeout_s"), [(1.0, 10.0), (1.0, 2.0), (0.1, 1.0), (5.0, 11.0)])
    def test_f2_a_silent_worker_is_killed_within_a_heartbeat_of_its_timeout(
        self, interval_s: float, timeout_s: float
    ) -> None:
        """Also where the timeout is as short as it may be: a tick that comes a moment late excuses nobody."""
        play = play_of(heartbeat_interval_s=interval_s, heartbeat_timeout_s=timeout_s)
        _, before = ticks_on(play, timeout_s)
        _, after = ticks_on(play, interval_s + 4 * JITTER_S)
        assert [effect for effect in before if isinstance(effect, KillReplica)] == []
        assert [effect.replica for effect in after if isinstance(effect, KillReplica)] == ["thinker/0"]

    @pytest.mark.parametrize("timeout_s", [2.0, 10.0])
    def test_f2_a_router_that_slept_blames_nobody(self, timeout_s: float) -> None:
        play = play_of(heartbeat_timeout_s=timeout_s)
        ticks_on(play, 5)
        _ = play >> play.beats("thinker/0")
        play.now += timeout_s + 1
        effects, _ = play.brings(Ticked())
        assert [effect for effect in effects if isinstance(effect, KillReplica)] == []


class TestRoom:
    """Whoever waits is let in by the event that makes room, whichever that is."""

    def test_an_output_that_ends_its_request_makes_room(self) -> None:
        """What should not have come fails the first request; its second stage had not been submitted yet."""
        stages = {"thinker": {"max_inflight": 2}, "voice": {"max_inflight": 1, "max_registered": 1}}
        play = RouterPlay(config("thinker:text ~> voice:audio", stages=stages))
        assert play >> play.submits("alice", "a") << to("thinker/0", SubmitStage, request_id=rid("a"))
        assert play >> play.registers("thinker/0", rid("a"))
        assert play >> play.submits("alice", "b")
        _ = play >> play.makes("thinker/0", rid("a"), 7) << to("alice", Terminal, request_id=rid("a"))
        effects = [effect for effect in play._said if isinstance(effect, msg.ToWorker)]
        assert [type(effect.frame).__name__ for effect in effects] == ["AbortStage", "SubmitStage"]
        assert effects[1].frame.request_id == rid("b")

    def test_an_output_alone_makes_none(self) -> None:
        play = RouterPlay(config("thinker:text", stages={"thinker": {"max_inflight": 1}}))
        assert play >> play.submits("alice", "a") << to("thinker/0", SubmitStage)
        assert play >> play.registers("thinker/0", rid("a")) >> play.submits("alice", "b")
        effects, _ = play.brings(play.makes("thinker/0", rid("a"), 1, "Hi", last=True))
        assert [type(effect) for effect in effects] == [msg.ToClient]
        assert play.waiting == [rid("b")]
        error = ErrorInfo("stage_error", "it broke", "thinker", "thinker/0", False)
        _ = play >> play.finishes("thinker/0", rid("a"), None, error=error, outputs=1) << to("alice", Terminal)
        assert play << to("thinker/0", SubmitStage, request_id=rid("b"))
