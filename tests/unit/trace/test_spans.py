"""The spans that the facts of a request become."""

from __future__ import annotations

import random

import msgspec
import pytest
from support import trace_stories as story

from omnizmq.protocol import make_engine_id
from omnizmq.trace import context, spans
from omnizmq.trace.facts import Fact
from omnizmq.trace.spans import Span

OFFSET = 1_700_000_000_000_000_000
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
CALLER = "00f067aa0ba902b7"


def unix(at_ms: float) -> int:
    return OFFSET + story.ns(at_ms)


def make(facts: list[Fact], model: str = "") -> list[Span]:
    return spans.make(facts, offset_ns=OFFSET, model=model)


def with_plan(facts: list[Fact], **more: str | float) -> list[Fact]:
    """The same, its `received` saying more."""
    return [
        msgspec.structs.replace(fact, detail={**fact.detail, **more}) if fact.event == "received" else fact
        for fact in facts
    ]


def events(span: Span) -> list[str]:
    return [event.name for event in span.events]


def test_a_request_is_a_span_and_each_of_its_stages_one_below_it() -> None:
    request, *stages = make([*story.spoken(), story.fact(210, "cleaned")], model="some/model")
    assert (request.name, request.parent_id, request.remote) == ("generate_content some/model", None, False)
    assert (request.begin_ns, request.end_ns) == (unix(0), unix(210))
    assert [stage.name for stage in stages] == ["thinker", "talker", "code2wav"]
    assert {stage.parent_id for stage in stages} == {request.span_id}
    assert {span.trace_id for span in (request, *stages)} == {context.trace_id(story.REQUEST, None)}
    assert (stages[2].begin_ns, stages[2].end_ns) == (unix(2), unix(199))
    assert [span.error for span in (request, *stages)] == [None] * 4


def test_ids_are_those_that_the_router_tells_the_engines() -> None:
    parent = f"00-{TRACE}-{CALLER}-01"
    request, *stages = make(with_plan(story.spoken(), traceparent=parent))
    assert (request.trace_id, request.parent_id, request.remote) == (TRACE, CALLER, True)
    for stage in stages:
        engine_id = make_engine_id(story.REQUEST, 1, stage.name)
        told = context.stage_traceparent(story.REQUEST, engine_id, parent)
        assert told == f"00-{stage.trace_id}-{stage.span_id}-01"


def test_a_caller_that_does_not_keep_its_trace_has_no_spans() -> None:
    assert make(with_plan(story.spoken(), traceparent=f"00-{TRACE}-{CALLER}-00")) == []


def test_what_the_conventions_name_is_named_so() -> None:
    facts = with_plan(story.spoken(), modalities="audio", deadline_s=30.5, priority=2)
    request, _, talker, _ = make([*facts, story.fact(80.5, "published", "code2wav")], model="m")
    assert request.attributes == {
        "omnizmq.request_id": story.REQUEST,
        "omnizmq.external_id": "demo",
        "gen_ai.operation.name": "generate_content",
        "gen_ai.provider.name": "omnizmq",
        "gen_ai.request.model": "m",
        "gen_ai.response.id": story.REQUEST,
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.output.type": "speech",
        "gen_ai.response.time_to_first_chunk": 0.0805,
        "omnizmq.attempts": 1,
        "omnizmq.ended": True,
        "omnizmq.all_stages": story.CHAIN,
        "omnizmq.stages": story.CHAIN,
        "omnizmq.final_stages": "thinker,code2wav",
        "omnizmq.last_stage": "code2wav",
        "omnizmq.modalities": "audio",
        "omnizmq.deadline_s": 30.5,
        "omnizmq.priority": 2,
        "omnizmq.usage_incomplete": "",
    }
    assert talker.attributes == {
        "omnizmq.request_id": story.REQUEST,
        "omnizmq.external_id": "demo",
        "gen_ai.response.finish_reasons": ["stop"],
        "omnizmq.stage": "talker",
        "omnizmq.replica": "talker/0",
        "omnizmq.attempt": 1,
        "omnizmq.engine_id": make_engine_id(story.REQUEST, 1, "talker"),
        "omnizmq.ended": True,
        "omnizmq.outputs": 0,
    }


def test_of_several_modalities_no_single_one_is_named() -> None:
    request = make(with_plan(story.spoken(), modalities="text,audio"))[0]
    assert "gen_ai.output.type" not in request.attributes
    assert make(with_plan(story.spoken(), modalities="text"))[0].attributes["gen_ai.output.type"] == "text"


def test_facts_are_events_where_and_when_they_happened() -> None:
    late = msgspec.structs.replace(story.fact(205, "consumed", "code2wav"), owner="router")
    request, thinker, *_ = make([*story.spoken(), late])
    assert events(request) == ["asked", "received", "terminal", "consumed"]
    assert events(thinker) == [
        *("bound", "submitted", "registered", "input_ready", "running", "first_output", "output_ended"),
        *("edge", "finished"),
    ]
    edge = thinker.events[-2]
    assert edge.at_ns == unix(91)
    assert edge.attributes == {
        "omnizmq.owner": "thinker/0",
        "omnizmq.to": "talker",
        "omnizmq.chunks": 8,
        "omnizmq.bytes": 2048,
        "omnizmq.first_ns": unix(40.5),
        "omnizmq.last_ns": unix(88),
    }


def test_a_duration_and_a_moment_that_never_was_are_no_times() -> None:
    detail = {"to": "talker", "parked_ns": 7, "first_ns": 0}
    stage = make([*story.started(), story.fact(9, "edge", "thinker", detail)])[1]
    (edge,) = [event for event in stage.events if event.name == "edge"]
    assert (edge.attributes["omnizmq.parked_ns"], edge.attributes["omnizmq.first_ns"]) == (7, 0)


def test_an_attempt_is_linked_to_the_one_that_it_replaces() -> None:
    again = story.fact(55, "redriven", detail={"why": "talker/0 died", "code": "replica_lost"}, attempt=2)
    request, *stages = make([*story.redriven(), again])
    first, second = [stage for stage in stages if stage.name == "talker"]
    assert [first.attributes["omnizmq.attempt"], second.attributes["omnizmq.attempt"]] == [1, 2]
    assert (first.error, first.attributes["error.type"]) == ("x", "replica_lost")
    assert first.links == ()
    (link,) = second.links
    assert link.span_id == first.span_id != second.span_id
    assert link.attributes == {
        "omnizmq.attempt": 1,
        "omnizmq.redriven.why": "talker/0 died",
        "omnizmq.redriven.code": "replica_lost",
    }
    assert request.attributes["omnizmq.attempts"] == 2
    assert "redriven" in events(request)


def test_an_error_is_told_in_words_and_by_its_code() -> None:
    failed = story.terminal(60, "error", error_code="stage_error", error_stage="talker", error_message="it burst")
    request = make([*story.started(), failed])[0]
    assert (request.error, request.attributes["error.type"]) == ("it burst", "stage_error")
    assert request.attributes["omnizmq.error_stage"] == "talker"


def test_f1_the_stage_at_fault_alone_has_the_error() -> None:
    """Its consumer got it over the edge; a producer that fell silent does not itself say that it failed."""
    burst = {"finish_reason": None, "error_code": "stage_error", "error_message": "it burst", "error_stage": "talker"}
    facts = [*story.started(), *(story.fact(59, "finished", stage, burst) for stage in ("talker", "code2wav"))]
    end = {"error_code": "stage_error", "error_stage": "talker", "error_message": "it burst"}
    request, _, talker, code2wav = make([*facts, story.terminal(59, "error", **end)])
    assert (request.error, talker.error, code2wav.error) == ("it burst", "it burst", None)
    assert talker.attributes["error.type"] == "stage_error"
    assert "error.type" not in code2wav.attributes
    assert code2wav.attributes["omnizmq.ended_with"] == "talker"
    assert "omnizmq.ended_with" not in talker.attributes
    assert events(request)[-1] == "terminal"
    silent = [*story.started(), story.fact(59, "finished", "talker", {"finish_reason": "abort"})]
    silent.append(story.fact(58, "finished", "code2wav", {"finish_reason": None, "error_code": "input_timeout"}))
    end |= {"error_code": "input_timeout", "error_message": "talker/0 sent nothing"}
    _, thinker, talker, code2wav = make([*silent, story.terminal(59, "error", **end)])
    assert (thinker.error, talker.error, code2wav.error) == (None, "talker/0 sent nothing", None)


def test_tokens_are_counted_a_stage_and_in_all() -> None:
    facts = story.started()
    for stage, prompt, made in (("thinker", 13, 5), ("talker", 0, 7)):
        detail = {"finish_reason": "stop", "usage_prompt_tokens": prompt, "usage_completion_tokens": made}
        facts.append(story.fact(50, "finished", stage, detail))
    request, thinker, talker, code2wav = make([*facts, story.terminal(60)])
    names = ("gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens")
    shown = [[span.attributes.get(name) for name in names] for span in (request, thinker, talker, code2wav)]
    assert shown == [[13, 12], [13, 5], [0, 7], [None, None]]


def test_a_refusal_is_an_error_without_stages() -> None:
    refused = story.fact(1, "refused", detail={"code": "overloaded", "message": "no room"})
    (request,) = make([story.fact(0, "asked"), refused])
    assert (request.error, request.attributes["error.type"]) == ("no room", "overloaded")


def test_an_abort_is_no_error() -> None:
    request = make([*story.started(), story.terminal(60, "abort")])[0]
    assert request.error is None
    assert request.attributes["gen_ai.response.finish_reasons"] == ["abort"]


def test_what_has_not_ended_says_so() -> None:
    request, thinker, *_ = make(story.started())
    assert request.attributes["omnizmq.ended"] is False
    assert thinker.attributes["omnizmq.ended"] is False
    assert request.end_ns == thinker.end_ns == unix(8)


def test_what_opentelemetry_cannot_tell_is_told_as_text() -> None:
    detail = {"huge": 1 << 63, "least": -(1 << 63), "broken": "a\ud800b", "none": None, "yes": True}
    request = make([story.fact(0, "asked", detail=detail)])[0]
    assert request.events[0].attributes == {
        "omnizmq.owner": "client",
        "omnizmq.huge": str(1 << 63),
        "omnizmq.least": -(1 << 63),
        "omnizmq.broken": "a?b",
        "omnizmq.yes": True,
    }


def test_without_facts_there_are_no_spans() -> None:
    assert make([]) == []


@pytest.mark.parametrize("seed", range(40))
def test_any_part_of_the_facts_makes_spans_whose_parents_and_links_exist(seed: int) -> None:
    chance = random.Random(seed)
    whole = [*story.redriven(), *story.spoken(), story.fact(99, "cleaned")]
    facts = chance.sample(whole, chance.randint(1, len(whole)))
    made = make(facts)
    ids = [span.span_id for span in made]
    assert len(set(ids)) == len(ids) <= spans.count(facts)
    for span in made:
        assert span.parent_id is None or span.parent_id in ids
        assert all(link.span_id in ids for link in span.links)
        assert span.begin_ns <= span.end_ns
    assert sum(len(span.events) for span in made) == len(facts)
