"""F1-F4, R3, B2's deadlines, B3: what goes wrong, in the router."""

from __future__ import annotations

import math

import msgspec
import pytest
from support.pipelines import SPEECH, config
from support.playbook import RouterPlay, effect, rid, to

from omnizmq.protocol import (
    Abort,
    AbortAck,
    AbortStage,
    Delivery,
    ErrorInfo,
    Operated,
    PeerLost,
    Refused,
    SubmitStage,
    Terminal,
)
from omnizmq.router.messages import ClientSent, KillReplica, ReplicaExited, ReplicaStarting, Ticked, WorkerSent
from omnizmq.router.pools import State
from omnizmq.router.request import Request

REQUEST = rid("demo")
BROKEN = ErrorInfo("stage_error", "it broke", "thinker", "thinker/0", False)


def one_stage(*, router: dict[str, object] | None = None, **stage: object) -> RouterPlay:
    return RouterPlay(config("thinker:text", stages={"thinker": stage}, router=router or {}))


def aborting() -> RouterPlay:
    """Alice has aborted hers, and the thinker has not confirmed."""
    play = one_stage()
    assert play >> play.submits("alice") << to("thinker/0", SubmitStage)
    abort = ClientSent(b"alice", Abort(1, "demo"))
    assert play >> abort << to("thinker/0", AbortStage) << to("alice", AbortAck)
    return play


def sleeps(play: RouterPlay) -> RouterPlay:
    """A second passes, and then an hour in which the router itself is stopped."""
    assert play.waits(1)
    play.now += 3600
    return play >> Ticked()


def two_requests() -> RouterPlay:
    play = one_stage()
    for client, name in (("alice", "demo"), ("bob", "other")):
        assert play >> play.submits(client, name) << to("thinker/0", SubmitStage)
        assert play >> play.registers("thinker/0", rid(name))
    return play


def other_is_well(play: RouterPlay) -> None:
    """Bob's request ends as if nothing had happened."""
    _ = play >> play.makes("thinker/0", rid("other"), 1, "Hi", last=True) << to("bob", Delivery)
    assert play
    assert play >> play.finishes("thinker/0", rid("other"), outputs=1) << to("bob", Terminal, finish_reason="stop")


class TestF1OneRequestAlone:
    def test_a_stages_error_ends_its_own_request_with_code_stage_replica_and_retriable(self) -> None:
        play = two_requests()
        error = ErrorInfo("incomplete_input", "a chunk is missing", "thinker", "thinker/0", True)
        assert play >> play.finishes("thinker/0", REQUEST, None, error=error) << to("alice", Terminal, error=error)
        other_is_well(play)
        assert play.is_empty()

    def test_the_replica_is_named_though_its_report_does_not(self) -> None:
        play = two_requests()
        error = ErrorInfo("stage_error", "it broke", "thinker", None, False)
        located = ErrorInfo("stage_error", "it broke", "thinker", "thinker/0", False)
        assert play >> play.finishes("thinker/0", REQUEST, None, error=error) << to("alice", Terminal, error=located)
        assert [fact.detail["error_replica"] for fact in play.facts if fact.event == "terminal"] == ["thinker/0"]

    def test_a_frame_that_nobody_should_have_sent_fails_its_request_alone(self) -> None:
        play = two_requests()
        _ = play >> play.makes("thinker/0", REQUEST, 5, "Hi")
        _ = play << to("alice", Terminal, finish_reason="error") << to("thinker/0", AbortStage, request_id=REQUEST)
        assert play
        assert play.counts("bad_frames") == 1
        other_is_well(play)

    def test_an_exception_in_the_router_fails_its_request_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The submission to the second stage cannot be built; the first stage is aborted, the third never asked."""
        real = Request.submission

        def broken(self: Request, stage: str, pools: object) -> SubmitStage:
            if (self.submit.external_id, stage) == ("demo", "talker"):
                raise KeyError(stage)
            return real(self, stage, pools)  # type: ignore[arg-type]

        monkeypatch.setattr(Request, "submission", broken)
        play = RouterPlay(config(SPEECH))
        for client, name in (("alice", "demo"), ("bob", "other")):
            assert play >> play.submits(client, name) << to("code2wav/0", SubmitStage)
        text = "the router failed on this request: KeyError: 'talker'"
        error = ErrorInfo("internal_error", text, None, None, False)
        _ = play >> play.registers("code2wav/0", REQUEST) << to("alice", Terminal, error=error)
        assert play << to("code2wav/0", AbortStage, request_id=REQUEST)
        assert play.counts("router_errors") == 1
        submitted = [fact.stage for fact in play.facts if (fact.request_id, fact.event) == (REQUEST, "submitted")]
        assert submitted == ["code2wav"], "what did not happen is no fact"
        assert play >> play.finishes("code2wav/0", REQUEST, "abort")
        assert play >> play.registers("code2wav/0", rid("other")) << to("talker/0", SubmitStage)
        assert play.live == [rid("other")]
        assert play.status()["bindings"] == 3

    def test_nor_does_one_in_the_lifecycle(self, monkeypatch: pytest.MonkeyPatch) -> None:
        play = two_requests()
        lifecycle = play.request(REQUEST).attempt.lifecycle
        monkeypatch.setattr(lifecycle, "_registered", lambda _: 1 / 0)
        text = "the router failed on this request: ZeroDivisionError: division by zero"
        error = ErrorInfo("internal_error", text, None, None, False)
        _ = play >> play.registers("thinker/0", REQUEST) << to("alice", Terminal, error=error)
        assert play << to("thinker/0", AbortStage, request_id=REQUEST)
        other_is_well(play)


class TestR3TheSameErrorWhicheverReportIsFirst:
    @pytest.mark.parametrize("order", [("thinker", "talker", "code2wav"), ("code2wav", "talker", "thinker")])
    def test_the_producers_own(self, order: tuple[str, ...]) -> None:
        """The thinker failed; the talker and code2wav heard of it on their edges and report the same error."""
        play = RouterPlay(config(SPEECH))
        assert play >> play.submits("alice") << to("code2wav/0", SubmitStage)
        assert play >> play.registers("code2wav/0", REQUEST) << to("talker/0", SubmitStage)
        assert play >> play.registers("talker/0", REQUEST) << to("thinker/0", SubmitStage)
        assert play >> play.registers("thinker/0", REQUEST)
        _ = play >> play.finishes(f"{order[0]}/0", REQUEST, None, error=BROKEN) << to("alice", Terminal, error=BROKEN)
        for stage in ("thinker", "talker", "code2wav"):
            if stage != order[0]:
                _ = play << to(f"{stage}/0", AbortStage)
        assert play
        for stage in order[1:]:
            assert play >> play.finishes(f"{stage}/0", REQUEST, None, error=BROKEN)
        assert play.is_empty()


class TestF2AReplicaThatDies:
    def test_the_requests_that_are_unfinished_there_end_with_replica_lost(self) -> None:
        play = RouterPlay(config(SPEECH, stages={"talker": {"replicas": 2}}, router={"redrive": "never"}))
        for client, name, talker in (("alice", "demo", "talker/0"), ("bob", "other", "talker/1")):
            assert play >> play.submits(client, name) << to("code2wav/0", SubmitStage)
            assert play >> play.registers("code2wav/0", rid(name)) << to(talker, SubmitStage)
        error = ErrorInfo("replica_lost", "talker/0 died: killed by SIGKILL", "talker", "talker/0", True)
        _ = play >> play.dies("talker/0")
        for peer in ("thinker/0", "talker/1", "code2wav/0"):
            _ = play << to(peer, PeerLost, replica="talker/0", incarnation=1)
        _ = play << to("alice", Terminal, error=error) << to("code2wav/0", AbortStage, request_id=REQUEST)
        assert play
        assert play.live == [REQUEST, rid("other")], "the first one until code2wav has confirmed"

    def test_those_that_have_finished_there_go_on(self) -> None:
        play = RouterPlay(config("thinker:text > voice:audio"))
        assert play >> play.submits("alice") << to("voice/0", SubmitStage)
        assert play >> play.registers("voice/0", REQUEST) << to("thinker/0", SubmitStage)
        assert play >> play.registers("thinker/0", REQUEST)
        assert play >> play.finishes("thinker/0", REQUEST) << to("alice", Delivery)
        assert play >> play.dies("thinker/0") << to("voice/0", PeerLost)
        _ = play >> play.finishes("voice/0", REQUEST) << to("alice", Delivery)
        assert play << to("alice", Terminal, finish_reason="stop", usage_incomplete=[])

    def test_one_that_was_bound_and_not_submitted_yet_ends_too(self) -> None:
        play = RouterPlay(config("thinker:text > voice:audio"))
        assert play >> play.submits("alice") << to("voice/0", SubmitStage)
        _ = play >> play.dies("thinker/0") << to("voice/0", PeerLost)
        _ = play << to("alice", Terminal, finish_reason="error", usage_incomplete=["voice"])
        assert play << to("voice/0", AbortStage)
        assert play >> play.finishes("voice/0", REQUEST, "abort")
        assert play.is_empty()

    def test_silence_is_death(self) -> None:
        play = one_stage()
        assert play >> play.submits("alice") << to("thinker/0", SubmitStage)
        play.silent.add("thinker/0")
        assert play.waits(10)
        assert play.waits(1) << effect(KillReplica, replica="thinker/0", incarnation=1, why="silent for 11.0 s")
        assert play.waits(60), "it is killed once"
        assert play.status()["stages"]["thinker"]["replicas"][0]["state"] == "stuck"
        assert play >> play.submits("bob", "next") << to("bob", Refused), "nothing more is bound to it"
        assert play >> play.dies("thinker/0") << to("alice", Terminal, finish_reason="error")

    def test_a_step_that_takes_too_long_is_stuck(self) -> None:
        play = one_stage(step_timeout_s=20.0)
        began = play.now
        play.silent.add("thinker/0")
        for _ in range(4):
            assert play >> play.beats("thinker/0", "stepping", since=began)
            assert play.waits(5)
        assert play >> play.beats("thinker/0", "stepping", since=began)
        assert play.waits(1), "at its last heartbeat it was not, and the step may have ended since"
        assert play >> play.beats("thinker/0", "stepping", since=began)
        assert play.waits(1) << effect(KillReplica, why="stuck in a step for 21.0 s")

    def test_one_that_says_that_it_is_broken_is_killed_and_gets_nothing_more(self) -> None:
        play = one_stage()
        assert play >> play.submits("alice") << to("thinker/0", SubmitStage)
        broken = play.beats("thinker/0", "failed")
        assert play >> broken << effect(KillReplica, replica="thinker/0", incarnation=1, why="broken: failed")
        assert play >> broken, "it is killed once"
        assert play >> play.submits("bob", "next") << to("bob", Refused)
        assert play >> play.dies("thinker/0") << to("alice", Terminal, finish_reason="error")

    def test_an_engine_that_is_idle_for_long_is_not(self) -> None:
        play = one_stage(step_timeout_s=20.0)
        began = play.now
        play.silent.add("thinker/0")
        for _ in range(30):
            assert play >> play.beats("thinker/0", "idle", since=began)
            assert play.waits(5)

    def test_loading_has_a_limit_of_its_own(self) -> None:
        play = RouterPlay(config("thinker:text", stages={"thinker": {"start_timeout_s": 60.0}}), ready=False)
        assert play >> ReplicaStarting("thinker/0", 1, 4711)
        assert play.waits(60), "though it says nothing for longer than a heartbeat's timeout"
        assert play.waits(1) << effect(KillReplica, why="not ready after 61 s")

    def test_when_the_router_itself_was_stopped_nobody_else_was_silent_or_stuck(self) -> None:
        """Its workers' heartbeats of meanwhile still wait in the socket when it ticks again."""
        play = one_stage(step_timeout_s=20.0)
        assert play.waits(5)
        assert play >> play.beats("thinker/0", "stepping")
        play.now += 3600
        play.silent.add("thinker/0")
        assert play.waits(1)
        assert play.waits(9), "a whole timeout again"
        assert play.waits(2) << effect(KillReplica)


class TestF2TheRoutersOwnSleep:
    """It could not see what others did meanwhile, so nobody has lost time by it, but for a caller's own deadline."""

    def test_f2_an_abort_is_not_left_behind(self) -> None:
        play = aborting()
        assert sleeps(play), "the worker's confirmation is still in the socket"
        assert play >> play.finishes("thinker/0", REQUEST, "abort") << to("alice", Terminal, usage={"thinker": {}})
        assert play.is_empty()

    def test_f2_nor_are_its_five_seconds_longer_than_that(self) -> None:
        play = aborting()
        assert sleeps(play)
        assert play.waits(3)
        assert play.waits(1) << to("alice", Terminal, usage_incomplete=["thinker"])

    def test_c5_a_withheld_terminal_still_waits_for_its_usage(self) -> None:
        play = one_stage()
        assert play >> play.submits("alice") << to("thinker/0", SubmitStage)
        assert play >> play.registers("thinker/0", REQUEST)
        assert play >> play.makes("thinker/0", REQUEST, 1, "Hi", last=True) << to("alice", Delivery)
        assert sleeps(play)
        _ = play >> play.finishes("thinker/0", REQUEST, outputs=1, usage={"tokens": 1})
        assert play << to("alice", Terminal, finish_reason="stop", usage={"thinker": {"tokens": 1}})

    def test_f2_a_request_still_waits_for_its_replica(self) -> None:
        play = one_stage(router={"redrive": "wait", "redrive_wait_s": 20.0})
        assert play >> play.submits("alice") << to("thinker/0", SubmitStage)
        assert play >> play.dies("thinker/0")
        assert sleeps(play)
        assert play.waiting == [REQUEST]
        assert play.waits(18)
        assert play.waits(1) << to("alice", Terminal)

    def test_f2_an_operator_still_has_his_timeout(self) -> None:
        play = one_stage()
        assert play >> play.submits("alice") << to("thinker/0", SubmitStage)
        assert play >> play.orders("carol", "drain", "thinker/0", timeout_s=10)
        assert sleeps(play)
        assert play.waits(10) << to("carol", Operated)

    def test_b2_a_callers_deadline_stands(self) -> None:
        play = one_stage()
        assert play >> play.submits("alice", deadline_s=60.0) << to("thinker/0", SubmitStage)
        assert sleeps(play) << to("alice", Terminal) << to("thinker/0", AbortStage)


class TestF3EarlierAttemptsAndDeadIncarnations:
    def test_a_dead_incarnation_is_not_heard(self) -> None:
        play = one_stage()
        assert play >> play.submits("alice") << to("thinker/0", SubmitStage)
        ghost = [
            play.registers("thinker/0", REQUEST),
            play.makes("thinker/0", REQUEST, 1, "Hi"),
            play.finishes("thinker/0", REQUEST),
            play.beats("thinker/0"),
        ]
        assert play >> play.dies("thinker/0") << to("alice", Terminal)
        for frame in ghost:
            assert play >> frame
        assert play.counts("late_frames") == 4
        play.starts("thinker/0")
        assert play >> play.submits("alice") << to("thinker/0", SubmitStage, attempt=1)
        for frame in ghost:
            assert play >> frame
        assert play.counts("late_frames") == 8
        assert play.status()["bindings"] == 1, "a ghost's report frees no place of its successor"

    def test_nor_is_a_frame_that_lies_about_its_incarnation(self) -> None:
        play = one_stage()
        assert play >> play.submits("alice") << to("thinker/0", SubmitStage)
        sent = play.registers("thinker/0", REQUEST)
        for incarnation in (0, 2):
            lie = msgspec.structs.replace(sent.frame, incarnation=incarnation)
            assert play >> WorkerSent("thinker/0", 1, lie)
        assert play.counts("late_frames") == 2

    @pytest.mark.parametrize("attempt", [-1, 0, 2, 2**63])
    def test_another_attempt_is_not_heard_and_frees_nothing(self, attempt: int) -> None:
        play = one_stage()
        assert play >> play.submits("alice") << to("thinker/0", SubmitStage)
        assert play >> play.registers("thinker/0", REQUEST, attempt)
        assert play >> play.finishes("thinker/0", REQUEST, attempt=attempt)
        assert play.counts("late_frames") == 2
        assert play.status()["bindings"] == 1
        assert play >> play.dies("thinker/0") << to("alice", Terminal, finish_reason="error"), "it is still bound"

    def test_a_replica_speaks_for_its_own_requests_only(self) -> None:
        play = one_stage(replicas=2)
        assert play >> play.submits("alice") << to("thinker/0", SubmitStage)
        assert play >> play.registers("thinker/1", REQUEST) >> play.finishes("thinker/1", REQUEST)
        assert play.counts("late_frames") == 2

    def test_an_exit_is_told_once(self) -> None:
        play = one_stage()
        gone = play.dies("thinker/0")
        assert play >> gone >> gone
        assert play.counts("replicas_lost") == 1
        play.starts("thinker/0")
        assert play >> gone >> ReplicaExited("thinker/0", 7, "never existed")
        assert play.core.pools.all_ready()


class TestF4NobodyToWaitFor:
    @pytest.mark.parametrize("state", ["starting", "draining", "stuck", "dead"])
    def test_new_requests_are_refused_at_once_with_a_retry_hint(self, state: State) -> None:
        play = RouterPlay(config(SPEECH))
        play.core.pools.replicas["talker/0"].state = state
        error = ErrorInfo("unavailable", "stage talker has no live replica; try again shortly", "talker", None, True)
        assert play >> play.submits("alice") << to("alice", Refused, request_id=REQUEST, error=error)
        assert play >> play.submits("alice", modalities=["text"]) << to("thinker/0", SubmitStage), (
            "that needs no talker"
        )

    def test_requests_that_wait_are_ended(self) -> None:
        play = one_stage(max_inflight=1)
        assert play >> play.submits("alice", "first") << to("thinker/0", SubmitStage)
        assert play >> play.submits("bob", "second") >> play.submits("bob", "third")
        _ = play >> play.dies("thinker/0") << to("alice", Terminal)
        unavailable = ErrorInfo(
            "unavailable", "stage thinker has no live replica; try again shortly", "thinker", None, True
        )
        for name in ("second", "third"):
            _ = play << to("bob", Terminal, request_id=rid(name), error=unavailable)
        assert play
        assert play.is_empty()

    def test_also_those_whose_other_stages_are_merely_busy(self) -> None:
        """Nobody waits for a place at the thinker when there is no voice any more."""
        play = RouterPlay(config("thinker:text > voice:audio", stages={"thinker": {"max_inflight": 1}}))
        assert play >> play.submits("alice", "first", modalities=["text"]) << to("thinker/0", SubmitStage)
        assert play >> play.submits("bob", "second")
        assert play >> play.dies("voice/0") << to("thinker/0", PeerLost) << to("bob", Terminal, finish_reason="error")

    def test_one_live_replica_of_two_is_enough(self) -> None:
        play = one_stage(replicas=2)
        assert play >> play.dies("thinker/0") << to("thinker/1", PeerLost)
        assert play.status()["ready"] is True
        assert play >> play.submits("alice") << to("thinker/1", SubmitStage)

    def test_liveness_and_readiness_are_two_answers(self) -> None:
        play = one_stage()
        assert (play.status()["ready"], play.status()["state"]) == (True, "running")
        assert play >> play.dies("thinker/0")
        assert (play.status()["ready"], play.status()["state"]) == (False, "running")


class TestB2Deadlines:
    def test_a_request_that_runs(self) -> None:
        play = one_stage()
        assert play >> play.submits("alice", deadline_s=3.0) << to("thinker/0", SubmitStage)
        assert play.waits(2.9)
        error = ErrorInfo("deadline_exceeded", "the request's deadline of 3.0 s has passed", None, None, False)
        assert play.waits(0.1) << to("alice", Terminal, error=error) << to("thinker/0", AbortStage)
        assert play >> play.finishes("thinker/0", REQUEST, "abort")
        assert play.is_empty()

    def test_one_that_waits_for_a_replica(self) -> None:
        play = one_stage(max_inflight=1)
        assert play >> play.submits("alice", "first") << to("thinker/0", SubmitStage)
        assert play >> play.submits("bob", "second", deadline_s=1.0)
        assert play.waits(1) << to("bob", Terminal, finish_reason="error")
        assert play.waiting == []

    def test_one_whose_stage_has_not_registered(self) -> None:
        play = RouterPlay(config(SPEECH))
        assert play >> play.submits("alice", deadline_s=1.0) << to("code2wav/0", SubmitStage)
        assert play.waits(1) << to("alice", Terminal, finish_reason="error") << to("code2wav/0", AbortStage)

    @pytest.mark.parametrize("deadline_s", [0.0, -0.0, -1.0, -1e300])
    def test_one_that_has_passed_already_starts_nothing(self, deadline_s: float) -> None:
        play = one_stage()
        effects, facts = play.brings(play.submits("alice", deadline_s=deadline_s))
        refused = [one.frame.error.code for one in effects if isinstance(getattr(one, "frame", None), Refused)]
        assert refused == ["deadline_exceeded"]
        assert facts == ["asked", "refused"]
        assert play.is_empty()

    @pytest.mark.parametrize("deadline_s", [math.nan, math.inf, -math.inf])
    def test_what_is_no_time_is_refused(self, deadline_s: float) -> None:
        play = one_stage()
        effects, _ = play.brings(play.submits("alice", deadline_s=deadline_s))
        refused = [one.frame.error.code for one in effects if isinstance(getattr(one, "frame", None), Refused)]
        assert refused == ["invalid_request"]
        assert play.is_empty()

    def test_one_that_ends_before_takes_its_deadline_with_it(self) -> None:
        play = one_stage()
        assert play >> play.submits("alice", deadline_s=86_400.0) << to("thinker/0", SubmitStage)
        assert play >> play.finishes("thinker/0", REQUEST, None, error=BROKEN) << to("alice", Terminal)
        assert play.core.state.timers.next() is None


class TestB3EveryTableIsEmptyAtTheEnd:
    def test_after_a_success_an_abort_an_error_a_refusal_and_a_death(self) -> None:
        play = one_stage(max_inflight=1)
        ends = {
            "success": lambda name: play.finishes("thinker/0", rid(name)),
            "error": lambda name: play.finishes("thinker/0", rid(name), None, error=BROKEN),
            "abort": lambda name: play.finishes("thinker/0", rid(name), "abort"),
        }
        for name, end in ends.items():
            assert play >> play.submits("alice", name, deadline_s=60.0) << to("thinker/0", SubmitStage)
            assert play >> play.registers("thinker/0", rid(name))
            if name == "abort":
                asked = ClientSent(b"alice", Abort(1, name))
                assert play >> asked << to("thinker/0", AbortStage) << to("alice", AbortAck)
            assert not play.is_empty()
            _ = play >> end(name)
            if name == "success":
                _ = play << to("alice", Delivery)
            assert play << to("alice", Terminal)
            assert play.is_empty()
        assert play >> play.submits("alice", "no", modalities=["smell"]) << to("alice", Refused)
        assert play >> play.submits("alice", "death", deadline_s=60.0) << to("thinker/0", SubmitStage)
        assert play >> play.submits("alice", "queued", deadline_s=60.0)
        _ = play >> play.dies("thinker/0") << to("alice", Terminal) << to("alice", Terminal)
        assert play
        assert play.is_empty()
        assert play.counts("requests") == 5
        assert (play.counts("finished"), play.counts("aborted"), play.counts("failed")) == (1, 1, 3)
        assert play.counts("refused") == 1
