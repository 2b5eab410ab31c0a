"""One sentence about where a request stands (T2): a table of stories, and what must be said of each."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from support import trace_stories as stories
from support.trace_stories import bound, fact, finished, registered, spoken, started

from omnizmq.protocol import Value
from omnizmq.trace.facts import Fact
from omnizmq.trace.timeline import Timeline
from omnizmq.trace.verdict import Verdict, judge


def until(at_ms: float) -> list[Fact]:
    """The good story, up to and with this moment."""
    return [one for one in spoken() if one.at_ns <= stories.ns(at_ms)]


def without(facts: list[Fact], event: str, stage: str) -> list[Fact]:
    return [one for one in facts if (one.event, one.stage) != (event, stage)]


FAILED: dict[str, Value] = {"outputs": 0, "error_code": "stage_error", "error_message": "boom"}
DIAMOND: dict[str, Value] = {
    "stages": "source,left,right,sink",
    "all_stages": "source,left,right,sink",
    "edges": "source>left,source>right,left>sink,right>sink",
}


def diamond() -> list[Fact]:
    """`left` is the one that has not finished; `sink` has no input yet. In a chain, it would wait for `right`."""
    stages = ("source", "left", "right", "sink")
    steps = [fact(10, step, stage) for step in ("input_ready", "running", "first_output") for stage in stages[:3]]
    ends = [finished(20, "source"), finished(30, "right")]
    return [*stories.asked(DIAMOND), *bound(2, *stages), *registered(3, *stages), *steps, *ends]


class Case(NamedTuple):
    name: str
    facts: list[Fact]
    boundary: str | None
    waiting_for: str
    owner: str
    since_ms: float
    text: str


LIVE = [
    Case(
        "nothing",
        [],
        None,
        "the first fact",
        "client",
        0,
        "nothing is known of this request yet",
    ),
    Case(
        "asked",
        until(0),
        "asked",
        "the router to receive it",
        "router",
        0,
        "asked, and not yet received by the router",
    ),
    Case(
        "received",
        until(1),
        "received",
        "the router to choose its replicas",
        "router",
        1,
        "received, and not yet given to any replica",
    ),
    Case(
        "queued",
        [*until(1), fact(1, "queued")],
        "queued",
        "a replica with room",
        "router",
        1,
        "queued since 1.0 ms: no replica has room",
    ),
    Case(
        "queued for one stage",
        [*until(1), fact(1.5, "queued", detail={"lacks": "talker"})],
        "queued",
        "a replica of talker with room",
        "router",
        1.5,
        "queued since 1.5 ms: no replica of talker has room",
    ),
    Case(
        "no longer queued",
        [*until(1), fact(1, "queued"), *bound(20)],
        "thinker bound",
        "the router to submit code2wav",
        "router",
        20,
        "code2wav is not submitted, since 20 ms",
    ),
    Case(
        "a consumer has not registered, so its producer is not submitted",
        [
            *until(2),
            fact(3, "submitted", "code2wav"),
            fact(4, "registered", "code2wav"),
            fact(3, "submitted", "talker"),
        ],
        "code2wav registered",
        "talker's registration",
        "talker/0",
        3,
        "talker/0 was given the request at 3.0 ms and has not registered it; "
        "code2wav/0 waits for the first chunk from talker",
    ),
    Case(
        "registered without input",
        [*until(2), *registered(3, "code2wav", "talker", "thinker")],
        "code2wav registered",
        "thinker's input",
        "thinker/0",
        4,
        "thinker/0 holds the request without input since 4.0 ms; "
        "talker/0 waits for the first chunk from thinker; code2wav/0 waits for the first chunk from talker",
    ),
    Case(
        "input ready, engine idle",
        until(7),
        "thinker input_ready",
        "thinker/0's engine",
        "thinker/0",
        7,
        "thinker/0 has input since 7.0 ms and its engine has not begun; "
        "talker/0 waits for the first chunk from thinker; code2wav/0 waits for the first chunk from talker",
    ),
    Case(
        "the first stage computes",
        started(),
        "thinker running",
        "thinker's first output",
        "thinker/0",
        8,
        "thinker/0 has computed since 8.0 ms without a first output; "
        "talker/0 waits for the first chunk from thinker; code2wav/0 waits for the first chunk from talker",
    ),
    Case(
        "the talker has no chunk yet",
        until(40),
        "thinker first_output",
        "the first chunk from thinker",
        "thinker/0",
        40,
        "thinker/0 gives output since 40 ms and has not finished; "
        "talker/0 waits for the first chunk from thinker; code2wav/0 waits for the first chunk from talker",
    ),
    Case(
        "a later stage hangs while the earlier one still gives output",
        until(42),
        "talker running",
        "talker's first output",
        "talker/0",
        42,
        "talker/0 has computed since 42 ms without a first output; code2wav/0 waits for the first chunk from talker",
    ),
    Case(
        "all give output, the first has not finished",
        until(80),
        "code2wav first_output",
        "the next chunk from thinker",
        "thinker/0",
        40,
        "thinker/0 gives output since 40 ms and has not finished; "
        "talker/0 waits for the next chunk from thinker; code2wav/0 waits for the next chunk from talker",
    ),
    Case(
        "an output has ended, its report has not come",
        until(90),
        "thinker output_ended",
        "thinker's report",
        "thinker/0",
        90,
        "the output of thinker/0 ended at 90 ms, and its report is awaited; "
        "talker/0 waits for the next chunk from thinker; code2wav/0 waits for the next chunk from talker",
    ),
    Case(
        "the thinker finished and never sent a chunk",
        [*until(40), finished(50, "thinker")],
        "thinker finished",
        "talker's input",
        "talker/0",
        4,
        "talker/0 holds the request without input since 4.0 ms, although thinker finished; "
        "code2wav/0 waits for the first chunk from talker",
    ),
    Case(
        "withheld",
        [*without(until(199), "finished", "thinker"), fact(199, "withheld", detail={"stages": "thinker"})],
        "withheld",
        "thinker/0's report",
        "thinker/0",
        199,
        "withheld: outputs complete, waiting for thinker/0's report since 199 ms",
    ),
    Case(
        "withheld, for some reports alone",
        [*without(until(149), "finished", "thinker"), fact(199, "withheld", detail={"stages": "talker,code2wav"})],
        "withheld",
        "talker/0's and code2wav/0's report",
        "talker/0",
        199,
        "withheld: outputs complete, waiting for talker/0's and code2wav/0's report since 199 ms",
    ),
    Case(
        "withheld, and the report has come",
        [*until(199), fact(198, "withheld", detail={"stages": "code2wav"})],
        "code2wav finished",
        "the router's terminal",
        "router",
        199,
        "every stage has reported; waiting for the router's terminal since 199 ms",
    ),
    Case(
        "a stage failed",
        [*started(), fact(50, "finished", "talker", FAILED)],
        "talker finished",
        "the router's terminal",
        "router",
        50,
        "talker/0 failed with stage_error at 50 ms; waiting for the router's terminal since 50 ms",
    ),
    Case(
        "abort asked",
        [*started(), fact(50, "abort_asked", detail={"why": "caller"}), finished(51, "thinker")],
        "thinker finished",
        "talker/0, code2wav/0 to confirm the abort",
        "talker/0",
        50,
        "abort asked at 50 ms; waiting for talker/0, code2wav/0 to confirm",
    ),
    Case(
        "abort asked, the rest left behind",
        [
            *started(),
            fact(50, "abort_asked", detail={"why": "caller"}),
            *(fact(60, "left_behind", stage, {"replica": f"{stage}/0"}) for stage in stories.CHAIN.split(",")),
        ],
        "abort_asked",
        "the router's terminal",
        "router",
        50,
        "abort asked at 50 ms; waiting for the router's terminal since 50 ms",
    ),
    Case(
        "a graph that is no chain",
        diamond(),
        "right finished",
        "the first chunk from left",
        "left/0",
        10,
        "left/0 gives output since 10 ms and has not finished; sink/0 waits for the first chunk from left",
    ),
]


def verdict(facts: list[Fact], *, live: bool) -> Verdict:
    return judge(Timeline(facts), running=live)


@pytest.mark.parametrize("case", LIVE, ids=lambda case: case.name)
def test_t2_a_live_request(case: Case) -> None:
    found = verdict(case.facts, live=True)
    assert found.text == case.text
    assert not found.complete
    assert (found.last_boundary, found.waiting_for, found.owner) == (case.boundary, case.waiting_for, case.owner)
    assert found.since_ns == (stories.ns(case.since_ms) if case.facts else 0)


@pytest.mark.parametrize("case", LIVE, ids=lambda case: case.name)
def test_t2_a_request_whose_deployment_ended_first(case: Case) -> None:
    found = verdict(case.facts, live=False)
    assert found.text == (
        f"not complete: the deployment ended while waiting for {case.waiting_for}; last known: {case.text}"
    )
    assert (found.last_boundary, found.waiting_for, found.owner) == (case.boundary, case.waiting_for, case.owner)


def lost(at_ms: float, rows: int) -> Fact:
    detail: dict[str, Value] = {"rows": rows, "why": "the disk did not keep up"}
    return Fact(stories.REQUEST, "demo", 1, stories.ns(at_ms), "trace", "dropped", detail=detail)


def test_t2_a_trace_with_lost_rows_claims_nothing_that_they_could_refute() -> None:
    gap = [*started(), lost(500, 3)]
    assert verdict(gap, live=False).text == (
        "unknown: the trace lost 3 rows meanwhile, perhaps its end; "
        "last known: thinker/0 has computed since 8.0 ms without a first output; "
        "talker/0 waits for the first chunk from thinker; code2wav/0 waits for the first chunk from talker"
    )
    assert verdict(gap, live=True).text.endswith("first chunk from talker (the trace lost 3 rows meanwhile)")
    complete = verdict([*spoken(), lost(100, 1)], live=True)
    assert complete.complete
    assert complete.text == "complete after 200 ms, finish reason stop (the trace lost 1 row meanwhile)"


def test_f2_a_new_attempt_is_judged_by_its_own_facts() -> None:
    second = [one for one in stories.redriven() if one.at_ns <= stories.ns(70) and one.event != "finished"]
    found = verdict(second, live=True)
    assert found.owner == "thinker/0"
    assert found.last_boundary == "thinker first_output"
    late = fact(69, "finished", "code2wav", {"finish_reason": "abort", "outputs": 0})
    assert verdict([*second, late], live=True) == found


# --- Parked, by facts alone ------------------------------------------------------------------------------------------


def parked(at_ms: float, why: str = "credit", target: str = "code2wav") -> Fact:
    room: dict[str, Value] = {"held_bytes": 900, "quota_bytes": 1000}
    detail: dict[str, Value] = {"to": target, "why": why, "unconsumed": 16}
    return fact(at_ms, "parked", "talker", detail | (room if why != "credit" else {}))


def test_t2_a_producer_without_credit_by_facts_alone() -> None:
    found = verdict([*until(80), parked(85)], live=True)
    assert (found.cause, found.stage, found.owner, found.since_ns) == (
        "credit",
        "code2wav",
        "code2wav/0",
        stories.ns(85),
    )
    assert found.waiting_for == "credit for code2wav/0"
    assert found.text == "talker/0 is parked since 85 ms: no credit for code2wav/0 (16 chunks are not consumed)"


def test_t2_a_producer_without_room_by_facts_alone() -> None:
    found = verdict([*until(42), parked(85, "ring")], live=True)
    assert (found.cause, found.stage, found.waiting_for) == ("ring", "code2wav", "room in the ring for code2wav/0")
    assert found.text == (
        "talker/0 is parked since 85 ms: no room in the ring for code2wav/0 (900 of 1000 bytes of the ring are held); "
        "code2wav/0 waits for the first chunk from talker"
    )


def test_t2_a_stage_that_went_on_after_it_was_parked_is_not_parked() -> None:
    went_on = [*until(42), parked(50), fact(60, "first_output", "talker"), *until(80)[-3:]]
    assert verdict(went_on, live=True).cause == "input"


@pytest.mark.parametrize(("parked_ms", "cause"), [(5000, "credit"), (4850, "credit"), (4700, "engine"), (10, "engine")])
def test_t2_the_count_of_an_edge_tells_whether_it_was_parked_at_the_end(parked_ms: int, cause: str) -> None:
    count = stories.edge(5100, "talker", "code2wav", 16, 60, 150)
    count.detail["parked_ns"] = parked_ms * 10**6
    silent = stories.edge(5100, "thinker", "talker", 90, 40, 5000)
    assert verdict([*until(80), parked(85), count, silent], live=True).cause == cause


def test_t2_a_consumer_that_has_finished_or_is_not_known_parks_nobody() -> None:
    plan = [*until(80), parked(85, target="elsewhere")]
    assert verdict(plan, live=True).cause == "input"
    over = [*until(80), parked(85), finished(90, "code2wav")]
    assert verdict(over, live=True).cause == "input"


def test_t2_a_caller_that_reads_again_is_not_waited_for() -> None:
    paused = [*until(80), fact(85, "paused", "code2wav")]
    found = verdict(paused, live=True)
    assert (found.cause, found.owner, found.since_ns) == ("caller_reads", "client", stories.ns(85))
    assert found.text == "code2wav/0 waits for the caller to read since 85 ms"
    assert verdict([*paused, fact(95, "resumed", "code2wav")], live=True).cause == "input"
