"""T1 in the router: which facts there are, and what it answers when it is asked where a request is."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from support.pipelines import SPEECH, config
from support.playbook import RouterPlay, rid, to

from omnizmq import protocol as wire
from omnizmq.protocol import AskStage, AskTrace, OutputCredit, SubmitStage, Traced
from omnizmq.router.inquiries import ANSWER_S, MAX_OPEN
from omnizmq.router.messages import ClientSent, Effect, Input, ReplicaStarting, Ticked, ToClient
from omnizmq.trace.facts import Fact
from omnizmq.trace.live import read

REQUEST = rid("demo")
TWO = "thinker:text > voice:audio"


def router(graph: str = TWO, stages: dict[str, Any] | None = None, **limits: Any) -> RouterPlay:
    return RouterPlay(config(graph, stages=stages, router=limits))


def running(graph: str = TWO, **limits: Any) -> RouterPlay:
    """One request of alice's, with both its stages submitted."""
    play = router(graph, **limits)
    _ = play.brings(play.submits("alice"))
    _ = play.brings(play.registers("voice/0", REQUEST))
    _ = play.brings(play.registers("thinker/0", REQUEST))
    return play


def events(play: RouterPlay, *named: str) -> list[tuple[str, str | None]]:
    return [(fact.event, fact.stage) for fact in play.facts if fact.event in named]


def last(play: RouterPlay, event: str) -> Fact:
    return [fact for fact in play.facts if fact.event == event][-1]


def asks(call: int = 1, id_: str = "demo", client: str = "alice") -> ClientSent:
    return ClientSent(client.encode(), AskTrace(call, id_))


def answers(play: RouterPlay, replica: str, call: int, **fields: Any) -> Input:
    known: dict[str, Any] = {
        "call": call,
        "request_id": REQUEST,
        "attempt": 1,
        "state": "RUNNING",
        "at_ns": play.now_ns,
        "since_ns": 5,
        "running": 1,
        "slots": 64,
        "waiting": 2,
        "engine": "stepping",
        "engine_since_ns": 6,
        "engaged": True,
        "made_ns": 7,
        "outputs": 3,
        "inputs": [],
        "edges": [],
        "caller": None,
    }
    return play.worker(replica, wire.StageAnswer, **known | fields)


def answered(effects: list[Effect]) -> dict[str, Any] | None:
    """The one answer among the effects, decoded; None: that no such request is live."""
    (frame,) = [one.frame for one in effects if isinstance(one, ToClient) and isinstance(one.frame, Traced)]
    document: dict[str, Any] | None = None if frame.json is None else msgspec.json.decode(frame.json)
    return document


def is_all_read(document: dict[str, Any]) -> bool:
    """Whether readers of the trace know each of its keys."""
    return bool(msgspec.json.decode(msgspec.json.encode(read(document))) == document)


class TestT1Facts:
    def test_t1_what_goes_to_the_caller_is_told_at_its_beginning_and_at_its_end(self) -> None:
        play = running()
        for seq in (1, 2, 3):
            _ = play.brings(play.makes("thinker/0", REQUEST, seq, "Hi", last=seq == 3))
        assert events(play, "published", "delivered") == [("published", "thinker"), ("delivered", "thinker")]

    def test_t1_that_the_caller_reads_is_told_once_for_each_stage(self) -> None:
        play = running()
        _ = play.brings(play.makes("thinker/0", REQUEST, 1, "Hi"))
        _ = play.brings(play.makes("thinker/0", REQUEST, 2, "Hi"))
        for outputs in (0, 1, 1, 2):
            _ = play.brings(play.has_read("alice", REQUEST, "thinker", outputs))
        assert events(play, "consumed") == [("consumed", "thinker")]
        assert last(play, "consumed").detail == {"outputs": 1}

    def test_t1_the_first_pause_and_its_end_are_told(self) -> None:
        play = running()
        for paused in (True, True, False, True, False):
            _ = play.brings(play.pauses("thinker/0", REQUEST, paused))
        assert events(play, "paused", "resumed") == [("paused", "thinker"), ("resumed", "thinker")]

    def test_t1_the_end_and_that_nothing_is_left(self) -> None:
        play = running()
        for seq in (1, 2):
            _ = play.brings(play.makes("thinker/0", REQUEST, seq, "Hi", last=seq == 2))
        _ = play.brings(play.makes("voice/0", REQUEST, 1, b"abcd", last=True))
        _ = play.brings(play.finishes("thinker/0", REQUEST, outputs=2))
        assert events(play, "terminal", "cleaned") == []
        _ = play.brings(play.finishes("voice/0", REQUEST, outputs=1))
        assert events(play, "terminal", "cleaned", "last_output") == [("terminal", "voice"), ("cleaned", None)]

    def test_t1_how_far_a_stage_came_that_did_not_end(self) -> None:
        play = running()
        _ = play.brings(play.makes("thinker/0", REQUEST, 1, "Hi"))
        play.now += 5
        _ = play.brings(play.makes("thinker/0", REQUEST, 2, "Hi"))
        at_ns = play.now_ns
        play.now += 5
        _ = play.brings(play.finishes("voice/0", REQUEST, None, error=wire.ErrorInfo("stage_error", "", "", "", False)))
        assert events(play, "last_output", "terminal") == [("last_output", "thinker"), ("terminal", "voice")]
        fact = last(play, "last_output")
        assert (fact.at_ns, fact.detail) == (at_ns, {"outputs": 2})

    def test_t1_how_far_a_stage_came_that_was_aborted(self) -> None:
        """Its own end, which is part of the abort, is no output."""
        play = running()
        _ = play.brings(play.makes("thinker/0", REQUEST, 1, "Hi"))
        at_ns = play.now_ns
        play.now += 5
        _ = play.brings(ClientSent(b"alice", wire.Abort(1, "demo")))
        _ = play.brings(play.makes("thinker/0", REQUEST, 2, None, last=True))
        _ = play.brings(play.finishes("thinker/0", REQUEST, "abort"))
        _ = play.brings(play.finishes("voice/0", REQUEST, "abort"))
        assert events(play, "last_output", "terminal")[0] == ("last_output", "thinker")
        fact = last(play, "last_output")
        assert fact.at_ns == at_ns

    @pytest.mark.parametrize(("client", "why"), [("alice", "caller"), ("bob", "operator")])
    def test_t1_who_asked_for_the_abort(self, client: str, why: str) -> None:
        play = running()
        _ = play.brings(ClientSent(client.encode(), wire.Abort(1, "demo")))
        assert last(play, "abort_asked").detail == {"why": why}

    def test_t1_what_an_engine_remarks_is_in_its_stages_report(self) -> None:
        play = running()
        _ = play.brings(play.finishes("thinker/0", REQUEST, note="nothing to say"))
        _ = play.brings(play.finishes("voice/0", REQUEST))
        assert [fact.detail.get("note") for fact in play.facts if fact.event == "finished"] == ["nothing to say", None]

    def test_t1_it_is_clean_when_the_last_stage_has_confirmed_an_abort(self) -> None:
        play = running()
        _ = play.brings(play.finishes("voice/0", REQUEST, None, error=wire.ErrorInfo("stage_error", "", "", "", False)))
        assert events(play, "terminal", "cleaned") == [("terminal", "voice")]
        _ = play.brings(play.finishes("thinker/0", REQUEST, "abort"))
        assert events(play, "cleaned") == [("cleaned", None)]

    def test_t1_a_parked_stage_says_what_it_waits_for(self) -> None:
        play = running()
        detail: dict[str, wire.Value] = {"to": "voice", "replica": "voice/0", "why": "credit", "sent": 4}
        head = {"request_id": REQUEST, "attempt": 1, "fact": "parked", "at_ns": 5}
        _ = play.brings(play.worker("thinker/0", wire.StageFact, **head, detail=detail))
        parked = last(play, "parked")
        assert (parked.owner, parked.stage, parked.at_ns, parked.detail) == ("thinker/0", "thinker", 5, detail)

    def test_t1_a_submission_says_what_was_asked_for(self) -> None:
        parent = f"00-{'1' * 32}-{'2' * 16}-01"
        play = router()
        asked = {"modalities": ["text"], "deadline_s": 9.5, "priority": 3, "traceparent": parent}
        _ = play.brings(play.submits("alice", **asked))
        received = last(play, "received").detail
        assert {name: received[name] for name in asked} == {**asked, "modalities": "text"}
        _ = play.brings(play.submits("alice", "plain"))
        assert not {"deadline_s", "priority", "traceparent"} & last(play, "received").detail.keys()

    def test_t1_tracing_can_be_off(self) -> None:
        play = running(trace=False, trace_contents=True)
        _ = play.brings(play.submits("alice", "queued", modalities=["none such"]))
        for seq in (1, 2):
            _ = play.brings(play.makes("thinker/0", REQUEST, seq, "Hi", last=seq == 2))
        _ = play.brings(play.dies("thinker/0"))
        assert play.facts == []


class TestT1WhyItWaits:
    def test_t1_all_places_are_taken(self) -> None:
        play = router(stages={"thinker": {"max_inflight": 1}})
        for name in ("a", "b", "c"):
            _ = play.brings(play.submits("alice", name))
        b, c = [fact.detail for fact in play.facts if fact.event == "queued"]
        full = {"why": "full", "lacks": "thinker", "replicas": "thinker/0 ready, 1/1 in flight"}
        assert (b, c) == ({**full, "ahead": 0}, {**full, "ahead": 1})

    @pytest.mark.parametrize(
        ("happens", "why"), [("dies", "no_replica"), ("starts", "starting"), ("is drained", "drained")]
    )
    def test_t1_a_stage_has_no_replica_for_it(self, happens: str, why: str) -> None:
        """It was queued behind another one, and its stage's only replica went away since."""
        play = router(stages={"thinker": {"max_inflight": 1}}, redrive="wait")
        for name in ("a", "b"):
            _ = play.brings(play.submits("alice", name))
        if happens == "is drained":
            _ = play.brings(play.orders("bob", "drain", "thinker/0"))
        else:
            _ = play.brings(play.dies("thinker/0"))
        if happens == "starts":
            _ = play.brings(ReplicaStarting("thinker/0", 2, 77))
        document = answered(play.brings(asks(id_="b"))[0])
        assert document is not None
        queue = document["queue"]
        assert (queue["why"], queue["lacks"], queue["since_ns"]) == (why, "thinker", int(100e9))
        assert "thinker/0" in queue["replicas"]
        live = read(document)
        assert live is not None
        assert msgspec.to_builtins(live.queue) == queue

    def test_t1_others_wait_before_it_for_the_same_places(self) -> None:
        play = router("thinker:text", stages={"thinker": {"max_inflight": 1}}, priority_age_s=1.0)
        _ = play.brings(play.submits("alice", "a"))
        _ = play.brings(play.submits("alice", "b", priority=9))
        _ = play.brings(play.submits("alice", "c"))
        document = answered(play.brings(asks(id_="c"))[0])
        assert document is not None
        assert document["queue"]["ahead"] == 1
        assert document["phase"] == "waiting"
        assert document["stages"]["thinker"]["replica"] is None


class TestT1Questions:
    def test_t1_the_bound_workers_are_asked_and_their_answers_are_in_the_routers(self) -> None:
        play = running()
        assert play >> asks() << to("thinker/0", AskStage) << to("voice/0", AskStage)
        assert play >> answers(play, "thinker/0", 1, state="PARKED")
        caller = wire.CallerState(4, 2, 8, 10, 100, 1, False, 9)
        source = wire.InputState("thinker", "thinker/0", "chunk", 4, 3, False, False, 8)
        edge = wire.EdgeState(
            "voice", "voice/0", "chunk", 5, 4, 3, 32, 99, False, False, 8, "ring", 7, 640, 640, ["other-1"]
        )
        effects = play.brings(answers(play, "voice/0", 1, inputs=[source], edges=[edge], caller=caller))[0]
        document = answered(effects)
        assert document is not None
        assert (document["request_id"], document["attempt"], document["phase"]) == (REQUEST, 1, "running")
        assert (document["caller"], document["silent"], document["now_ns"]) == (True, [], play.now_ns)
        thinker, voice = document["stages"]["thinker"], document["stages"]["voice"]
        assert thinker["answer"]["state"] == "PARKED"
        assert {key: thinker[key] for key in ("replica", "state", "engine", "submitted", "registered", "finished")} == {
            "replica": "thinker/0",
            "state": "ready",
            "engine": "idle",
            "submitted": True,
            "registered": True,
            "finished": False,
        }
        answer = voice["answer"]
        assert (answer["running"], answer["slots"], answer["waiting_for_slot"], answer["outputs"]) == (1, 64, 2, 3)
        assert answer["inputs"][0]["from"] == "thinker"
        assert (answer["edges"][0]["to"], answer["edges"][0]["full"]) == ("voice", "ring")
        assert answer["edges"][0]["holders"] == ["other-1"]
        assert answer["caller"]["unread_bytes"] == 10
        assert is_all_read(document)

    def test_t1_a_worker_that_is_silent_is_named_when_its_time_is_over(self) -> None:
        play = running()
        _ = play.brings(Ticked())
        assert play >> asks() << to("thinker/0", AskStage) << to("voice/0", AskStage)
        assert play >> answers(play, "voice/0", 1)
        assert play.core.next_tick() == pytest.approx(play.now + ANSWER_S)
        play.now += ANSWER_S
        document = answered(play.brings(Ticked())[0])
        assert document is not None
        assert document["silent"] == ["thinker/0"]
        assert document["stages"]["thinker"]["answer"] is None
        assert document["stages"]["voice"]["answer"]["state"] == "RUNNING"
        assert play.brings(Ticked())[0] == [], "it is answered once"
        late = play.counts("late_frames")
        assert play.brings(answers(play, "thinker/0", 1))[0] == []
        assert play.counts("late_frames") == late + 1

    @pytest.mark.parametrize(
        "wrong", [{"request_id": "other-1"}, {"attempt": 2}, {"call": 2}], ids=["request", "attempt", "call"]
    )
    def test_t1_an_answer_to_another_question_is_dropped(self, wrong: dict[str, Any]) -> None:
        play = running()
        _ = play.brings(asks())
        late = play.counts("late_frames")
        assert play.brings(answers(play, "voice/0", **{"call": 1} | wrong))[0] == []
        assert play.counts("late_frames") == late + 1

    def test_t1_a_stage_that_has_finished_is_not_asked(self) -> None:
        play = running()
        _ = play.brings(play.makes("thinker/0", REQUEST, 1, "Hi", last=True))
        _ = play.brings(play.finishes("thinker/0", REQUEST, outputs=1))
        assert play >> asks() << to("voice/0", AskStage)
        document = answered(play.brings(answers(play, "voice/0", 1))[0])
        assert document is not None
        assert document["stages"]["thinker"]["finished"]
        assert document["deliveries"]["thinker"] == {"sent": 1, "consumed": 0, "ended": True}

    def test_t1_nobody_is_asked_of_a_request_that_waits_or_is_not_live(self) -> None:
        play = router(stages={"thinker": {"max_inflight": 1}})
        for name in ("a", "b"):
            _ = play.brings(play.submits("alice", name))
        waiting = answered(play.brings(asks(id_="b"))[0])
        assert waiting is not None
        assert waiting["queue"]["why"] == "full"
        assert answered(play.brings(asks(id_="nobody"))[0]) is None

    def test_t1_the_newest_bearer_of_an_external_id_is_meant(self) -> None:
        play = router(stages={"thinker": {"max_inflight": 1}})
        _ = play.brings(play.submits("alice", "a", suffix="f" * 16))
        play.now += 1
        _ = play.brings(play.submits("alice", "a", suffix="0" * 16))
        newest = answered(play.brings(asks(id_="a"))[0])
        assert newest is not None
        assert newest["request_id"] == rid("a", "0" * 16)

    def test_t1_a_request_that_ends_meanwhile_is_not_live_any_more(self) -> None:
        play = running()
        _ = play.brings(asks())
        _ = play.brings(play.finishes("voice/0", REQUEST, None, error=wire.ErrorInfo("stage_error", "", "", "", False)))
        _ = play.brings(play.finishes("thinker/0", REQUEST, "abort"))
        play.now += ANSWER_S
        assert answered(play.brings(Ticked())[0]) is None

    def test_t1_a_dead_replica_is_not_asked_and_what_it_had_begins_again(self) -> None:
        play = RouterPlay(config("thinker:text", stages={"thinker": {"replicas": 2}}))
        _ = play.brings(play.submits("alice"))
        _ = play.brings(play.dies("thinker/0"))
        assert play >> asks() << to("thinker/1", AskStage, attempt=2)
        document = answered(play.brings(answers(play, "thinker/1", 1, attempt=2))[0])
        assert document is not None
        assert document["attempt"] == 2

    def test_t1_who_was_asked_about_an_earlier_attempt_is_not_silent_about_this_one(self) -> None:
        play = RouterPlay(config("thinker:text", stages={"thinker": {"replicas": 2}}))
        _ = play.brings(play.submits("alice"))
        assert play >> asks() << to("thinker/0", AskStage, attempt=1)
        _ = play.brings(play.dies("thinker/0"))
        play.now += ANSWER_S
        document = answered(play.brings(Ticked())[0])
        assert document is not None
        assert (document["attempt"], document["silent"]) == (2, [])

    def test_t1_what_an_engine_counts_is_in_its_stages_report_and_its_worker_s_times_are_not(self) -> None:
        play = running()
        usage = {"audio_s": 1.5, "chunks": 3, "input_wait_s": 1.0, "first_output_s": 1.0, "stage_s": 2.0}
        _ = play.brings(play.finishes("voice/0", REQUEST, usage=usage))
        counted = {key: value for key, value in last(play, "finished").detail.items() if key.startswith("usage_")}
        assert counted == {"usage_audio_s": 1.5, "usage_chunks": 3}

    def test_b1_questions_are_bounded_the_oldest_is_answered_with_what_has_come(self) -> None:
        play = router("thinker:text", stages={"thinker": {"max_inflight": MAX_OPEN + 1}})
        for number in range(MAX_OPEN + 1):
            _ = play.brings(play.submits("alice", f"r{number}"))
        for call in range(MAX_OPEN):
            assert not any(isinstance(one, ToClient) for one in play.brings(asks(call, f"r{call}"))[0])
        effects = play.brings(asks(MAX_OPEN, f"r{MAX_OPEN}"))[0]
        (first,) = [one.frame for one in effects if isinstance(one, ToClient)]
        assert isinstance(first, Traced)
        assert first.call == 0
        document = answered(effects)
        assert document is not None
        assert document["silent"] == [], "nobody had the time to answer"
        assert len(play.core._inquiries) == MAX_OPEN

    def test_b1_many_that_ask_about_one_request_are_one_question(self) -> None:
        play = running()
        assert play >> asks(1) << to("thinker/0", AskStage) << to("voice/0", AskStage)
        for call in range(2, 100):
            assert play.brings(asks(call, client="bob"))[0] == []
        assert play >> answers(play, "thinker/0", 1)
        effects = play.brings(answers(play, "voice/0", 1))[0]
        assert [(one.client, one.frame.call) for one in effects if isinstance(one, ToClient)] == [
            (b"alice", 1),
            *((b"bob", call) for call in range(2, 100)),
        ]
        assert play >> asks(100) << to("thinker/0", AskStage) << to("voice/0", AskStage)

    def test_b3_no_question_stays(self) -> None:
        play = running()
        _ = play.brings(asks())
        play.now += ANSWER_S
        _ = play.brings(Ticked())
        assert len(play.core._inquiries) == 0
        assert play.core._inquiries._about == {}
        assert play.core._inquiries.next() is None


class TestT1Contents:
    def test_t1_nothing_of_prompt_or_output_is_in_any_fact_unless_asked_for(self) -> None:
        play = running()
        _ = play.brings(play.makes("thinker/0", REQUEST, 1, "a secret", last=True))
        everything = repr(play.facts)
        assert "Hello." not in everything
        assert "a secret" not in everything

    def test_t1_with_trace_contents_they_are(self) -> None:
        play = running(trace_contents=True)
        _ = play.brings(play.makes("thinker/0", REQUEST, 1, "x" * 5000))
        _ = play.brings(play.makes("voice/0", REQUEST, 1, b"abcd"))
        assert last(play, "prompt").detail == {"kind": "text", "text": "Hello.", "chars": 6}
        text, sound = [fact.detail for fact in play.facts if fact.event == "output"]
        assert text == {"kind": "text", "text": "x" * 4096, "chars": 5000}
        assert sound == {"kind": "audio", "bytes": 4, "sample_rate": 24_000}

    @pytest.mark.parametrize(
        ("prompt", "detail"),
        [
            (wire.Prompt(None, None, [1, 2, 3]), {"kind": "tokens", "tokens": 3}),
            (
                wire.Prompt(
                    None,
                    [wire.Message("user", [wire.TextPart("What is"), wire.AudioPart(b"RIFF"), wire.ImagePart(b"png")])],
                    None,
                ),
                {"kind": "messages", "text": "user: What is [audio, 4 bytes] [image, 3 bytes]", "chars": 47},
            ),
        ],
    )
    def test_t1_a_prompt_that_is_no_text(self, prompt: wire.Prompt, detail: dict[str, Any]) -> None:
        play = router(trace_contents=True)
        _ = play.brings(play.submits("alice", prompt=prompt))
        assert last(play, "prompt").detail == detail


class TestTraceContext:
    def test_t1_a_stage_gets_the_context_of_its_own_span_in_the_callers_trace(self) -> None:
        trace = "4bf92f3577b34da6a3ce929d0e0e4736"
        play = router(SPEECH)
        effects = play.brings(play.submits("alice", traceparent=f"00-{trace}-00f067aa0ba902b7-01"))[0]
        (frame,) = [one.frame for one in effects if isinstance(getattr(one, "frame", None), SubmitStage)]
        version, found, span, flags = frame.traceparent.split("-")
        assert (version, found, flags) == ("00", trace, "01")
        assert span != "00f067aa0ba902b7"

    def test_t1_a_traceparent_that_is_none_is_refused(self) -> None:
        play = router()
        effects, facts = play.brings(play.submits("alice", traceparent="nonsense"))
        (frame,) = [one.frame for one in effects if isinstance(one, ToClient)]
        assert isinstance(frame, wire.Refused)
        assert "'nonsense' is not W3C trace context" in frame.error.message
        assert facts == ["asked", "refused"]


def test_credits_still_go_to_the_stage() -> None:
    """The fact that a caller reads is beside its credit, not in its stead."""
    play = running()
    assert play >> play.makes("thinker/0", REQUEST, 1, "Hi") << to("alice", wire.Delivery)
    assert play >> play.has_read("alice", REQUEST, "thinker", 1) << to("thinker/0", OutputCredit, consumed=1)
