"""What is said of a request that has ended (T2): how, where, what was awaited then, and why an output is missing."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from msgspec import structs
from support import trace_stories as stories
from support.trace_stories import bound, edge, fact, finished, ns, spoken, started, terminal

from omnizmq.protocol import Value
from omnizmq.trace.facts import Fact
from omnizmq.trace.timeline import Timeline
from omnizmq.trace.verdict import Verdict, judge

ERROR: dict[str, Any] = {
    "error_code": "stage_error",
    "error_stage": "talker",
    "error_replica": "talker/0",
    "error_message": "boom",
}
LATE: dict[str, Any] = {"error_code": "deadline_exceeded", "error_stage": None, "error_message": "too late"}
ABORT: dict[str, Value] = {"why": "caller"}
BEHIND = "talker/0 waits for the first chunk from thinker; code2wav/0 waits for the first chunk from talker"
COMPUTED = f"thinker/0 has computed since 8.0 ms without a first output; {BEHIND}"


def until(at_ms: float) -> list[Fact]:
    return [one for one in spoken() if one.at_ns <= ns(at_ms)]


def cut(at_ms: float, stage: str, **error: Value) -> Fact:
    """A stage's own report of an abort or an error."""
    return fact(at_ms, "finished", stage, error or {"finish_reason": "abort", "outputs": 0})


def queued(until_ms: float, *, spoken_after: float) -> list[Fact]:
    """The good story with a wait for the thinker before its replicas were bound."""
    late = [structs.replace(one, at_ns=one.at_ns + round(spoken_after * 1e6)) for one in spoken()[2:]]
    return [
        *stories.asked(),
        fact(until_ms - spoken_after, "queued", detail={"why": "full", "lacks": "thinker"}),
        *late,
    ]


class Case(NamedTuple):
    name: str
    facts: list[Fact]
    cause: str
    stage: str | None
    boundary: str
    text: str


SILENT: dict[str, Any] = {
    "error_code": "input_timeout",
    "error_stage": "thinker",
    "error_replica": "thinker/0",
    "error_message": "edge thinker->talker: thinker/0 sent nothing for 5 s after chunk 4 (edge.input_timeout_s)",
}
AGAIN = [
    fact(55, "redriven", detail={"why": "talker/0 died"}, attempt=2),
    fact(95, "terminal", "code2wav", {"finish_reason": "stop"}, attempt=2),
]
AUDIO = ("talker", "code2wav")
HUNG = [*until(80), finished(91, "thinker"), fact(5000, "abort_asked", detail=ABORT)]

CASES = [
    Case("complete", spoken(), "complete", None, "terminal", "complete after 200 ms, finish reason stop"),
    Case(
        "cut at its length",
        [*spoken()[:-1], terminal(200, "length")],
        "complete",
        None,
        "terminal",
        "complete after 200 ms, finish reason length",
    ),
    Case(
        "c5_incomplete_usage",
        [*spoken()[:-1], terminal(200, usage_incomplete="thinker,talker")],
        "complete",
        "thinker",
        "terminal",
        "complete after 200 ms, finish reason stop; the usage of thinker/0, talker/0 is missing",
    ),
    Case(
        "a stage failed: the boundary is the one before",
        [*until(42), cut(98, "talker", error_code="stage_error"), terminal(99, "error", **ERROR)],
        "stage_error",
        "talker",
        "talker running",
        "failed after 99 ms: stage_error in talker/0: boom",
    ),
    Case(
        "an edge went silent",
        [*until(80), cut(5090, "thinker", error_code="input_timeout"), terminal(5091, "error", **SILENT)],
        "input_timeout",
        "thinker",
        "code2wav first_output",
        "failed after 5.1 s: input_timeout in thinker/0: edge thinker->talker: thinker/0 sent nothing for 5 s "
        "after chunk 4 (edge.input_timeout_s); talker/0 and code2wav/0 waited for it",
    ),
    Case(
        "b2_deadline, and the first stage had given nothing",
        [*started(), terminal(99, "error", **LATE), cut(99.5, "thinker")],
        "deadline_exceeded",
        "thinker",
        "thinker running",
        f"failed after 99 ms: deadline_exceeded: too late; what was awaited: {COMPUTED}",
    ),
    Case(
        "b2_deadline, and the edges tell who stood still",
        [
            *until(80),
            terminal(5000, "error", **LATE),
            edge(5001, "thinker", "talker", 90, 40, 4990),
            edge(5001, "talker", "code2wav", 3, 60, 70),
        ],
        "deadline_exceeded",
        "talker",
        "code2wav first_output",
        "failed after 5.0 s: deadline_exceeded: too late; what was awaited: "
        "talker/0 has made nothing more since 70 ms; code2wav/0 waits for the next chunk from talker",
    ),
    Case(
        "b2_deadline while all went on, and what edges counted is of after it",
        [
            *until(80),
            terminal(1001, "error", **LATE),
            edge(1022, "thinker", "talker", 90, 40, 1019),
            edge(1022, "talker", "code2wav", 90, 60, 1018),
        ],
        "deadline_exceeded",
        "thinker",
        "code2wav first_output",
        "failed after 1.0 s: deadline_exceeded: too late; what was awaited: thinker/0 gives output since 40 ms and has "
        "not finished; talker/0 waits for the next chunk from thinker; code2wav/0 waits for the next chunk from talker",
    ),
    Case(
        "b2_deadline while one stood still, and the one before it went on after the deadline",
        [
            *until(80),
            terminal(5000, "error", **LATE),
            edge(5022, "thinker", "talker", 90, 40, 5019),
            edge(5022, "talker", "code2wav", 3, 60, 70),
        ],
        "deadline_exceeded",
        "talker",
        "code2wav first_output",
        "failed after 5.0 s: deadline_exceeded: too late; what was awaited: "
        "talker/0 has made nothing more since 70 ms; code2wav/0 waits for the next chunk from talker",
    ),
    Case(
        "b2_deadline of one that was parked once, and whose edge was in use to the end",
        [
            *until(80),
            fact(85, "parked", "talker", {"to": "code2wav", "why": "credit", "unconsumed": 16}),
            terminal(1001, "error", **LATE),
            edge(1022, "talker", "code2wav", 90, 60, 1019),
        ],
        "deadline_exceeded",
        "thinker",
        "code2wav first_output",
        "failed after 1.0 s: deadline_exceeded: too late; what was awaited: thinker/0 gives output since 40 ms and has "
        "not finished; talker/0 waits for the next chunk from thinker; code2wav/0 waits for the next chunk from talker",
    ),
    Case(
        "b2_deadline in the queue",
        [*until(1), fact(1.5, "queued", detail={"why": "full", "lacks": "talker"}), terminal(99, "error", **LATE)],
        "deadline_exceeded",
        "talker",
        "queued",
        "failed after 99 ms: deadline_exceeded: too late; what was awaited: "
        "queued since 1.5 ms: all places of talker are taken",
    ),
    Case(
        "a2_aborted while a stage was stuck",
        [*HUNG, fact(5010, "left_behind", "talker", {"replica": "talker/0"}), terminal(5010, "abort")],
        "aborted",
        "talker",
        "thinker finished",
        "aborted after 5.0 s by its caller; what was awaited: "
        "talker/0 gives output since 60 ms and has not finished; "
        "code2wav/0 waits for the next chunk from talker; talker/0 did not confirm the abort and was left behind",
    ),
    Case(
        "an abort that one stage confirmed late: it was that one, though by the facts it may be the one before",
        [
            *until(80),
            fact(5000, "abort_asked", detail=ABORT),
            cut(5010, "thinker"),
            cut(5012, "code2wav"),
            cut(6500, "talker"),
            terminal(6500, "abort"),
        ],
        "aborted",
        "talker",
        "code2wav first_output",
        "aborted after 6.5 s by its caller; what was awaited: talker/0, which was slow to confirm the end and did at "
        "6500 ms, while the others confirmed at once",
    ),
    Case(
        "an abort that all confirmed late says nothing of any",
        [
            *until(80),
            fact(5000, "abort_asked", detail=ABORT),
            *(cut(6500, stage) for stage in ("thinker", "talker", "code2wav")),
            terminal(6500, "abort"),
        ],
        "aborted",
        "thinker",
        "code2wav first_output",
        "aborted after 6.5 s by its caller; what was awaited: thinker/0 gives output since "
        "40 ms and has not finished; talker/0 waits for the next chunk from thinker; "
        "code2wav/0 waits for the next chunk from talker",
    ),
    Case(
        "aborted by another client",
        [*started(), fact(486, "abort_asked", detail={"why": "operator"}), terminal(487, "abort")],
        "aborted",
        "thinker",
        "thinker running",
        f"aborted after 487 ms by an operator (another client); what was awaited: {COMPUTED}",
    ),
    Case(
        "a long time has no other unit than a wait",
        [*started(), terminal(121_890, "abort")],
        "aborted",
        None,
        "thinker running",
        "aborted after 2 min 2 s",
    ),
    Case(
        "complete, and most of it was in the queue",
        queued(4000, spoken_after=3999),
        "complete",
        None,
        "terminal",
        "complete after 4.2 s, of which queued 4.0 s for thinker, finish reason stop",
    ),
    Case(
        "complete, and a tenth of it was in the queue",
        queued(21, spoken_after=20),
        "complete",
        None,
        "terminal",
        "complete after 220 ms, finish reason stop",
    ),
    Case(
        "f2_complete after a wait for a replica to be back",
        [
            *(one for one in stories.redriven()[:-1] if (one.event, one.attempt) != ("bound", 2)),
            fact(50, "redriven", detail={"why": "talker/0 died"}, attempt=2),
            fact(50, "queued", detail={"why": "starting", "lacks": "talker"}, attempt=2),
            *(fact(3050, "bound", stage, attempt=2) for stage in AUDIO),
            fact(3095, "terminal", "code2wav", {"finish_reason": "stop"}, attempt=2),
        ],
        "complete",
        None,
        "terminal",
        "complete after 3.1 s, of which queued 3.0 s for talker in attempt 2, finish reason stop; "
        "this was attempt 2, attempt 1 was lost: talker/0 died",
    ),
    Case(
        "aborted unasked",
        [*started(), terminal(51, "abort")],
        "aborted",
        None,
        "thinker running",
        "aborted after 51 ms",
    ),
    Case(
        "a7_disconnect",
        [*started(), fact(50, "abort_asked", detail={"why": "disconnect: pid 7 is gone"}), terminal(51, "abort")],
        "caller_gone",
        "thinker",
        "thinker running",
        f"aborted after 51 ms (disconnect: pid 7 is gone); what was awaited: {COMPUTED}",
    ),
    Case(
        "f2_lost to a replica in the second attempt",
        [
            *started(),
            fact(30, "replica_lost", "talker", {"replica": "talker/0", "reason": "killed by SIGKILL"}),
            fact(31, "redriven", detail={"why": "talker/0 died: killed by SIGKILL"}, attempt=2),
            *stories.bound(32, attempt=2),
            fact(
                60,
                "terminal",
                "code2wav",
                {
                    "finish_reason": "error",
                    "error_code": "replica_lost",
                    "error_stage": "talker",
                    "error_replica": "talker/1",
                    "error_message": "talker/1 died: exit status 3",
                },
                attempt=2,
            ),
        ],
        "replica_lost",
        "talker",
        "thinker bound",
        "failed after 60 ms: replica_lost in talker/1: talker/1 died: exit status 3; "
        "this was attempt 2, attempt 1 was lost: talker/0 died: killed by SIGKILL",
    ),
    Case(
        "f2_complete in the second attempt, while the first one's stages still report",
        [*stories.redriven()[:-1], fact(93, "finished", "thinker", {"finish_reason": "abort"}), *AGAIN],
        "complete",
        None,
        "terminal",
        "complete after 95 ms, finish reason stop; this was attempt 2, attempt 1 was lost: talker/0 died",
    ),
    Case(
        "a3_aborted in the queue for a second attempt, which closes what the first one had delivered",
        [
            *until(80),
            fact(55, "redriven", detail={"why": "talker/0 died"}, attempt=2),
            fact(55, "queued", detail={"why": "no_replica", "lacks": "talker"}, attempt=2),
            fact(90, "abort_asked", detail=ABORT, attempt=2),
            fact(90, "delivered", "code2wav", attempt=2),
            fact(90, "terminal", "code2wav", {"finish_reason": "abort"}, attempt=2),
        ],
        "aborted",
        "talker",
        "queued",
        "aborted after 90 ms by its caller; what was awaited: attempt 2, because talker/0 died, is queued since 55 ms: "
        "no replica of talker is live",
    ),
    Case(
        "refused",
        [fact(0, "asked"), fact(1, "refused", detail={"code": "overloaded", "message": "3 wait already"})],
        "refused",
        None,
        "refused",
        "refused: overloaded: 3 wait already",
    ),
]


def verdict(facts: list[Fact], *, running: bool = True) -> Verdict:
    return judge(Timeline(facts), running=running)


@pytest.mark.parametrize("running", [True, False])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_t2_a_request_that_ended(case: Case, running: bool) -> None:
    found = verdict(case.facts, running=running)
    assert found.text == case.text
    assert found.complete == (case.cause == "complete")
    assert (found.cause, found.stage, found.last_boundary) == (case.cause, case.stage, case.boundary)
    assert (found.waiting_for, found.since_ns, found.owner) == (None, None, None)
    if case.cause == "complete":
        assert found.reason_no_output is None


STUCK = [
    (until(42), "talker", "talker running"),
    (until(8), "thinker", "thinker running"),
    ([*until(1), fact(1.5, "queued", detail={"why": "full", "lacks": "talker"})], "talker", "queued"),
    ([*until(80), finished(91, "thinker")], "talker", "thinker finished"),
    ([*until(80), fact(85, "paused", "code2wav")], "code2wav", "code2wav first_output"),
]


@pytest.mark.parametrize(("facts", "stage", "boundary"), STUCK)
def test_t2_the_same_stage_and_boundary_are_named_while_it_is_stuck_and_after(
    facts: list[Fact], stage: str, boundary: str
) -> None:
    ends = [
        [terminal(9000, "error", **LATE)],
        [fact(8000, "abort_asked", detail=ABORT), cut(8001, "code2wav"), terminal(9000, "abort")],
    ]
    for end in ([], *ends):
        found = verdict([*facts, *end])
        assert (found.stage, found.last_boundary) == (stage, boundary)


def test_t2_a_request_that_was_lost_with_its_router_is_nobodys_fault_in_the_pipeline() -> None:
    found = judge(Timeline(until(8)), running=False, router="lost")
    assert (found.cause, found.complete, found.last_boundary) == ("router_lost", False, "thinker running")
    assert (found.stage, found.replica, found.owner, found.waiting_for, found.since_ns) == (None,) * 5
    assert found.text == (
        "lost with its router, which ended some time after 8.0 ms without saying so (killed?); "
        f"what was awaited then: {COMPUTED}"
    )
    assert judge(Timeline(spoken()), running=False, router="lost").complete
    gap = Fact(stories.REQUEST, "demo", 1, ns(90), "trace", "dropped", detail={"rows": 2, "why": "x"})
    unknown = judge(Timeline([*until(8), gap]), running=False, router="lost")
    assert (unknown.cause, unknown.complete) == ("unknown", False)
    assert unknown.text.startswith("unknown: the trace lost 2 rows meanwhile, perhaps its end")
    uncounted = structs.replace(gap, detail={})
    assert verdict([*until(8), uncounted]).text.endswith(" (the trace lost 1 row meanwhile)")
    assert judge(Timeline([]), running=False, router="lost").cause == "router_lost"


def test_t2_a_failure_is_one_whichever_field_says_so() -> None:
    by_code = terminal(99, "stop", error_code="stage_error", error_stage="talker")
    assert verdict([*started(), by_code]).text == "failed after 99 ms: stage_error in talker"
    assert verdict([*started(), terminal(99, "error", error_stage="talker")]).cause == "failed"


def test_t2_when_the_last_of_it_went_to_the_caller_is_when_a_stage_stood_still() -> None:
    """Of a stage that sends its caller alone nothing else tells."""
    text = [one for one in until(40) if one.event != "received" and one.stage in (None, "thinker")]
    text.append(fact(1, "received", detail=stories.TEXT))
    last = fact(400, "last_output", "thinker", {"outputs": 5})
    end = terminal(9000, "error", stage="thinker", **LATE)
    awaited = "failed after 9.0 s: deadline_exceeded: too late; what was awaited: thinker/0 "
    assert verdict([*text, end]).text == f"{awaited}gives output since 40 ms and has not finished"
    assert verdict([*text, last, end]).text == f"{awaited}has made nothing more since 400 ms"
    late = structs.replace(last, at_ns=ns(8500))
    assert verdict([*text, late, end]).text == f"{awaited}gives output since 40 ms and has not finished"


def test_t2_a_last_stage_that_gave_nothing_more_while_its_source_went_on_is_the_one() -> None:
    ends = [edge(9001, "talker", "code2wav", 40, 60.5, 3000), terminal(9000, "error", **LATE)]
    facts = [*until(80), finished(91, "thinker"), *ends]
    last = fact(400, "last_output", "code2wav", {"outputs": 2})
    assert verdict([*facts, last]).stage == "code2wav"
    assert verdict([*facts, structs.replace(last, at_ns=ns(2900))]).stage == "talker"


def test_t2_whose_usage_is_missing_is_named_with_its_replica() -> None:
    for missing, stage in (("talker", "talker"), ("talker,code2wav", "talker"), ("code2wav,talker", "code2wav")):
        found = verdict([*spoken()[:-1], terminal(200, usage_incomplete=missing)])
        assert (found.stage, found.replica) == (stage, f"{stage}/0")


@pytest.mark.parametrize(
    ("waited_ms", "whole_ms", "said"), [(40, 219, False), (60, 10_000, False), (60, 500, True), (1000, 2000, True)]
)
def test_b2_a_wait_that_was_short_or_a_small_part_of_the_whole_is_not_said(
    waited_ms: float, whole_ms: float, said: bool
) -> None:
    facts = queued(1 + waited_ms, spoken_after=waited_ms)[:-1]
    assert ("of which queued" in verdict([*facts, terminal(whole_ms)]).text) is said


def test_t2_what_happened_before_the_end_or_with_it_is_the_last_boundary() -> None:
    """Save what the end itself closed."""
    for more, boundary in (
        (fact(90.5, "delivered", "thinker"), "thinker delivered"),
        (fact(9000, "published", "code2wav"), "code2wav published"),
        (fact(9000, "delivered", "thinker"), "thinker output_ended"),
    ):
        found = verdict([*until(90), more, terminal(9000, "error", **LATE)])
        assert found.last_boundary == boundary


def test_t2_who_waited_for_a_silent_stage_is_named_once_if_it_was_there_and_had_not_ended() -> None:
    plan: dict[str, Value] = {"edges": "source>left,source>right,left>sink,right>sink"}
    stages = ("source", "left", "right", "sink")
    plan |= {"stages": ",".join(stages), "all_stages": ",".join(stages), "final_stages": "sink"}
    silent: dict[str, Any] = {"error_code": "input_timeout", "error_stage": "source", "error_message": "nothing"}
    begun = [*stories.asked(plan), *bound(2, *stages)]
    end = terminal(5000, "error", stage="sink", **silent)
    failed = "failed after 5.0 s: input_timeout in source: nothing"
    all_there = [*begun, *stories.registered(3, *stages), end]
    assert verdict(all_there).text == f"{failed}; left/0 and right/0 and sink/0 waited for it"
    assert verdict([*all_there, finished(90, "left")]).text == f"{failed}; right/0 and sink/0 waited for it"
    assert verdict([*begun, *stories.registered(3, "left"), end]).text == f"{failed}; left/0 waited for it"
    assert verdict([*begun, end]).text == failed


SLOW_END = [(5400, "thinker"), (5401, "talker")]


@pytest.mark.parametrize(("talker_ms", "stage"), SLOW_END)
def test_t2_who_is_slow_to_confirm_the_end(talker_ms: float, stage: str) -> None:
    asked = [*until(80), fact(5000, "abort_asked", detail=ABORT)]
    ends = [cut(5001, "thinker"), cut(talker_ms, "talker"), terminal(5500, "abort")]
    assert verdict([*asked, *ends]).stage == stage


def test_t2_of_two_that_are_slow_to_confirm_where_another_is_not_the_first_is_named() -> None:
    asked = [*until(80), fact(5000, "abort_asked", detail=ABORT)]
    ends = [cut(5001, "thinker"), cut(5600, "talker"), cut(5601, "code2wav"), terminal(5700, "abort")]
    assert verdict([*asked, *ends]).stage == "talker"


def test_t2_where_all_that_were_left_are_slow_to_confirm_it_tells_nothing() -> None:
    """Whoever had finished before is none of them."""
    slow = [cut(5600, "code2wav"), cut(5601, "talker"), terminal(5700, "abort")]
    assert "slow to confirm" not in verdict([*HUNG, *slow]).text
    assert "slow to confirm" in verdict([*HUNG, cut(5001, "talker"), cut(5600, "code2wav"), slow[-1]]).text


def test_t2_a_stage_that_does_not_confirm_and_whose_replica_is_not_known_is_named_all_the_same() -> None:
    left = Fact(stories.REQUEST, "demo", 1, ns(60), "router", "left_behind", "talker")
    assert verdict([*started(), left, terminal(61, "abort")]).text.endswith(
        "; talker did not confirm the abort and was left behind"
    )


# --- Rows that are not there -----------------------------------------------------------------------------------------


def test_a_refusal_of_a_second_submission_under_the_same_id_ends_nothing() -> None:
    other = [fact(20, "asked"), fact(21, "refused", detail={"code": "invalid_request", "message": "in use"})]
    found = verdict([*started(), *other])
    assert found.cause == "engine"
    assert found.text == COMPUTED


def test_t2_an_end_says_no_more_than_it_knows_where_rows_were_lost() -> None:
    gap = Fact(stories.REQUEST, "demo", 1, ns(90), "trace", "dropped", detail={"rows": 2, "why": "x"})
    found = verdict([*until(7), gap, terminal(99, "error", **LATE)])
    assert found.text == "failed after 99 ms: deadline_exceeded: too late (the trace lost 2 rows meanwhile)"
    assert found.stage is None
    found = verdict([*until(7), gap, terminal(99)])
    assert found.text == "complete after 99 ms, finish reason stop (the trace lost 2 rows meanwhile)"
    assert found.reason_no_output is None


# --- Text and no audio -----------------------------------------------------------------------------------------------

TEXT_CAME = [one for one in spoken() if one.stage == "thinker" or one.event in ("asked", "received", "bound")]


def edges(first: int, second: int | None = None) -> list[Fact]:
    """What thinker and talker counted; a stage that sent nothing counts, too."""
    counts = [edge(91, "thinker", "talker", first, 40, 88)]
    return counts if second is None else [*counts, edge(91, "talker", "code2wav", second, 60, 88)]


def given(stage: str, *steps: str) -> list[Fact]:
    return [fact(60, step, stage) for step in steps]


TEXT_ONLY = [one for one in TEXT_CAME if one.event != "edge"]
HELD = [*TEXT_ONLY, *stories.registered(3, *AUDIO)]
BUSY = ("input_ready", "running")
ABSENT = [
    ("not_submitted", TEXT_ONLY, "code2wav", "code2wav was not submitted"),
    ("not_submitted", [*TEXT_ONLY, *stories.registered(3, "code2wav")], "talker", "talker was not submitted"),
    (
        "not_registered",
        [*TEXT_ONLY, fact(3, "submitted", "talker"), *stories.registered(3, "code2wav")],
        "talker",
        "talker/0 did not register the request",
    ),
    ("no_chunks", [*HELD, *edges(0, 0)], "thinker", "thinker/0 gave output, and no chunk of it to talker"),
    ("no_input", [*HELD, *edges(8, 0)], "talker", "no input reached talker/0"),
    (
        "no_output",
        [*HELD, *edges(8, 0), *given("talker", *BUSY)],
        "talker",
        "talker/0 had input (8 chunks from thinker) and made no output",
    ),
    (
        "no_output",
        [*HELD, *edges(8, 16), *given("talker", *BUSY, "first_output"), *given("code2wav", *BUSY)],
        "code2wav",
        "code2wav/0 had input (16 chunks from talker) and made no output",
    ),
    (
        "no_output",
        [*HELD, *edges(8, 0), *given("talker", *BUSY), fact(60, "finished", "talker", {"note": "nothing to {say}"})],
        "talker",
        "talker/0 had input (8 chunks from thinker) and made no output, because: nothing to {say}",
    ),
]


@pytest.mark.parametrize(("reason", "facts", "stage", "why"), ABSENT)
def test_t2_text_and_no_audio(reason: str, facts: list[Fact], stage: str, why: str) -> None:
    found = verdict([*facts, terminal(200)])
    assert found.complete
    assert found.text == f"complete after 200 ms, finish reason stop; code2wav brought nothing: {why}"
    assert (found.reason_no_output, found.stage, found.replica) == (reason, stage, f"{stage}/0")


@pytest.mark.parametrize(
    ("modalities", "why"),
    [({}, "what the request asked for needs no more"), ({"modalities": "text"}, "the request asked for text alone")],
)
def test_t2_no_audio_because_it_was_not_asked_for(modalities: dict[str, Value], why: str) -> None:
    text = [one for one in TEXT_ONLY if one.event != "received" and one.stage in (None, "thinker")]
    found = verdict([*text, fact(1, "received", detail={**stories.TEXT, **modalities}), terminal(200, stage="thinker")])
    assert (found.reason_no_output, found.stage, found.replica) == ("filtered", "code2wav", None)
    assert found.text == f"complete after 200 ms, finish reason stop; talker and code2wav took no part: {why}"


def test_t2_no_audio_because_the_caller_was_gone() -> None:
    gone = fact(85, "abort_asked", detail={"why": "disconnect: pid 7 is gone"})
    found = verdict([*until(80), gone, terminal(86, "abort")])
    assert found.cause == "caller_gone"
