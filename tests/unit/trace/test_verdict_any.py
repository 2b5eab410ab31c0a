"""Whatever is known of a request, in whatever order, and whatever its router answers: there is a verdict (T2)."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from support import live_stories as live
from support import trace_stories as stories
from support.trace_stories import fact, ns

from omnizmq.protocol import Value
from omnizmq.trace.facts import Fact
from omnizmq.trace.live import read
from omnizmq.trace.timeline import Timeline
from omnizmq.trace.verdict import RouterIs, judge

CAUSES = {
    *("complete", "ended", "aborted", "caller_gone", "refused", "failed", "unknown", "terminal", "client", "queue"),
    *("redrive", "registration", "input", "engine", "stuck_step", "slot", "credit", "ring", "caller_reads", "report"),
    *("abort_confirm", "worker_silent", "router_silent", "router_lost", "replica_lost", "stage_error"),
}
REASONS = {None, "not_submitted", "not_registered", "no_input", "no_chunks", "no_output", "filtered"}

NAMES = ("a", "b", "c", "{}", "{0!r}", "%s", "")
EVENTS = (
    *("asked", "received", "refused", "queued", "bound", "submitted", "registered", "input_ready", "running"),
    *("first_output", "published", "output_ended", "delivered", "consumed", "edge", "finished", "withheld", "parked"),
    *("paused", "resumed", "abort_asked", "left_behind", "replica_lost", "redriven", "terminal", "cleaned", "dropped"),
    "from a newer version",
)
DETAILS = (
    *("stages", "all_stages", "final_stages", "edges", "modalities", "replica", "to", "chunks", "bytes", "last_ns"),
    *("parked_ns", "why", "lacks", "ahead", "rows", "code", "finish_reason", "usage_incomplete", "error_code"),
    *("error_stage", "unconsumed", "held_bytes"),
)
VALUES: st.SearchStrategy[Value] = st.sampled_from(
    [None, True, "", "a", "a,b", "a>b,b>a", "a,{},c", "{}>a", ",>", "stop", "error", "abort", "stage_error", "credit"]
) | st.sampled_from([0, -5, 3, 1.5, 2**62])
MOMENTS = st.integers(-(2**63), 2**63 - 1)

FACTS = st.builds(
    Fact,
    request_id=st.just("r"),
    external_id=st.just("r"),
    attempt=st.integers(0, 3),
    at_ns=MOMENTS,
    owner=st.sampled_from(["client", "router", "a/0", "b/1", "{}/0", "trace", ""]),
    event=st.sampled_from(EVENTS),
    stage=st.sampled_from([None, *NAMES]),
    detail=st.dictionaries(st.sampled_from(DETAILS), VALUES, max_size=5),
)

NUMBERS = st.sampled_from([0, 0, 1, 4, 2**40, -1])
STAMPS = st.none() | st.sampled_from([0, ns(50), ns(9990)]) | MOMENTS
SOURCES = st.fixed_dictionaries(
    {"from": st.sampled_from(NAMES)},
    optional={
        "received": NUMBERS,
        "taken": NUMBERS,
        "ended": st.booleans(),
        "closed": st.booleans(),
        "last_ns": MOMENTS,
    },
)
TARGETS = st.fixed_dictionaries(
    {"to": st.sampled_from(NAMES)},
    optional={
        "full": st.sampled_from([None, "credit", "ring", "line", "{}"]),
        "full_since_ns": STAMPS,
        "sent": NUMBERS,
        "consumed": NUMBERS,
        "last_ns": MOMENTS,
        "ended": st.booleans(),
        "holders": st.lists(st.sampled_from(NAMES), max_size=2),
    },
)
STATES = (
    *("WAITING_FOR_CHUNK", "WAITING_FOR_INPUT", "QUEUED", "RUNNING", "PARKED", "PAUSED", "SENDING", "ABORTING", "GONE"),
    "OF A NEWER VERSION",
)
ENGINES = st.sampled_from(["idle", "stepping", "computing", "loading", "failed", "{}"])
ANSWERS = st.fixed_dictionaries(
    {"state": st.sampled_from(STATES)},
    optional={
        "since_ns": STAMPS,
        "engine": ENGINES,
        "engine_since_ns": STAMPS,
        "engaged": st.none() | st.booleans(),
        "made_ns": STAMPS,
        "outputs": NUMBERS,
        "inputs": st.lists(SOURCES, max_size=3),
        "edges": st.lists(TARGETS, max_size=3),
        "caller": st.none() | st.fixed_dictionaries({"full": st.booleans(), "since_ns": STAMPS}),
    },
)
STAGES = st.fixed_dictionaries(
    {},
    optional={
        "replica": st.none() | st.sampled_from(["a/0", "{}/0", ""]),
        "state": st.sampled_from(["ready", "starting", "draining", "stuck", "dead"]),
        "engine": ENGINES,
        "engine_since_ns": STAMPS,
        "heard_ns": STAMPS,
        "submitted": st.booleans(),
        "registered": st.booleans(),
        "output_ended": st.booleans(),
        "finished": st.booleans(),
        "answer": st.none() | ANSWERS,
    },
)
DOCUMENTS = st.fixed_dictionaries(
    {
        "attempt": st.integers(0, 4),
        "now_ns": st.just(ns(live.NOW_MS)) | MOMENTS,
        "phase": st.sampled_from(["waiting", "running", "running", "aborting", "ended", "{}"]),
        "stages": st.dictionaries(st.sampled_from(NAMES), STAGES, max_size=4),
    },
    optional={
        "caller": st.booleans(),
        "silent": st.lists(st.sampled_from(["a/0", "{}/0"]), max_size=2),
        "queue": st.none()
        | st.fixed_dictionaries(
            {}, optional={"why": st.sampled_from(["full", "", "{}"]), "lacks": st.sampled_from(NAMES)}
        ),
    },
)
ANYTHING = st.recursive(
    VALUES, lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=8), inner), max_leaves=5
)
ROUTERS: st.SearchStrategy[RouterIs] = st.sampled_from(["answering", "unasked", "silent", "unknowing", "lost"])


def check(facts: list[Fact], document: dict[str, Any] | None, running: bool, router: RouterIs) -> None:
    timeline = Timeline(facts)
    found = judge(timeline, live=read(document), running=running, router=router)
    assert found.text
    codes = {fact.detail.get("error_code") for fact in facts}
    assert found.cause in CAUSES | codes
    assert found.reason_no_output in REASONS
    assert found.complete == (found.cause == "complete")
    open_ = timeline.end is None and found.cause not in ("unknown", "router_lost")
    assert [part is not None for part in (found.waiting_for, found.since_ns, found.owner)] == [open_] * 3


@settings(deadline=None, derandomize=True, max_examples=150)
@given(
    facts=st.lists(FACTS, max_size=15),
    document=st.none() | DOCUMENTS | st.dictionaries(st.text(max_size=8), ANYTHING),
    running=st.booleans(),
    router=ROUTERS,
)
def test_t2_there_is_a_verdict_on_anything(
    facts: list[Fact], document: dict[str, Any] | None, running: bool, router: RouterIs
) -> None:
    check(facts, document, running, router)


STORY = [
    *stories.spoken(),
    *stories.redriven(),
    fact(1.5, "queued", detail={"why": "full", "lacks": "talker"}),
    fact(70, "parked", "talker", {"to": "code2wav", "why": "ring"}),
    fact(75, "paused", "code2wav"),
    fact(95, "abort_asked", detail={"why": "caller"}),
    fact(96, "replica_lost", "talker", {"replica": "talker/0", "reason": "killed"}),
]
STATED = [
    live.answer(state, step_ms=step_ms, inputs=[live.came(source, 4)], edges=[edge], caller=live.reader(16, full=full))
    for state in STATES
    for step_ms in (None, 60)
    for source, edge in (("thinker", live.no_credit("code2wav")), ("talker", live.no_room("talker", "x")))
    for full in (True, False)
]


@settings(deadline=None, derandomize=True, max_examples=300)
@given(data=st.data(), running=st.booleans(), router=ROUTERS)
def test_t2_there_is_a_verdict_on_any_part_of_a_story(data: st.DataObject, running: bool, router: RouterIs) -> None:
    part = data.draw(st.permutations(STORY).map(lambda order: order[: len(order) // 2]))
    answers = data.draw(st.lists(st.sampled_from([None, *STATED]), min_size=3, max_size=3))
    stages = {name: live.stage(name, answer) for name, answer in zip(stories.CHAIN.split(","), answers, strict=True)}
    silent = data.draw(st.lists(st.sampled_from([f"{name}/0" for name in stages]), max_size=1))
    phase = data.draw(st.sampled_from(["waiting", "running", "aborting", "ended"]))
    document = live.document(phase, attempt=data.draw(st.integers(1, 2)), stages=stages, silent=silent)
    check(part, data.draw(st.sampled_from([None, document])), running, router)
