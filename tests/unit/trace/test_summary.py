"""The document of `trace --json` (T1, T2): exact on known stories, and there for any part of one."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import trace_stories as stories
from support.live_stories import chain

from omnizmq.trace.facts import Fact
from omnizmq.trace.summary import summarize

STAGE_KEYS = [
    "replica",
    "engine_id",
    "submitted_ms",
    "input_ready_ms",
    "first_output_ms",
    "finished_ms",
    "finish_reason",
    "outputs",
    "last_output_ms",
]
VERDICT_KEYS = ["complete", "last_boundary", "waiting_for", "since_ms", "owner", "text"]
VERDICT_KEYS += ["cause", "stage", "replica", "reason_no_output"]
KEYS = ["request_id", "external_id", "state", "verdict", "stages", "edges", "terminal", "attempts", "events", "live"]


def test_t1_a_complete_request_in_full() -> None:
    document = summarize(stories.spoken(), running=False)
    assert list(document) == KEYS
    assert document["request_id"] == stories.REQUEST
    assert document["external_id"] == "demo"
    assert document["state"] == "ended"
    assert list(document["stages"]) == ["thinker", "talker", "code2wav"]
    assert document["stages"]["talker"] == {
        "replica": "talker/0",
        "engine_id": f"{stories.REQUEST}/1/talker",
        "submitted_ms": 3.0,
        "input_ready_ms": 41.0,
        "first_output_ms": 60.0,
        "finished_ms": 150.0,
        "finish_reason": "stop",
        "outputs": 0,
        "last_output_ms": 148.0,
    }
    assert document["edges"] == [
        {"from": "thinker", "to": "talker", "chunks": 8, "bytes": 2048, "first_ms": 40.5, "last_ms": 88.0},
        {"from": "talker", "to": "code2wav", "chunks": 16, "bytes": 4096, "first_ms": 60.5, "last_ms": 148.0},
    ]
    assert document["terminal"] == {"at_ms": 200.0, "stage": "code2wav", "finish_reason": "stop", "error": None}
    assert document["attempts"] == [{"number": 1, "why": None, "stages": document["stages"]}]
    assert len(document["events"]) == len(stories.spoken())
    assert document["events"][0] == {"at_ms": 0.0, "owner": "client", "event": "asked", "attempt": 1}


def test_p3_a_text_only_request_shows_the_stages_that_were_not_planned_with_nulls() -> None:
    facts = [*stories.asked(stories.TEXT), *stories.bound(2, "thinker"), *stories.registered(3, "thinker")]
    stages = summarize(facts, running=True)["stages"]
    assert list(stages) == ["thinker", "talker", "code2wav"]
    assert stages["thinker"]["submitted_ms"] == 3.0
    assert stages["talker"] == stages["code2wav"] == dict.fromkeys(STAGE_KEYS)


def test_s2_a_fact_that_was_not_recorded_is_not_derived_from_another() -> None:
    facts = [fact for fact in stories.spoken() if fact.event not in ("submitted", "input_ready")]
    stage = summarize(facts, running=False)["stages"]["talker"]
    assert stage["submitted_ms"] is None
    assert stage["input_ready_ms"] is None
    assert stage["first_output_ms"] == 60.0


def test_a_moment_in_a_detail_is_in_milliseconds_too() -> None:
    events = summarize(stories.spoken(), running=False)["events"]
    edge = next(event for event in events if event["event"] == "edge")
    assert (edge["first_ms"], edge["last_ms"], edge["to"]) == (40.5, 88.0, "talker")
    assert "first_ns" not in edge


def test_a_duration_in_a_detail_is_no_moment() -> None:
    edge = stories.fact(50, "edge", "thinker", {"to": "talker", "chunks": 1, "parked_ns": 2_500_000, "last_ns": 0})
    (event,) = (event for event in summarize([*stories.started(), edge], running=True)["events"] if "to" in event)
    assert (event["parked_ms"], event["last_ms"]) == (2.5, None)


def test_t2_what_the_router_answered_is_shown_as_it_came() -> None:
    document = chain()
    summary = summarize(stories.started(), running=True, live=document)
    assert summary["live"] == document
    assert summary["verdict"]["cause"] == "engine"


def test_a_request_that_its_router_holds_no_more_has_ended() -> None:
    assert summarize(stories.started(), running=True, router="unknowing")["state"] == "ended"
    assert summarize(stories.started(), running=True, router="silent")["state"] == "live"


def test_an_edge_without_chunks_has_null_times() -> None:
    empty = stories.fact(50, "edge", "thinker", {"to": "talker", "chunks": 0, "bytes": 0, "first_ns": 0, "last_ns": 0})
    (edge,) = summarize([*stories.started(), empty], running=True)["edges"]
    assert edge == {"from": "thinker", "to": "talker", "chunks": 0, "bytes": 0, "first_ms": None, "last_ms": None}


def test_of_several_counts_of_an_edge_the_highest_is_shown_and_only_of_the_last_attempt() -> None:
    early, late = (stories.edge(50, "thinker", "talker", chunks, 40, 45) for chunks in (2, 5))
    for facts in ([early, late], [late, early]):
        (edge,) = summarize([*stories.started(), *facts], running=True)["edges"]
        assert edge["chunks"] == 5
    assert summarize([*stories.redriven(), late], running=True)["edges"] == []


def test_of_a_fact_that_came_twice_the_first_counts() -> None:
    facts = [*stories.started(), stories.fact(9, "submitted", "thinker")]
    assert summarize(facts, running=True)["stages"]["thinker"]["submitted_ms"] == 5.0


def test_f1_an_error_has_code_stage_replica_message_and_whether_a_retry_helps() -> None:
    error = {
        "error_code": "replica_lost",
        "error_stage": "talker",
        "error_replica": "talker/0",
        "error_message": "gone",
    }
    document = summarize([*stories.started(), stories.terminal(99, "error", **error)], running=True)
    assert document["state"] == "ended"
    assert document["terminal"]["error"] == {
        "code": "replica_lost",
        "stage": "talker",
        "replica": "talker/0",
        "message": "gone",
        "retriable": True,
    }


def test_f2_stages_and_edges_are_those_of_the_last_attempt() -> None:
    document = summarize(stories.redriven(), running=False)
    assert document["stages"]["talker"]["engine_id"] == f"{stories.REQUEST}/2/talker"
    assert [(attempt["number"], attempt["why"]) for attempt in document["attempts"]] == [(1, None), (2, "replica_lost")]
    assert document["attempts"][0]["stages"]["talker"]["finish_reason"] == "error"
    assert document["attempts"][1]["stages"] == document["stages"]
    assert document["edges"] == []


@pytest.mark.parametrize(("live", "state"), [(True, "live"), (False, "ended")])
def test_a_request_without_a_terminal_is_live_while_its_deployment_is(live: bool, state: str) -> None:
    assert summarize(stories.started(), running=live)["state"] == state


def test_time_zero_is_the_clients_asked_wherever_it_stands() -> None:
    facts = stories.spoken()
    assert summarize([*facts[1:], facts[0]], running=False) == summarize(facts, running=False)


def test_a_client_whose_clock_runs_ahead_makes_no_negative_times() -> None:
    facts = [stories.fact(10**6, "asked"), *stories.started()[1:]]
    events = summarize(facts, running=True)["events"]
    assert events[0]["at_ms"] == 0.0
    assert events[0]["event"] == "received"


def test_nothing_at_all_has_a_summary() -> None:
    document = summarize([], running=False)
    assert list(document) == KEYS
    assert document["request_id"] is None
    assert document["events"] == []


STORIES = [stories.spoken(), stories.redriven(), [*stories.started(), stories.fact(9, "abort_asked")]]


def check(facts: list[Fact], *, live: bool) -> dict[str, Any]:
    document = summarize(facts, running=live)
    assert list(document) == KEYS
    assert list(document["verdict"]) == VERDICT_KEYS
    assert document["verdict"]["text"]
    assert all(list(stage) == STAGE_KEYS for stage in document["stages"].values())
    assert all(event["at_ms"] >= 0 for event in document["events"])
    assert len(document["events"]) == len(facts)
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    return document


@settings(deadline=None, derandomize=True, max_examples=300)
@given(story=st.sampled_from(STORIES), data=st.data(), live=st.booleans())
def test_any_part_of_a_story_in_any_order_has_a_summary(story: list[Fact], data: st.DataObject, live: bool) -> None:
    part = data.draw(st.lists(st.sampled_from(story), unique_by=id))
    document = check(part, live=live)
    assert (document["terminal"] is None) == all(fact.event != "terminal" for fact in part)


@settings(deadline=None, derandomize=True, max_examples=200)
@given(order=st.permutations(stories.spoken()))
def test_the_order_in_which_facts_were_recorded_does_not_matter(order: list[Fact]) -> None:
    document, whole = summarize(order, running=False), summarize(stories.spoken(), running=False)
    # Facts of one moment have no order among themselves.
    key = json.dumps
    assert sorted(document.pop("events"), key=key) == sorted(whole.pop("events"), key=key)
    assert document == whole


@pytest.mark.parametrize("story", STORIES)
def test_t2_every_beginning_of_a_story_says_what_is_awaited_and_whose_move_it_is(story: list[Fact]) -> None:
    for length in range(1, len(story)):
        verdict = check(story[:length], live=True)["verdict"]
        assert verdict["waiting_for"], verdict
        assert verdict["owner"] in ("client", "router", "thinker/0", "talker/0", "code2wav/0"), verdict
        assert verdict["since_ms"] is not None
        assert not verdict["complete"]


EVENTS = [
    *("asked", "received", "refused", "queued", "bound", "submitted", "registered", "input_ready", "running"),
    *("first_output", "output_ended", "edge", "finished", "withheld", "abort_asked", "left_behind", "terminal"),
    *("dropped", "from a newer version"),
]
KEYS_OF_DETAILS = [
    *("stages", "all_stages", "edges", "replica", "to", "chunks", "bytes", "first_ns", "why", "rows", "code", "stage"),
    *("finish_reason", "outputs", "usage_incomplete", "error_code", "error_stage", "at_ms"),
]
VALUES = st.sampled_from(
    [None, True, "", "a", "a,b", "a>b,b>a", ",>", "stop", "abort", 0, -5, 3, 1.5, 2**62, 2**64 - 1]
)
ODD = st.builds(
    Fact,
    request_id=st.just("r"),
    external_id=st.just("r"),
    attempt=st.integers(0, 3),
    at_ns=st.integers(-(2**63), 2**63 - 1),
    owner=st.sampled_from(["client", "router", "a/0", "b/1", "trace", ""]),
    event=st.sampled_from(EVENTS),
    stage=st.sampled_from([None, "a", "b", "c", ""]),
    detail=st.dictionaries(st.sampled_from(KEYS_OF_DETAILS), VALUES, max_size=4),
)


@settings(deadline=None, derandomize=True, max_examples=500)
@given(facts=st.lists(ODD, max_size=12), live=st.booleans())
def test_facts_that_make_no_sense_have_a_summary_too(facts: list[Fact], live: bool) -> None:
    check(facts, live=live)


def test_f2_a_stage_whose_replica_died_does_not_look_healthy() -> None:
    died = stories.fact(40, "replica_lost", "talker", {"replica": "talker/0", "reason": "killed by SIGKILL"})
    document = summarize([*stories.started(), died], running=True)
    assert document["stages"]["talker"]["finish_reason"] == "error"
    assert document["stages"]["talker"]["finished_ms"] is None  # it never reported its end (S2)
    assert document["stages"]["thinker"]["finish_reason"] is None


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_what_json_cannot_say_is_null(number: float) -> None:
    finished = stories.fact(9, "finished", "thinker", {"usage_loss": number, "usage_tokens": 3})
    document = summarize([*stories.started(), finished], running=True, live={"stages": {"thinker": [number, 0.5]}})
    assert (document["events"][-1]["usage_loss"], document["events"][-1]["usage_tokens"]) == (None, 3)
    assert document["live"] == {"stages": {"thinker": [None, 0.5]}}
    json.dumps(document, allow_nan=False)
