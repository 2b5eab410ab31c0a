"""F2, F3, A2, A3, B1, C5 and C6 over several attempts of one request, in the router.

What the caller has is skipped by its offset and compared by its hash (`tests/unit/router/test_delivered.py`); every
order of reports and deaths is in `test_small_worlds_router.py`. Here are the transcripts.
"""

from __future__ import annotations

from typing import Any

import pytest
from support.pipelines import JOIN, SPEECH, config
from support.playbook import RouterPlay, effect, rid, to

from omnizmq.protocol import (
    Abort,
    AbortAck,
    AbortStage,
    Audio,
    Delivery,
    ErrorInfo,
    Operated,
    OutputCredit,
    PeerLost,
    Refused,
    SubmitStage,
    Terminal,
    Text,
)
from omnizmq.router.messages import ClientGone, ClientSent, KillReplica, StopAsked, WorkerUnreachable

REQUEST = rid("demo")
BROKEN = ErrorInfo("stage_error", "it broke", "thinker", "thinker/1", False)


def thinkers(replicas: int = 2, max_inflight: int = 8, **router: Any) -> RouterPlay:
    """One stage; Alice's request runs on its first replica."""
    stage = {"replicas": replicas, "max_inflight": max_inflight, "max_registered": max_inflight}
    play = RouterPlay(config("thinker:text", stages={"thinker": stage}, router=router))
    assert play >> play.submits("alice") << to("thinker/0", SubmitStage, attempt=1)
    assert play >> play.registers("thinker/0", REQUEST)
    return play


def behind(play: RouterPlay) -> None:
    """Bob's request came later, and waits for a place."""
    play.now += 1
    assert play >> play.submits("bob", "second")
    assert play.waiting == [rid("second")]


def speech(**router: Any) -> RouterPlay:
    """Three stages, two talkers; Alice's request runs on the first one, and the caller has `Hi`."""
    play = RouterPlay(config(SPEECH, stages={"talker": {"replicas": 2}}, router=router))
    runs(play, "talker/0")
    assert play >> play.makes("thinker/0", REQUEST, 1, "Hi") << to("alice", Delivery, content=Text("Hi"))
    return play


def runs(play: RouterPlay, talker: str, attempt: int = 1) -> None:
    """The stages of the attempt are submitted, one as soon as the one behind it has registered."""
    if attempt == 1:
        assert play >> play.submits("alice") << to("code2wav/0", SubmitStage, attempt=1)
    assert play >> play.registers("code2wav/0", REQUEST, attempt) << to(talker, SubmitStage, attempt=attempt)
    assert play >> play.registers(talker, REQUEST, attempt) << to("thinker/0", SubmitStage, attempt=attempt)
    assert play >> play.registers("thinker/0", REQUEST, attempt)


def talker_dies(play: RouterPlay) -> None:
    """The second attempt is submitted, what is left of the first one aborted."""
    _ = play >> play.dies("talker/0")
    for peer in ("thinker/0", "talker/1", "code2wav/0"):
        _ = play << to(peer, PeerLost, replica="talker/0", incarnation=1)
    _ = play << to("thinker/0", AbortStage, attempt=1) << to("code2wav/0", AbortStage, attempt=1)
    assert play << to("code2wav/0", SubmitStage, attempt=2, request_id=REQUEST)


def dies(play: RouterPlay, replica: str = "thinker/0", then: str = "thinker/1", attempt: int = 2) -> RouterPlay:
    """The only stage's replica; the next attempt is on the other one."""
    _ = play >> play.dies(replica) << to(then, PeerLost)
    assert play << to(then, SubmitStage, attempt=attempt)
    assert play >> play.registers(then, REQUEST, attempt)
    return play


def lost(
    text: str = "thinker/0 died: killed by SIGKILL", stage: str = "thinker", replica: str = "thinker/0"
) -> ErrorInfo:
    return ErrorInfo("replica_lost", text, stage, replica, True)


class TestF2AnotherAttempt:
    def test_f2_when_nothing_has_reached_the_caller(self) -> None:
        play = dies(thinkers())
        assert play >> play.makes("thinker/1", REQUEST, 1, "Hi", last=True, attempt=2) << to("alice", Delivery)
        _ = play >> play.finishes("thinker/1", REQUEST, attempt=2, outputs=1)
        assert play << to("alice", Terminal, finish_reason="stop", usage_incomplete=[])
        assert play.is_empty()
        assert play.counts("redriven") == play.counts("replicas_lost") == 1

    @pytest.mark.parametrize("cuts", [["Hi, you"], ["Hi,", " you"], ["H", "i, yo", "u"], list("Hi, you")])
    def test_f2_text_partly_delivered_is_not_delivered_twice(self, cuts: list[str]) -> None:
        """However the next attempt cuts it."""
        play = thinkers()
        for seq, text in enumerate(["Hi", ", "], 1):
            assert play >> play.makes("thinker/0", REQUEST, seq, text) << to("alice", Delivery, content=Text(text))
        dies(play)
        said, new = "", []
        for seq, text in enumerate(cuts, 1):
            effects, _ = play.brings(play.makes("thinker/1", REQUEST, seq, text, attempt=2))
            said += text
            (frame,) = [one.frame for one in effects]  # type: ignore[union-attr]
            if len(said) <= len("Hi, "):
                assert isinstance(frame, OutputCredit), "passed over, so it counts as read"
            else:
                assert isinstance(frame, Delivery)
                new.append(frame.content.text)  # type: ignore[union-attr]
        assert "".join(new) == "you"
        _ = play >> play.finishes("thinker/1", REQUEST, attempt=2, outputs=len(cuts))
        _ = play << to("alice", Delivery, content=None, stage_finished=True)
        assert play << to("alice", Terminal, finish_reason="stop")

    def test_f2_sound_partly_delivered_goes_on_in_its_middle(self) -> None:
        play = RouterPlay(config("voice:audio", stages={"voice": {"replicas": 2}}))
        assert play >> play.submits("alice") << to("voice/0", SubmitStage)
        assert play >> play.registers("voice/0", REQUEST)
        assert play >> play.makes("voice/0", REQUEST, 1, b"aaaabbbb") << to("alice", Delivery)
        dies(play, "voice/0", "voice/1")
        assert play >> play.makes("voice/1", REQUEST, 1, b"aaaa", attempt=2) << to("voice/1", OutputCredit, consumed=0)
        rest = to("alice", Delivery, content=Audio(b"cccc", 24_000), stage_finished=True)
        assert play >> play.makes("voice/1", REQUEST, 2, b"bbbbcccc", last=True, attempt=2) << rest

    def test_f2_an_end_that_was_delivered_is_not_delivered_again(self) -> None:
        play = speech()
        end = play.makes("thinker/0", REQUEST, 2, None, last=True)
        assert play >> end << to("alice", Delivery, stage="thinker", content=None, stage_finished=True)
        assert play >> play.finishes("thinker/0", REQUEST, outputs=2)
        _ = play >> play.dies("talker/0")
        for peer in ("thinker/0", "talker/1", "code2wav/0"):
            _ = play << to(peer, PeerLost)
        assert play << to("code2wav/0", AbortStage, attempt=1) << to("code2wav/0", SubmitStage, attempt=2)
        runs(play, "talker/1", attempt=2)
        again = play.makes("thinker/0", REQUEST, 1, "Hi", last=True, attempt=2)
        assert play >> again << to("thinker/0", OutputCredit, consumed=-1)
        assert play >> play.finishes("thinker/0", REQUEST, attempt=2, outputs=1)
        assert play >> play.finishes("talker/1", REQUEST, attempt=2)
        _ = play >> play.finishes("code2wav/0", REQUEST, attempt=2) << to("alice", Delivery, stage="code2wav")
        assert play << to("alice", Terminal, finish_reason="stop", stage="code2wav")

    def test_f2_only_the_requests_that_need_the_dead_one(self) -> None:
        play = RouterPlay(config("thinker:text", stages={"thinker": {"replicas": 2}}))
        for client, name, replica in (("alice", "demo", "thinker/0"), ("bob", "other", "thinker/1")):
            assert play >> play.submits(client, name) << to(replica, SubmitStage)
            assert play >> play.registers(replica, rid(name))
        dies(play)
        _ = play >> play.makes("thinker/1", rid("other"), 1, "Yo", last=True) << to("bob", Delivery)
        assert play
        assert play >> play.finishes("thinker/1", rid("other"), outputs=1) << to("bob", Terminal, finish_reason="stop")

    def test_f2_one_that_had_not_been_submitted_to_the_dead_one_yet(self) -> None:
        play = RouterPlay(config("thinker:text > voice:audio", stages={"thinker": {"replicas": 2}}))
        assert play >> play.submits("alice") << to("voice/0", SubmitStage, attempt=1)
        _ = play >> play.dies("thinker/0") << to("thinker/1", PeerLost) << to("voice/0", PeerLost)
        assert play << to("voice/0", AbortStage, attempt=1) << to("voice/0", SubmitStage, attempt=2)

    def test_f2_a_whole_output_that_the_caller_has_needs_no_other_attempt(self) -> None:
        """C5: it is complete, and stands."""
        play = thinkers()
        assert play >> play.makes("thinker/0", REQUEST, 1, "Hi", last=True) << to("alice", Delivery)
        _ = play >> play.dies("thinker/0") << to("thinker/1", PeerLost)
        assert play << to("alice", Terminal, finish_reason="stop", usage_incomplete=["thinker"])
        assert play.counts("redriven") == 0

    def test_f2_an_engine_that_fails_is_no_replica_that_died(self) -> None:
        play = thinkers()
        assert play >> play.finishes("thinker/0", REQUEST, None, error=BROKEN) << to("alice", Terminal, error=BROKEN)
        assert play.counts("redriven") == 0

    def test_f2_s3_a_submission_that_cannot_be_sent_is_driven_anew_elsewhere(self) -> None:
        play = RouterPlay(config("thinker:text", stages={"thinker": {"replicas": 2}}))
        assert play >> play.submits("alice") << to("thinker/0", SubmitStage)
        gone = WorkerUnreachable("thinker/0", 1, REQUEST, 1, "it is not connected")
        _ = play >> gone << effect(KillReplica, replica="thinker/0") << to("thinker/1", SubmitStage, attempt=2)
        assert play

    def test_f2_s3_two_that_cannot_be_sent_at_once_are_two_attempts(self) -> None:
        """The second one belongs to the first attempt, whatever the present one is."""
        play = RouterPlay(config(JOIN, stages={"right": {"replicas": 2}}, router={"redrive": "wait"}))
        assert play >> play.submits("alice") << to("join/0", SubmitStage)
        _ = play >> play.registers("join/0", REQUEST) << to("right/0", SubmitStage) << to("left/0", SubmitStage)
        assert play
        gone = [WorkerUnreachable(f"{stage}/0", 1, REQUEST, 1, "it is not connected") for stage in ("right", "left")]
        _ = play >> gone[0] << to("left/0", AbortStage) << to("join/0", AbortStage) << effect(KillReplica)
        assert play << to("join/0", SubmitStage, attempt=2)
        assert play >> gone[1] << effect(KillReplica, replica="left/0")
        assert play.counts("bad_frames") == 0


class TestF2AMismatch:
    """It ends the request; never is a part taken for the whole."""

    @pytest.mark.parametrize(
        ("outputs", "last", "why"),
        [
            ([], True, "ends 5 characters or bytes too soon"),
            (["Jello"], False, "is another one"),
            (["H", "a", "l", "l", "o"], False, "is another one"),
            (["Hell"], True, "ends 1 characters or bytes too soon"),
        ],
    )
    def test_f2_another_text(self, outputs: list[str], last: bool, why: str) -> None:
        play = thinkers()
        assert play >> play.makes("thinker/0", REQUEST, 1, "Hello") << to("alice", Delivery)
        dies(play)
        for seq, text in enumerate(outputs[:-1], 1):
            assert play >> play.makes("thinker/1", REQUEST, seq, text, attempt=2) << to("thinker/1", OutputCredit)
        text = outputs[-1] if outputs else None
        _ = play >> play.makes("thinker/1", REQUEST, len(outputs) or 1, text, last=last, attempt=2)
        message = (
            "thinker/0 was lost after 1 outputs of thinker had been delivered, and the output of the next attempt "
            f"{why}: it cannot be continued"
        )
        _ = play << to("alice", Terminal, finish_reason="error", error=lost(message))
        assert play << to("thinker/1", AbortStage, attempt=2)
        assert play.counts("redriven") == 1, "and there is no third attempt"

    def test_f2_one_that_shows_only_in_the_report_of_the_end(self) -> None:
        play = thinkers()
        assert play >> play.makes("thinker/0", REQUEST, 1, "Hello") << to("alice", Delivery)
        dies(play)
        assert play >> play.makes("thinker/1", REQUEST, 1, "Hell", attempt=2) << to("thinker/1", OutputCredit)
        ended = play.finishes("thinker/1", REQUEST, attempt=2, outputs=1)
        assert play >> ended << to("alice", Terminal, finish_reason="error", usage_incomplete=[])
        assert play.is_empty()

    def test_f2_one_that_goes_on_behind_the_end(self) -> None:
        play = speech()
        end = play.makes("thinker/0", REQUEST, 2, None, last=True)
        assert play >> end << to("alice", Delivery, stage_finished=True)
        talker_dies(play)
        runs(play, "talker/1", attempt=2)
        _ = play >> play.makes("thinker/0", REQUEST, 1, "Hi!", attempt=2)
        _ = play << to("alice", Terminal, finish_reason="error", stage="code2wav", modality="audio")
        for replica in ("thinker/0", "talker/1", "code2wav/0"):
            _ = play << to(replica, AbortStage, attempt=2)
        assert play

    def test_a3_after_one_an_abort_marks_the_end_and_delivers_nothing_more(self) -> None:
        play = thinkers()
        assert play >> play.makes("thinker/0", REQUEST, 1, "abc") << to("alice", Delivery)
        dies(play)
        asked = ClientSent(b"carol", Abort(1, "demo"))
        assert play >> asked << to("thinker/1", AbortStage, attempt=2) << to("carol", AbortAck)
        assert play >> play.makes("thinker/1", REQUEST, 1, "xyz", attempt=2)
        for seq, text in ((2, "abc"), (3, "d")):
            effects, _ = play.brings(play.makes("thinker/1", REQUEST, seq, text, attempt=2, last=seq == 3))
            assert not any(isinstance(getattr(one, "frame", None), Delivery) for one in effects)
        _ = play >> play.finishes("thinker/1", REQUEST, "abort", attempt=2, outputs=3)
        assert play << to("alice", Delivery, content=None, stage_finished=True) << to("alice", Terminal)


class TestF2HowMany:
    def test_f2_three_attempts_at_most(self) -> None:
        """A request that kills its replicas does not kill all of them."""
        play = thinkers(replicas=4)
        others = ["thinker/0", "thinker/1", "thinker/2", "thinker/3"]
        for attempt, replica in ((2, "thinker/1"), (3, "thinker/2")):
            _ = play >> play.dies(others.pop(0))
            for other in others:
                _ = play << to(other, PeerLost)
            assert play << to(replica, SubmitStage, attempt=attempt)
        _ = play >> play.dies("thinker/2") << to("thinker/3", PeerLost)
        assert play << to("alice", Terminal, error=lost("thinker/2 died: killed by SIGKILL", replica="thinker/2"))
        assert play.counts("redriven") == 2
        assert play.is_empty()

    @pytest.mark.parametrize(
        "limits", [{"redrive": "never"}, {"max_attempts": 1}, {"redrive": "wait", "max_attempts": 1}]
    )
    def test_f2_never(self, limits: dict[str, Any]) -> None:
        play = thinkers(**limits)
        _ = play >> play.dies("thinker/0") << to("thinker/1", PeerLost) << to("alice", Terminal, error=lost())
        assert play
        assert play.is_empty()

    def test_f2_other_with_one_replica_does_not_wait(self) -> None:
        play = thinkers(replicas=1)
        assert play >> play.dies("thinker/0") << to("alice", Terminal, error=lost())
        assert play.is_empty()

    def test_f2_other_waits_for_room_and_no_queue_is_too_full_for_it(self) -> None:
        stages = {"thinker": {"replicas": 2, "max_inflight": 1}}
        play = RouterPlay(config("thinker:text", stages=stages, router={"max_queued": 0}))
        for client, name, replica in (("alice", "demo", "thinker/0"), ("bob", "other", "thinker/1")):
            assert play >> play.submits(client, name) << to(replica, SubmitStage)
        assert play >> play.dies("thinker/0") << to("thinker/1", PeerLost)
        assert play.waiting == [REQUEST]
        _ = play >> play.finishes("thinker/1", rid("other"), None, error=BROKEN) << to("bob", Terminal)
        assert play << to("thinker/1", SubmitStage, request_id=REQUEST, attempt=2)

    def test_f2_other_that_waits_for_room_ends_when_there_is_nobody_left(self) -> None:
        stages = {"thinker": {"replicas": 2, "max_inflight": 1}}
        play = RouterPlay(config("thinker:text", stages=stages))
        for client, name, replica in (("alice", "demo", "thinker/0"), ("bob", "other", "thinker/1")):
            assert play >> play.submits(client, name) << to(replica, SubmitStage)
        assert play >> play.dies("thinker/0") << to("thinker/1", PeerLost)
        _ = play >> play.dies("thinker/1") << to("bob", Terminal, request_id=rid("other"))
        assert play << to("alice", Terminal, error=lost())
        assert play.is_empty()


class TestF2Wait:
    def test_f2_until_the_replica_is_back(self) -> None:
        play = thinkers(replicas=1, redrive="wait")
        assert play >> play.makes("thinker/0", REQUEST, 1, "Hi") << to("alice", Delivery)
        assert play >> play.dies("thinker/0")
        assert play.waits(60)
        assert play.waiting == [REQUEST]
        assert play.starts("thinker/0") == [to("thinker/0", SubmitStage, attempt=2, unread=1)]
        assert play >> play.registers("thinker/0", REQUEST, 2)
        assert (
            play
            >> play.makes("thinker/0", REQUEST, 1, "Hi, you", attempt=2)
            << to("alice", Delivery, content=Text(", you"))
        )

    def test_f2_for_redrive_wait_s_and_then_it_ends_with_the_loss(self) -> None:
        play = thinkers(replicas=1, redrive="wait", redrive_wait_s=20.0)
        assert play >> play.dies("thinker/0")
        assert play.waits(19.5)
        ended = to("alice", Terminal, error=lost(), usage={}, usage_incomplete=["thinker"])
        assert play.waits(0.5) << ended, "the thinker ran, and nobody knows for how much"
        assert play.is_empty()

    def test_f2_one_that_has_found_a_replica_by_then_is_left_alone(self) -> None:
        play = thinkers(replicas=1, redrive="wait", redrive_wait_s=20.0)
        assert play >> play.dies("thinker/0")
        assert play.starts("thinker/0") == [to("thinker/0", SubmitStage, attempt=2)]
        assert play.waits(30)
        assert play.live == [REQUEST]

    def test_f2_those_that_only_wait_behind_it_wait_as_well(self) -> None:
        """Bob's request was in the queue when the replica died. It is driven for the first time when one is back."""
        play = thinkers(replicas=1, max_inflight=1, redrive="wait", redrive_wait_s=20.0)
        behind(play)
        assert play >> play.dies("thinker/0")
        assert play.waits(19.5)
        assert play.waiting == [REQUEST, rid("second")]
        assert play.starts("thinker/0") == [to("thinker/0", SubmitStage, request_id=REQUEST, attempt=2)]
        assert (
            play
            >> play.finishes("thinker/0", REQUEST, None, error=BROKEN, attempt=2)
            << to("alice", Terminal)
            << to("thinker/0", SubmitStage, request_id=rid("second"), attempt=1)
        )

    def test_f2_and_end_together_when_none_comes_back(self) -> None:
        play = thinkers(replicas=1, max_inflight=1, redrive="wait", redrive_wait_s=20.0)
        behind(play)
        assert play >> play.dies("thinker/0")
        unavailable = ErrorInfo(
            "unavailable", "stage thinker has no live replica; try again shortly", "thinker", None, True
        )
        assert play.waits(19.5)
        ends = to("alice", Terminal, error=lost()), to("bob", Terminal, error=unavailable)
        assert play.waits(0.5) << ends[0] << ends[1]
        assert play.is_empty()

    def test_f2_a_replica_that_is_back_and_busy_ends_no_wait(self) -> None:
        play = thinkers(replicas=1, max_inflight=1, redrive="wait", redrive_wait_s=20.0)
        behind(play)
        assert play >> play.dies("thinker/0")
        assert play.waits(15)
        assert play.starts("thinker/0")
        assert play.waits(60)
        assert play.waiting == [rid("second")]

    def test_f2_a_drained_stage_keeps_its_queue_until_it_is_resumed(self) -> None:
        play = thinkers(replicas=1, max_inflight=1, redrive="wait", redrive_wait_s=20.0)
        behind(play)
        assert play >> play.orders("carol", "drain", "thinker/0")
        _ = play >> play.finishes("thinker/0", REQUEST, None, error=BROKEN)
        assert play << to("alice", Terminal) << to("carol", Operated, error=None)
        assert play.waits(10)
        _ = play >> play.orders("carol", "resume", "thinker/0", call=2)
        assert play << to("carol", Operated, error=None) << to("thinker/0", SubmitStage, request_id=rid("second"))

    def test_b2_one_that_is_driven_again_does_not_go_behind_those_that_came_later(self) -> None:
        """Bob came first and lost his replica; Alice's request and Carol's have waited for longer than his."""
        stages = {"thinker": {"replicas": 2, "max_inflight": 1, "max_registered": 1}}
        play = RouterPlay(config("thinker:text", stages=stages))
        for name, replica in (("first", "thinker/0"), ("other", "thinker/1")):
            assert play >> play.submits("bob", name) << to(replica, SubmitStage)
        play.now += 1
        assert play >> play.submits("alice", "later") >> play.submits("carol", "latest")
        assert play >> play.dies("thinker/0") << to("thinker/1", PeerLost)
        assert play.waiting == [rid("first"), rid("later"), rid("latest")]

    def test_f2_new_requests_are_refused_meanwhile(self) -> None:
        play = thinkers(replicas=1, redrive="wait")
        assert play >> play.dies("thinker/0")
        assert play >> play.submits("bob", "other") << to("bob", Refused)

    def test_f2_also_those_that_would_stand_behind_one_that_waits(self) -> None:
        play = thinkers(replicas=1, max_inflight=1, redrive="wait")
        behind(play)
        assert play >> play.dies("thinker/0")
        assert play >> play.submits("carol", "third") << to("carol", Refused)

    def test_f2_each_stages_wait_is_its_own(self) -> None:
        router = {"redrive": "wait", "redrive_wait_s": 20.0}
        play = RouterPlay(config("a:text; b:audio", router=router))
        for stage, modality in (("a", "text"), ("b", "audio")):
            assert play >> play.submits("alice", stage, modalities=[modality]) << to(f"{stage}/0", SubmitStage)
        _ = play >> play.dies("b/0") << to("a/0", PeerLost)
        assert play.waits(7.25)
        assert play >> play.dies("a/0")
        assert play.core.next_tick() <= play.now + 12.75
        assert play.waits(12.25)
        assert play.core.next_tick() == play.now + 0.5
        assert play.waits(0.5) << to("alice", Terminal, request_id=rid("b"))
        assert play.waits(6.75)
        assert play.waits(0.5) << to("alice", Terminal, request_id=rid("a"))

    def test_b1_who_waits_for_a_dead_replica_takes_nobody_elses_place(self) -> None:
        """However long."""
        router = {"redrive": "wait", "priority_age_s": 1.0}
        play = RouterPlay(config("thinker:text > voice:audio", router=router))
        assert play >> play.submits("alice") << to("voice/0", SubmitStage)
        assert play >> play.dies("voice/0") << to("thinker/0", PeerLost)
        assert play.waits(30)
        assert play >> play.submits("bob", "other", modalities=["text"]) << to("thinker/0", SubmitStage)


class TestF2Shunned:
    """A consumer reports the loss before the router has reaped the process."""

    def test_f2_the_next_attempt_does_not_go_to_it(self) -> None:
        play = speech()
        gone = lost("talker/0 is gone", "talker", "talker/0")
        _ = play >> play.finishes("code2wav/0", REQUEST, None, error=gone)
        _ = play << to("thinker/0", AbortStage, attempt=1) << to("talker/0", AbortStage, attempt=1)
        assert play << to("code2wav/0", SubmitStage, attempt=2)
        runs(play, "talker/1", attempt=2)
        assert play.counts("replicas_lost") == 0
        assert play >> play.submits("bob", "other") << to("code2wav/0", SubmitStage), "for others it is ready"

    def test_f2_nor_waits_for_it_where_there_is_no_other(self) -> None:
        play = RouterPlay(config("thinker:text > voice:audio"))
        assert play >> play.submits("alice") << to("voice/0", SubmitStage)
        assert play >> play.registers("voice/0", REQUEST) << to("thinker/0", SubmitStage)
        gone = lost("voice/0 is gone", "voice", "voice/0")
        _ = play >> play.finishes("thinker/0", REQUEST, None, error=gone) << to("alice", Terminal, error=gone)
        assert play << to("voice/0", AbortStage)

    def test_f2_a_third_attempt_goes_to_neither_of_two_that_were_lost(self) -> None:
        """Though the router has reaped none of them yet."""
        play = RouterPlay(config("thinker:text > voice:audio", stages={"voice": {"replicas": 2}}))
        assert play >> play.submits("alice") << to("voice/0", SubmitStage)
        for attempt in (1, 2):
            voice = f"voice/{attempt - 1}"
            assert play >> play.registers(voice, REQUEST, attempt) << to("thinker/0", SubmitStage, attempt=attempt)
            gone = lost(f"{voice} is gone", "voice", voice)
            _ = play >> play.finishes("thinker/0", REQUEST, None, error=gone, attempt=attempt)
            if attempt == 1:
                assert play << to(voice, AbortStage) << to("voice/1", SubmitStage, attempt=2)
        assert play << to("alice", Terminal, error=gone) << to("voice/1", AbortStage, attempt=2)

    def test_f2_its_next_incarnation_is_another_one(self) -> None:
        play = RouterPlay(config("thinker:text > voice:audio", router={"redrive": "wait"}))
        assert play >> play.submits("alice") << to("voice/0", SubmitStage)
        assert play >> play.registers("voice/0", REQUEST) << to("thinker/0", SubmitStage)
        gone = lost("voice/0 is gone", "voice", "voice/0")
        assert play >> play.finishes("thinker/0", REQUEST, None, error=gone) << to("voice/0", AbortStage)
        assert play.waiting == [REQUEST], "though voice/0 is ready"
        assert play >> play.dies("voice/0") << to("thinker/0", PeerLost)
        assert play.starts("voice/0") == [to("voice/0", SubmitStage, attempt=2)]

    def test_b2_who_shuns_a_replica_does_not_hold_up_those_that_take_it(self) -> None:
        stages = {"voice": {"replicas": 2, "max_inflight": 1, "max_registered": 1}}
        play = RouterPlay(config("thinker:text > voice:audio", stages=stages))
        for name, voice in (("a", "voice/0"), ("b", "voice/1")):
            assert play >> play.submits("alice", name) << to(voice, SubmitStage)
            assert play >> play.registers(voice, rid(name)) << to("thinker/0", SubmitStage)
        gone = lost("voice/0 is gone", "voice", "voice/0")
        assert play >> play.finishes("thinker/0", rid("a"), None, error=gone) << to("voice/0", AbortStage)
        assert play >> play.finishes("voice/0", rid("a"), "abort")
        assert play.waiting == [rid("a")]
        assert play >> play.submits("bob", "c") << to("voice/0", SubmitStage, request_id=rid("c"))


class TestF3EarlierAttempts:
    def test_f3_late_frames_of_the_first_attempt_are_dropped(self) -> None:
        play = speech()
        ghost = [
            play.makes("thinker/0", REQUEST, 2, ", you"),
            play.makes("code2wav/0", REQUEST, 1, b"aaaa"),
            play.pauses("code2wav/0", REQUEST),
        ]
        talker_dies(play)
        runs(play, "talker/1", attempt=2)
        for frame in ghost:
            assert play >> frame
        assert play.counts("late_frames") == 3
        assert play.status()["paused"] == 0
        assert play >> play.has_input("code2wav/0", REQUEST)
        assert play.core.pools.replicas["code2wav/0"].active == 0, "the second attempt has none yet"

    def test_f3_b1_the_second_attempt_is_not_paused_because_the_first_one_was(self) -> None:
        play = thinkers(replicas=1, redrive="wait")
        assert play >> play.pauses("thinker/0", REQUEST)
        assert play.status()["paused"] == 1
        assert play >> play.dies("thinker/0")
        assert play.status()["paused"] == 0

    def test_f3_a_report_of_the_first_attempt_ends_nothing_of_the_second(self) -> None:
        play = speech()
        talker_dies(play)
        runs(play, "talker/1", attempt=2)
        assert play >> play.finishes("thinker/0", REQUEST, outputs=1)
        assert play >> play.finishes("code2wav/0", REQUEST, None, error=BROKEN)
        assert sorted(play.request(REQUEST).attempts) == [2], "confirmed, and forgotten"
        assert play.status()["bindings"] == 3
        assert play >> play.finishes("code2wav/0", REQUEST, "abort")
        assert play.counts("late_frames") == 1

    def test_f3_what_cannot_be_in_the_first_attempt_harms_the_second_not(self) -> None:
        play = speech()
        talker_dies(play)
        assert play >> play.makes("code2wav/0", REQUEST, 1, b"aaaa", attempt=3), "there is no third one"
        assert play >> play.registers("talker/1", REQUEST, 1)
        assert play.live == [REQUEST]

    def test_f3_b3_what_the_first_attempt_left_is_counted_until_confirmed(self) -> None:
        play = speech()
        talker_dies(play)
        runs(play, "talker/1", attempt=2)
        assert play.status()["bindings"] == 5
        assert play >> play.finishes("thinker/0", REQUEST, "abort", outputs=1)
        assert play.waits(5)
        assert play.status()["leftovers"] == 1
        assert [fact.attempt for fact in play.facts if fact.event == "left_behind"] == [1]
        for stage in ("thinker/0", "talker/1"):
            assert (play >> play.finishes(stage, REQUEST, attempt=2)) if stage != "thinker/0" else play
        _ = play >> ClientSent(b"carol", Abort(1, "demo")) << to("thinker/0", AbortStage, attempt=2)
        assert play << to("code2wav/0", AbortStage, attempt=2) << to("carol", AbortAck)
        assert play >> play.finishes("thinker/0", REQUEST, "abort", attempt=2)
        ended = play.finishes("code2wav/0", REQUEST, "abort", attempt=2)
        assert play >> ended << to("alice", Delivery, stage="thinker", stage_finished=True) << to("alice", Terminal)
        assert play.status()["live_requests"] == 0
        assert play.status()["leftovers"] == play.status()["bindings"] == 1
        assert play >> play.submits("alice") << to("alice", Refused), "its id still means it to code2wav/0"
        assert play >> play.finishes("code2wav/0", REQUEST, "abort")
        assert play.is_empty()

    def test_f3_a_request_that_ended_before_its_first_attempt_was_confirmed_stays_until_then(self) -> None:
        play = speech()
        talker_dies(play)
        _ = play >> ClientSent(b"carol", Abort(1, "demo")) << to("code2wav/0", AbortStage, attempt=2)
        assert play << to("carol", AbortAck)
        _ = play >> play.finishes("code2wav/0", REQUEST, "abort", attempt=2)
        assert play << to("alice", Delivery, stage="thinker", stage_finished=True) << to("alice", Terminal)
        assert play.live == [REQUEST]
        assert play >> ClientSent(b"carol", Abort(2, "demo")) << to("carol", AbortAck, matched=0)
        assert play >> play.finishes("thinker/0", REQUEST, "abort") >> play.finishes("code2wav/0", REQUEST, "abort")
        assert play.is_empty()


def waits_for_its_second(play: RouterPlay) -> RouterPlay:
    assert play >> play.makes("thinker/0", REQUEST, 1, "Hi") << to("alice", Delivery)
    assert play >> play.dies("thinker/0")
    return play


class TestA2A3EndsOfLaterAttempts:
    def test_a2_a3_an_abort_during_the_second(self) -> None:
        """Both layers of identity: the terminal's, and that of the partial output's end before it."""
        play = speech()
        talker_dies(play)
        runs(play, "talker/1", attempt=2)
        _ = play >> ClientSent(b"carol", Abort(1, "demo"))
        for replica in ("thinker/0", "talker/1", "code2wav/0"):
            _ = play << to(replica, AbortStage, attempt=2)
        assert play << to("carol", AbortAck, matched=1)
        for replica in ("thinker/0", "talker/1"):
            assert play >> play.finishes(replica, REQUEST, "abort", attempt=2)
        _ = play >> play.finishes("code2wav/0", REQUEST, "abort", attempt=2)
        _ = play << to("alice", Delivery, stage="thinker", modality="text", content=None, stage_finished=True)
        ended = {"stage": "code2wav", "modality": "audio", "finish_reason": "abort"}
        assert play << to("alice", Terminal, request_id=REQUEST, error=None, **ended)

    def test_a2_a3_an_abort_while_it_waits_for_its_second(self) -> None:
        play = waits_for_its_second(thinkers(replicas=1, redrive="wait"))
        _ = play >> ClientSent(b"carol", Abort(1, "demo"))
        _ = play << to("alice", Delivery, stage="thinker", content=None, stage_finished=True)
        _ = play << to("alice", Terminal, stage="thinker", finish_reason="abort", usage_incomplete=["thinker"])
        assert play << to("carol", AbortAck, matched=1)
        assert play.is_empty()

    def test_a7_the_caller_disappears_while_it_waits(self) -> None:
        play = waits_for_its_second(thinkers(replicas=1, redrive="wait"))
        assert play >> ClientGone(b"alice", "its process ended")
        assert play.is_empty()

    def test_a7_the_caller_disappears_during_the_second(self) -> None:
        play = dies(thinkers())
        assert play >> ClientGone(b"alice", "its process ended") << to("thinker/1", AbortStage, attempt=2)
        assert play >> play.finishes("thinker/1", REQUEST, "abort", attempt=2)
        assert play.is_empty()

    def test_b2_the_deadline_passes_while_it_waits(self) -> None:
        play = RouterPlay(config("thinker:text", router={"redrive": "wait"}))
        assert play >> play.submits("alice", deadline_s=10.0) << to("thinker/0", SubmitStage)
        assert play.waits(4)
        assert play >> play.dies("thinker/0")
        assert play.waits(5.5)
        _ = play.waits(0.5) << to("alice", Terminal, finish_reason="error", usage_incomplete=["thinker"])
        assert play
        assert play.is_empty()

    def test_b2_the_deadline_passes_during_the_second(self) -> None:
        play = RouterPlay(config("thinker:text", stages={"thinker": {"replicas": 2}}))
        assert play >> play.submits("alice", deadline_s=10.0) << to("thinker/0", SubmitStage)
        assert play.waits(4)
        dies(play)
        assert play.waits(5.5)
        error = ErrorInfo("deadline_exceeded", "the request's deadline of 10.0 s has passed", None, None, False)
        assert play.waits(0.5) << to("alice", Terminal, error=error) << to("thinker/1", AbortStage, attempt=2)

    def test_f1_an_error_during_the_second_names_that_ones_replica(self) -> None:
        play = dies(thinkers())
        error = ErrorInfo("stage_error", "it broke", "thinker", None, False)
        _ = play >> play.finishes("thinker/1", REQUEST, None, attempt=2, error=error)
        assert play << to("alice", Terminal, error=BROKEN)

    def test_a_stop_of_the_deployment_while_it_waits(self) -> None:
        play = waits_for_its_second(thinkers(replicas=1, redrive="wait"))
        error = ErrorInfo("unavailable", "enough", None, None, True)
        effects, _ = play.brings(StopAsked("enough"))
        assert to("alice", Terminal, error=error) == effects[0]
        assert play.is_empty()

    def test_c5_the_grace_of_the_second_attempt_is_its_own(self) -> None:
        play = dies(thinkers(terminal_grace_s=3.0))
        assert play >> play.makes("thinker/1", REQUEST, 1, "Hi", last=True, attempt=2) << to("alice", Delivery)
        assert play.waits(2.5)
        _ = play.waits(0.5) << to("alice", Terminal, finish_reason="stop", usage_incomplete=["thinker"])
        assert play << to("thinker/1", AbortStage, attempt=2)

    def test_c6_the_usage_is_the_last_attempts(self) -> None:
        play = thinkers()
        assert play >> play.makes("thinker/0", REQUEST, 1, "Hi") << to("alice", Delivery)
        dies(play)
        assert play >> play.makes("thinker/1", REQUEST, 1, "Hi", attempt=2) << to("thinker/1", OutputCredit)
        _ = play >> play.finishes("thinker/1", REQUEST, attempt=2, outputs=1, usage={"completion_tokens": 2})
        _ = play << to("alice", Delivery, content=None, stage_finished=True)
        assert play << to("alice", Terminal, usage={"thinker": {"completion_tokens": 2}}, usage_incomplete=[])


class TestB1CreditsAcrossAttempts:
    def test_b1_what_is_unread_of_the_first_counts_against_the_second(self) -> None:
        play = thinkers()
        for seq in (1, 2, 3):
            assert play >> play.makes("thinker/0", REQUEST, seq, "x") << to("alice", Delivery)
        read = play.has_read("alice", REQUEST, "thinker", 1)
        assert play >> read << to("thinker/0", OutputCredit, attempt=1, consumed=1)
        _ = play >> play.dies("thinker/0") << to("thinker/1", PeerLost)
        assert play << to("thinker/1", SubmitStage, attempt=2, unread=2)
        assert play >> play.registers("thinker/1", REQUEST, 2)
        passed = play.makes("thinker/1", REQUEST, 1, "xxx", attempt=2)
        assert play >> passed << to("thinker/1", OutputCredit, attempt=2, consumed=-1)
        assert play >> play.makes("thinker/1", REQUEST, 2, "y", attempt=2) << to("alice", Delivery)
        for outputs, consumed in ((2, 0), (3, 1), (4, 2)):
            read = play.has_read("alice", REQUEST, "thinker", outputs)
            assert play >> read << to("thinker/1", OutputCredit, attempt=2, consumed=consumed)

    def test_b1_a_credit_while_it_waits_goes_into_the_next_submission(self) -> None:
        play = thinkers(replicas=1, redrive="wait")
        for seq in (1, 2, 3):
            assert play >> play.makes("thinker/0", REQUEST, seq, "x") << to("alice", Delivery)
        assert play >> play.dies("thinker/0") >> play.has_read("alice", REQUEST, "thinker", 2)
        assert play.starts("thinker/0") == [to("thinker/0", SubmitStage, attempt=2, unread=1)]
