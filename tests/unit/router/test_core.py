"""The router's rules beyond one request's life: the door, the queue, drains, heartbeats, what `status` shows."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from support.pipelines import SPEECH, config
from support.playbook import RouterPlay, effect, rid, submission, to
from support.properties import checked

from omnizmq import protocol as wire
from omnizmq.protocol import (
    Abort,
    AbortStage,
    Consumed,
    Delivery,
    ErrorInfo,
    FeedStage,
    OutputCredit,
    Refused,
    RelayContent,
    Status,
    SubmitStage,
    Terminal,
)
from omnizmq.router import messages as msg
from omnizmq.router.messages import (
    ClientSent,
    DrainAsked,
    Drained,
    FrameUnsendable,
    KillReplica,
    ReplicaExited,
    ReplicaFailed,
    ReplicaLoading,
    ReplicaReady,
    ReplicaStarting,
    StopAsked,
    Ticked,
    WorkerSent,
    WorkerUnreachable,
)

REQUEST = rid("demo")
BROKEN = ErrorInfo("stage_error", "it broke", "thinker", "thinker/0", False)


def one_place(**router: Any) -> RouterPlay:
    """One stage, one replica, room for one request."""
    return RouterPlay(config("thinker:text", stages={"thinker": {"max_inflight": 1}}, router=router))


def fails(play: RouterPlay, external_id: str) -> WorkerSent:
    """The shortest way for a request to leave its place."""
    return play.finishes("thinker/0", rid(external_id), None, error=BROKEN)


class TestQueue:
    def test_first_come_first_served(self) -> None:
        play = one_place()
        assert play >> play.submits("alice", "a") << to("thinker/0", SubmitStage)
        assert play >> play.submits("alice", "b") >> play.submits("alice", "c")
        for first, then in (("a", "b"), ("b", "c")):
            _ = play >> fails(play, first) << to("alice", Terminal, request_id=rid(first))
            assert play << to("thinker/0", SubmitStage, request_id=rid(then))
        queued = [fact.request_id for fact in play.facts if fact.event == "queued"]
        assert queued == [rid("b"), rid("c")]

    def test_b1_beyond_max_queued_requests_are_refused_with_a_retry_hint(self) -> None:
        play = one_place(max_queued=1)
        assert play >> play.submits("alice", "a") << to("thinker/0", SubmitStage)
        assert play >> play.submits("alice", "b")
        error = ErrorInfo(
            "overloaded", "the queue is full: 1 wait already (router.max_queued); try again shortly", None, None, True
        )
        assert play >> play.submits("alice", "c") << to("alice", Refused, request_id=rid("c"), error=error)
        assert play.live == [rid("a"), rid("b")]

    def test_without_a_queue_there_is_still_room_where_a_replica_is_free(self) -> None:
        play = one_place(max_queued=0)
        assert play >> play.submits("alice", "a") << to("thinker/0", SubmitStage)
        assert play >> play.submits("alice", "b") << to("alice", Refused)
        assert play >> fails(play, "a") << to("alice", Terminal)
        assert play >> play.submits("alice", "c") << to("thinker/0", SubmitStage)

    def test_a_full_queue_refuses_nobody_who_would_not_wait(self) -> None:
        """Those that wait need a voice; this one does not."""
        stages = {"voice": {"max_inflight": 1, "max_registered": 1}}
        play = RouterPlay(config("thinker:text > voice:audio", stages=stages, router={"max_queued": 1}))
        assert play >> play.submits("alice", "a") << to("voice/0", SubmitStage)
        assert play >> play.submits("alice", "b")
        assert play >> play.submits("alice", "c") << to("alice", Refused)
        assert play >> play.submits("alice", "d", modalities=["text"]) << to("thinker/0", SubmitStage)

    def test_who_finds_a_place_may_pass_who_does_not(self) -> None:
        stages = {"thinker": {"max_inflight": 2}, "voice": {"max_inflight": 1, "max_registered": 1}}
        play = RouterPlay(config("thinker:text > voice:audio", stages=stages))
        assert play >> play.submits("alice", "a") << to("voice/0", SubmitStage)
        assert play >> play.submits("alice", "b", modalities=["text"]) << to("thinker/0", SubmitStage)
        assert play >> play.submits("alice", "c") >> play.submits("alice", "d", modalities=["text"])
        _ = play >> fails(play, "b") << to("alice", Terminal, request_id=rid("b"))
        assert play << to("thinker/0", SubmitStage, request_id=rid("d"))

    def test_keys_that_wait_for_different_replicas_do_not_hold_each_other_up(self) -> None:
        stages = {"thinker": {"max_inflight": 1, "replicas": 2, "policy": "affinity"}}
        play = RouterPlay(config("thinker:text", stages=stages))
        places: dict[str, str] = {}
        for key in "abcdefgh":
            effects, _ = play.brings(play.submits("alice", key, affinity=key))
            places |= {effect.replica: key for effect in effects if isinstance(effect, msg.ToWorker)}
        assert len(places) == 2
        for replica, key in places.items():
            effects, _ = play.brings(play.finishes(replica, rid(key), None, error=BROKEN))
            started = [effect.replica for effect in effects if isinstance(effect, msg.ToWorker)]
            assert started == [replica], "the next that waits for this one"

    def test_ends_while_the_queue_is_gone_through(self) -> None:
        """Its replica dies: all that wait end, whatever comes between them."""
        play = one_place(redrive="never")
        assert play >> play.submits("alice", "a") << to("thinker/0", SubmitStage)
        for client, name in (("alice", "b"), ("bob", "c"), ("alice", "d")):
            assert play >> play.submits(client, name)
        assert play >> msg.ClientGone(b"alice", "its process ended") << to("thinker/0", AbortStage)
        assert play.waiting == [rid("c")]
        assert play >> play.dies("thinker/0") << to("bob", Terminal, request_id=rid("c"))
        assert play.is_empty()


class TestDrainAndStop:
    def test_a_drain_without_requests_ends_at_once(self) -> None:
        play = one_place()
        assert play >> DrainAsked() << effect(Drained)
        assert play >> Ticked() >> DrainAsked(), "and once"
        assert play.status()["state"] == "draining"
        assert play.status()["ready"] is False

    def test_it_lets_all_end_that_had_been_taken_and_takes_no_more(self) -> None:
        play = one_place()
        assert play >> play.submits("alice", "a") << to("thinker/0", SubmitStage)
        assert play >> play.submits("alice", "b") >> DrainAsked()
        error = ErrorInfo("unavailable", "the deployment is stopping and takes no new requests", None, None, True)
        assert play >> play.submits("bob", "c") << to("bob", Refused, error=error)
        assert play >> fails(play, "a") << to("alice", Terminal) << to("thinker/0", SubmitStage, request_id=rid("b"))
        assert play >> fails(play, "b") << to("alice", Terminal) << effect(Drained)

    def test_a_stop_ends_all_that_live_those_that_wait_too(self) -> None:
        play = one_place()
        assert play >> play.submits("alice", "a") << to("thinker/0", SubmitStage)
        assert play >> play.submits("bob", "b")
        error = ErrorInfo("unavailable", "enough", None, None, True)
        _ = play >> StopAsked("enough") << to("alice", Terminal, error=error) << to("thinker/0", AbortStage)
        assert play << to("bob", Terminal, error=error)
        assert play >> play.finishes("thinker/0", rid("a"), "abort") << effect(Drained)

    def test_a_stop_does_not_wait_for_what_does_not_confirm(self) -> None:
        play = one_place()
        assert play >> play.submits("alice", "a") << to("thinker/0", SubmitStage)
        assert play >> StopAsked("enough") << to("alice", Terminal) << to("thinker/0", AbortStage)
        assert play.waits(5) << effect(Drained)
        assert play.status()["leftovers"] == 1


class TestHeartbeats:
    def test_a_replica_says_what_it_loads_and_becomes_ready_once(self) -> None:
        play = RouterPlay(config("thinker:text"), ready=False)
        assert play >> ReplicaStarting("thinker/0", 1, 4711)
        assert play >> msg.WorkerJoined("thinker/0", 1, "ipc://x")
        for state in ("loading", "of a newer version"):
            assert play >> play.beats("thinker/0", state) << effect(ReplicaLoading, replica="thinker/0", text=state)
        assert play >> play.beats("thinker/0", "failed") << effect(ReplicaFailed, replica="thinker/0", why="failed")
        assert play >> play.beats("thinker/0", "stepping") << effect(ReplicaReady, replica="thinker/0")
        assert play >> play.beats("thinker/0", "idle") >> play.beats("thinker/0", "loading")
        (shown,) = play.status()["stages"]["thinker"]["replicas"]
        assert (shown["state"], shown["engine"], shown["pid"], shown["restarts"]) == ("ready", "loading", 4711, 0)

    def test_the_router_beats_once_an_interval_to_who_has_joined(self) -> None:
        play = RouterPlay(config("thinker:text > voice:audio"), ready=False)
        play.starts("thinker/0")
        assert play >> ReplicaStarting("voice/0", 1, 4711)
        beats = []
        for _ in range(10):
            play.now += 0.5
            effects = play.core.handle(Ticked(), play.now)
            beats += [one.replica for one in effects if isinstance(one, msg.ToWorker)]
        assert beats == ["thinker/0"] * 5


class TestUnreachableWorkers:
    def test_what_was_lost_on_the_way_nobody_knows_so_the_worker_is_given_up(self) -> None:
        play = one_place()
        assert play >> play.submits("alice") << to("thinker/0", SubmitStage)
        lost = WorkerUnreachable("thinker/0", 1, "", 0, "it does not read")
        assert play >> lost << effect(KillReplica, incarnation=1, why="unreachable: it does not read")
        assert play >> lost, "once"
        assert play >> play.dies("thinker/0") << to("alice", Terminal, finish_reason="error")

    def test_an_earlier_incarnation_is_no_matter_of_its_successor(self) -> None:
        play = one_place()
        assert play >> play.dies("thinker/0")
        play.starts("thinker/0")
        assert play >> play.submits("alice") << to("thinker/0", SubmitStage)
        for late in (WorkerUnreachable("thinker/0", 1, REQUEST, 1, "it is not connected"),):
            assert play >> late
        assert play >> FrameUnsendable("thinker/0", 1, REQUEST, 1, True, "too large")
        assert play.status()["live_requests"] == 1

    def test_relay_content_that_fits_no_message_fails_its_request(self) -> None:
        play = RouterPlay(config("a:text ~> b:audio"))
        assert play >> play.submits("alice") << to("a/0", SubmitStage)
        assert play >> play.registers("a/0", REQUEST)
        assert play >> play.worker("a/0", RelayContent, request_id=REQUEST, attempt=1, target="b", data=b"x")
        _ = play >> play.finishes("a/0", REQUEST) << to("alice", Delivery)
        assert play << to("b/0", SubmitStage) << to("b/0", FeedStage)
        unsendable = FrameUnsendable("b/0", 1, REQUEST, 1, False, "a FeedStage is too large")
        error = ErrorInfo("protocol_error", "a FeedStage is too large", "b", "b/0", False)
        _ = play >> unsendable << to("alice", Terminal, error=error)
        assert play << to("b/0", AbortStage), "its worker has it and waits"
        assert play >> play.finishes("b/0", REQUEST, "abort")
        assert play.is_empty()


class TestStatus:
    def test_it_counts_what_waits_runs_and_was_left(self) -> None:
        play = one_place()
        assert play >> play.submits("alice", "a") << to("thinker/0", SubmitStage)
        assert play >> play.submits("alice", "b")
        status = play.status()
        assert {key: status[key] for key in ("live_requests", "bindings", "queued", "leftovers", "rings")} == {
            "live_requests": 2,
            "bindings": 1,
            "queued": 1,
            "leftovers": 0,
            "rings": [],
        }
        (shown,) = status["stages"]["thinker"]["replicas"]
        assert (shown["id"], shown["state"], shown["inflight"], shown["capacity"]) == ("thinker/0", "ready", 1, 1)

    def test_b3_what_a_worker_holds_of_its_ring_is_shown_until_it_is_dead(self) -> None:
        play = one_place()
        use = wire.RingUse("talker", 64, 48, 16)
        beat = wire.Heartbeat(1, "idle", 0, "", [use], late_frames=3, bad_frames=2, discarded=4)
        assert play >> WorkerSent("thinker/0", 1, beat)
        status = play.status()
        row = {"edge": "thinker->talker", "replica": "thinker/0"}
        assert status["rings"] == [row | {"capacity_bytes": 64, "used_bytes": 48, "spilled_bytes": 16}]
        (shown,) = status["stages"]["thinker"]["replicas"]
        assert (shown["late_frames"], shown["bad_frames"]) == (3, 2)
        _ = play.brings(ReplicaExited("thinker/0", 1, "killed"))
        assert play.status()["rings"] == []

    def test_a_client_may_ask_for_it(self) -> None:
        play = one_place()
        effects, _ = play.brings(ClientSent(b"alice", wire.AskStatus(7)))
        (answer,) = [effect.frame for effect in effects if isinstance(effect, msg.ToClient)]
        assert isinstance(answer, Status)
        assert answer.call == 7
        assert b'"live_requests":0' in answer.json

    def test_outputs_count_as_unconsumed_until_their_own_caller_says_so(self) -> None:
        play = one_place()
        assert play >> play.submits("alice") << to("thinker/0", SubmitStage)
        for seq in (1, 2, 3):
            assert play >> play.makes("thinker/0", REQUEST, seq, "x") << to("alice", Delivery)
        credit = to("thinker/0", OutputCredit, request_id=REQUEST, attempt=1)
        for client, stage, outputs, left in (
            ("bob", "thinker", 3, 3),
            ("alice", "voice", 3, 3),
            ("alice", "thinker", 2, 1),
            ("alice", "thinker", 1, 1),
            ("alice", "thinker", -1, 1),
            ("alice", "thinker", 99, 0),
        ):
            before = play.status()["counters"]["unconsumed"]
            _ = play >> play.has_read(client, REQUEST, stage, outputs)
            assert (play << credit) if left < before else play
            assert play.status()["counters"]["unconsumed"] == left
        assert play >> play.has_read("alice", "nobody", "thinker", 1)

    def test_a_restart_is_counted(self) -> None:
        play = one_place()
        assert play >> play.dies("thinker/0", "killed")
        assert play.status()["ready"] is False
        play.starts("thinker/0")
        (shown,) = play.status()["stages"]["thinker"]["replicas"]
        assert (shown["restarts"], shown["incarnation"], shown["state"]) == (1, 2, "ready")
        assert play.status()["counters"]["replicas_lost"] == 1


class TestFacts:
    def test_the_plan_is_told_with_its_edges(self) -> None:
        play = RouterPlay(config("thinker:text > talker => voice:audio; other:audio"))
        _ = play.brings(play.submits("alice", modalities=["text"]))
        _ = play.brings(play.submits("alice", "whole"))
        text, whole = [fact.detail for fact in play.facts if fact.event == "received"]
        assert text == {
            "all_stages": "thinker,other,talker,voice",
            "stages": "thinker",
            "edges": "",
            "final_stages": "thinker",
            "last_stage": "thinker",
            "modalities": "text",
        }
        assert whole["edges"] == "thinker>talker,talker>voice"
        assert whole["final_stages"] == "thinker,other,voice"
        assert whole["last_stage"] == "voice"

    def test_a_fact_that_does_not_exist_is_no_fact(self) -> None:
        play = one_place()
        assert play >> play.submits("alice") << to("thinker/0", SubmitStage)
        assert play.brings(play.reports("thinker/0", REQUEST, "made up")) == ([], [])
        assert play.counts("bad_frames") == 1


# --- Whatever decodes ----------------------------------------------------------------------------------------------

NUMBERS = st.integers(-(2**63), 2**64 - 1)
TEXTS = st.text(max_size=8)
IDS = st.sampled_from([REQUEST, rid("other"), "demo", "other", ""]) | TEXTS
ATTEMPTS = st.sampled_from([1, 1, 2, 3]) | NUMBERS
ERRORS = st.none() | st.builds(ErrorInfo, TEXTS, TEXTS, st.none() | TEXTS, st.none() | TEXTS, st.booleans())
CONTENTS = st.none() | st.builds(wire.Text, TEXTS)
EDGES = st.lists(st.builds(wire.EdgeCount, TEXTS, NUMBERS, NUMBERS, NUMBERS, NUMBERS), max_size=2)
HEAD = {"request_id": IDS, "attempt": ATTEMPTS, "incarnation": st.just(1) | NUMBERS}

CLIENT_FRAMES = st.one_of(
    st.builds(
        submission,
        request_id=IDS,
        external_id=IDS,
        modalities=st.none() | st.lists(st.sampled_from(["text", "audio", "?"]), max_size=2),
        priority=NUMBERS,
        deadline_s=st.none() | st.floats(),
        window=NUMBERS,
        at_ns=NUMBERS,
    ),
    st.builds(submission, st.sampled_from(["demo", "other"])),
    st.builds(Abort, NUMBERS, IDS),
    st.builds(Consumed, IDS, st.sampled_from(["thinker", "talker", "?"]), NUMBERS),
    st.builds(
        wire.Operate,
        NUMBERS,
        st.sampled_from(["drain", "resume", "restart"]),
        st.sampled_from(["thinker", "talker/0", "code2wav/0", "?"]) | TEXTS,
        st.floats() | st.just(0.1),
        st.booleans(),
    ),
    st.builds(wire.AskStatus, NUMBERS),
    st.builds(wire.Bye, TEXTS),
)
WORKER_FRAMES = st.one_of(
    st.builds(
        wire.Heartbeat,
        st.just(1) | NUMBERS,
        st.sampled_from(["idle", "stepping", "?"]),
        NUMBERS,
        TEXTS,
        st.lists(st.builds(wire.RingUse, TEXTS, NUMBERS, NUMBERS), max_size=2),
        NUMBERS,
        NUMBERS,
    ),
    st.builds(
        wire.StageFact, **HEAD, fact=st.sampled_from(["registered", "input_ready", "running", "?"]), at_ns=NUMBERS
    ),
    st.builds(
        wire.Output, **HEAD, seq=st.integers(-1, 3) | NUMBERS, content=CONTENTS, last=st.booleans(), at_ns=NUMBERS
    ),
    st.builds(wire.StagePaused, **HEAD, paused=st.booleans(), at_ns=NUMBERS),
    st.builds(RelayContent, **HEAD, target=st.sampled_from(["talker", "?"]), data=st.binary(max_size=4)),
    st.builds(
        wire.StageFinished,
        **HEAD,
        finish_reason=st.none() | st.sampled_from(["stop", "length", "abort"]) | TEXTS,
        error=ERRORS,
        usage=st.dictionaries(TEXTS, st.floats() | NUMBERS, max_size=2),
        note=st.none() | TEXTS,
        outputs=st.just(0) | NUMBERS,
        edges=EDGES,
        at_ns=NUMBERS,
    ),
)
INPUTS = st.one_of(
    st.builds(ClientSent, st.sampled_from([b"alice", b"bob"]), CLIENT_FRAMES),
    st.builds(
        WorkerSent, st.sampled_from(["thinker/0", "talker/0", "code2wav/0"]), st.just(1) | NUMBERS, WORKER_FRAMES
    ),
    st.builds(Ticked),
)


@checked(200)
@given(st.lists(INPUTS, max_size=40), st.lists(st.sampled_from([0.0, 0.1, 3.0]), min_size=40, max_size=40))
def test_f1_w1_nothing_that_decodes_ends_the_router(inputs: list[msg.Input], waits: list[float]) -> None:
    """Neither an exception, nor a frame that cannot be sent, nor a request that stays when all is over."""
    play = RouterPlay(config(SPEECH))
    for event, wait in zip(inputs, waits, strict=False):
        play.now += wait
        effects, _ = play.brings(event)
        for one in effects:
            if isinstance(one, msg.ToClient | msg.ToWorker):
                assert list(wire.Packer().pack(one.frame))
    assert play.counts("router_errors") == 0
    _ = play.brings(StopAsked("enough"))
    _ = play.waits(6)
    for replica in play.core.pools.replicas:
        _ = play.brings(play.dies(replica))
    assert play.is_empty()


def test_t1_the_death_of_a_replica_is_a_fact_of_each_request_that_it_held() -> None:
    play = one_place()
    assert play >> play.submits("alice", "a") << to("thinker/0", SubmitStage)
    _ = play >> play.dies("thinker/0") << to("alice", Terminal, request_id=rid("a"))
    died = [fact for fact in play.facts if fact.event == "replica_lost"]
    assert [(fact.request_id, fact.stage, fact.detail) for fact in died] == [
        (rid("a"), "thinker", {"replica": "thinker/0", "reason": "killed by SIGKILL"})
    ]
