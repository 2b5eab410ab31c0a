"""Facts of one request as spans, in the sense of OpenTelemetry: one of the request, and below it one of each stage in
each attempt. Pure, and knows no SDK.

Facts are the spans' events. A stage's span in a later attempt is linked to the one that it replaces. Ids are those of
`omnizmq.trace.context`, so that the spans of callers and engines join. A request whose caller does not keep its own
trace has no spans.

Names beginning with `gen_ai.` are those of the semantic conventions for generative AI:
https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans/. What they do not name is `omnizmq.…`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from omnizmq.protocol import Value, make_engine_id
from omnizmq.trace import context
from omnizmq.trace.events import is_moment
from omnizmq.trace.facts import Fact
from omnizmq.trace.phases import Run, request_run, stage_runs
from omnizmq.trace.timeline import StageStory, Timeline, names, number, text

OPERATION = "generate_content"
PROVIDER = "omnizmq"
OUTPUT_TYPES = {"text": "text", "audio": "speech"}

Attribute = bool | int | float | str | Sequence[str]

_INT64 = 1 << 63
_USAGE = {
    "gen_ai.usage.input_tokens": "usage_prompt_tokens",
    "gen_ai.usage.output_tokens": "usage_completion_tokens",
}
"""Names of the conventions, and the counts of engines that they are."""
_PLAN = ("all_stages", "stages", "edges", "final_stages", "last_stage", "modalities", "deadline_s", "priority")


class SpanEvent(NamedTuple):
    """Something that happened, in nanoseconds since 1970."""

    name: str
    at_ns: int
    attributes: Mapping[str, Attribute]


class Link(NamedTuple):
    """To another span of the same trace."""

    span_id: str
    attributes: Mapping[str, Attribute]


@dataclass(frozen=True, slots=True)
class Span:
    """Ids are hexadecimal, times nanoseconds since 1970. `remote`: its parent is the caller's. `error`: what failed."""

    trace_id: str
    span_id: str
    parent_id: str | None
    remote: bool
    name: str
    begin_ns: int
    end_ns: int
    attributes: Mapping[str, Attribute]
    events: Sequence[SpanEvent]
    links: Sequence[Link] = ()
    error: str | None = None


def make(facts: Sequence[Fact], *, offset_ns: int, model: str = "") -> list[Span]:
    """The request's span first. `offset_ns` is added to CLOCK_MONOTONIC; `model` is the deployment's, if it has one.

    What has not ended lasts until the latest fact, and says so.
    """
    timeline = Timeline(facts)
    traceparent = next((found for fact in timeline.facts if (found := text(fact.detail, "traceparent"))), None)
    until_ns = timeline.facts[-1].at_ns if timeline.facts else 0
    run = request_run(timeline, until_ns)
    if run is None or not context.is_sampled(traceparent):
        return []
    maker = _Maker(timeline, traceparent, offset_ns)
    stages = stage_runs(timeline, until_ns)
    return [maker.request(run, stages, model), *(maker.stage(stage, stages) for stage in stages)]


def count(facts: Iterable[Fact]) -> int:
    """How many they would be, at the most."""
    return 1 + len({fact.engine_id for fact in facts if fact.engine_id})


class _Maker:
    """Of the spans of one request."""

    def __init__(self, timeline: Timeline, traceparent: str | None, offset_ns: int) -> None:
        self._timeline = timeline
        self._request_id = timeline.facts[0].request_id
        self._external_id = timeline.facts[0].external_id
        self._caller = context.parse(traceparent)
        self._trace_id = context.trace_id(self._request_id, traceparent)
        self._offset_ns = offset_ns

    def request(self, run: Run, stages: Sequence[Run], model: str) -> Span:
        """With the events that belong to no stage's span."""
        facts = [fact for fact in self._timeline.facts if not any(_covers(stage, fact) for stage in stages)]
        end = self._timeline.end
        detail = {} if end is None else end.detail
        code = text(detail, "error_code") or text(detail, "code")
        return Span(
            trace_id=self._trace_id,
            span_id=context.span_id(self._request_id),
            parent_id=self._caller.span_id if self._caller else None,
            remote=self._caller is not None,
            name=f"{OPERATION} {model}".strip(),
            begin_ns=run.begin_ns + self._offset_ns,
            end_ns=run.end_ns + self._offset_ns,
            attributes=self._request_attributes(run, stages, model, detail, code),
            events=self._events(facts),
            error=_failure(detail, code),
        )

    def _request_attributes(
        self, run: Run, stages: Sequence[Run], model: str, detail: Mapping[str, Value], code: str | None
    ) -> dict[str, Attribute]:
        received, published = self._timeline.first("received"), self._timeline.first("published")
        plan = {} if received is None else {key: received.detail.get(key) for key in _PLAN}
        modalities = names(plan, "modalities")
        attributes: dict[str, Attribute | None] = {
            "gen_ai.operation.name": OPERATION,
            "gen_ai.provider.name": PROVIDER,
            "gen_ai.request.model": model or None,
            "gen_ai.response.id": self._request_id,
            "gen_ai.response.finish_reasons": _reasons(detail),
            "gen_ai.output.type": OUTPUT_TYPES.get(modalities[0]) if len(modalities) == 1 else None,
            "gen_ai.response.time_to_first_chunk": self._seconds(published),
            "error.type": code,
            **self._usage([stage.story.report for stage in stages if stage.story and stage.attempt == run.attempt]),
            "omnizmq.attempts": self._timeline.attempt,
            "omnizmq.ended": run.ended,
        }
        ends = {key: detail.get(key) for key in ("usage_incomplete", "error_stage", "error_replica")}
        return self._ids() | _given(attributes) | _named({**plan, **ends})

    @staticmethod
    def _usage(reports: Sequence[Mapping[str, Value]]) -> dict[str, int | None]:
        """Tokens in all, as far as these stages counted any."""
        totals: dict[str, int | None] = {}
        for name, key in _USAGE.items():
            counts = [count for report in reports if (count := number(report, key)) is not None]
            totals[name] = sum(counts) if counts else None
        return totals

    def stage(self, run: Run, stages: Sequence[Run]) -> Span:
        """Linked to the one of the attempt before, where that had this stage."""
        story = run.story
        assert story is not None
        earlier = [one for one in stages if one.attempt < run.attempt and one.story and one.story.name == story.name]
        facts = [fact for fact in self._timeline.facts if _covers(run, fact)]
        code, error = self._fault(run, story)
        attributes: dict[str, Attribute | None] = {
            "gen_ai.response.finish_reasons": _reasons(story.report),
            **self._usage([story.report]),
            "error.type": code,
            "omnizmq.ended_with": None if story.origin == story.name else story.origin,
            "omnizmq.stage": story.name,
            "omnizmq.replica": story.replica,
            "omnizmq.attempt": run.attempt,
            "omnizmq.engine_id": self._engine_id(run),
            "omnizmq.ended": run.ended,
        }
        return Span(
            trace_id=self._trace_id,
            span_id=context.span_id(self._engine_id(run)),
            parent_id=context.span_id(self._request_id),
            remote=False,
            name=story.name,
            begin_ns=run.begin_ns + self._offset_ns,
            end_ns=run.end_ns + self._offset_ns,
            attributes=self._ids() | _given(attributes) | _named({"outputs": story.outputs}),
            events=self._events(facts),
            links=[self._link(earlier[-1])] if earlier else (),
            error=error,
        )

    def _fault(self, run: Run, story: StageStory) -> tuple[str | None, str | None]:
        """The code and the words of an error that is this stage's own: by its report, or by what ended the request."""
        if story.origin == story.name:
            return story.error_code, _failure(story.report, story.error_code)
        end = self._timeline.first("terminal")
        if end is None or run.attempt != self._timeline.attempt or text(end.detail, "error_stage") != story.name:
            return None, None
        code = text(end.detail, "error_code")
        return code, _failure(end.detail, code)

    def _seconds(self, fact: Fact | None) -> float | None:
        """Since the client asked."""
        return None if fact is None else (fact.at_ns - self._timeline.zero_ns) / 1e9

    def _link(self, earlier: Run) -> Link:
        """Why the attempt after it was begun."""
        begun = next(self._timeline.of(earlier.attempt + 1, "redriven"), None)
        why = {} if begun is None else {f"redriven.{key}": value for key, value in begun.detail.items()}
        return Link(context.span_id(self._engine_id(earlier)), _named({"attempt": earlier.attempt, **why}))

    def _engine_id(self, run: Run) -> str:
        assert run.story is not None
        return run.story.engine_id or make_engine_id(self._request_id, run.attempt, run.story.name)

    def _ids(self) -> dict[str, Attribute]:
        return {"omnizmq.request_id": self._request_id, "omnizmq.external_id": self._external_id}

    def _events(self, facts: Iterable[Fact]) -> list[SpanEvent]:
        return [self._event(fact) for fact in facts]

    def _event(self, fact: Fact) -> SpanEvent:
        """Moments in its detail become times of the same clock."""
        detail = {key: self._since_1970(key, value) for key, value in fact.detail.items()}
        return SpanEvent(fact.event, fact.at_ns + self._offset_ns, _named({"owner": fact.owner, **detail}))

    def _since_1970(self, key: str, value: Value) -> Value:
        return value + self._offset_ns if is_moment(key) and isinstance(value, int) and value > 0 else value


def _covers(run: Run, fact: Fact) -> bool:
    """Whether the fact is of the stage's time in that attempt; the router tells of some later. What ended the request
    is the request's."""
    mine = run.story is not None and (run.attempt, run.story.name) == (fact.attempt, fact.stage)
    mine = mine and fact.event != "terminal"
    return mine and run.begin_ns <= fact.at_ns <= run.end_ns


def _reasons(detail: Mapping[str, Value]) -> list[str] | None:
    reason = text(detail, "finish_reason")
    return [reason] if reason else None


def _failure(detail: Mapping[str, Value], code: str | None) -> str | None:
    """What failed, in words, where something did."""
    return None if code is None else text(detail, "error_message") or text(detail, "message") or code


def _given(attributes: Mapping[str, Attribute | None]) -> dict[str, Attribute]:
    """Those that are known, as OpenTelemetry can tell them: integers of 64 bits, texts of whole characters."""
    return {key: _told(value) for key, value in attributes.items() if value is not None}


def _named(detail: Mapping[str, Value]) -> dict[str, Attribute]:
    return _given({f"omnizmq.{key}": value for key, value in detail.items()})


def _told(value: Attribute) -> Attribute:
    if isinstance(value, int) and not -_INT64 <= value < _INT64:
        return str(value)
    return value.encode(errors="replace").decode() if isinstance(value, str) else value
