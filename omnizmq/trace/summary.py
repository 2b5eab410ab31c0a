"""A request's facts as one document: what `omnizmq trace --json` prints (T1, T2).

Pure, and never raises: any part of a request's facts, in any order, has a summary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from omnizmq import errors
from omnizmq.protocol import Value
from omnizmq.trace.facts import Fact
from omnizmq.trace.timeline import ENDS, StageStory, Timeline, number, text
from omnizmq.trace.verdict import judge


def summarize(facts: Sequence[Fact], *, live: bool) -> dict[str, Any]:
    """The document, of JSON types alone.

    Times (`…_ms`) are milliseconds since the client's `asked` fact; where that is missing, or comes from a clock that
    runs ahead of the router's, since the earliest fact. `stages` and `edges` are those of the last attempt, in
    topological order; a stage that was not planned, or did not get so far, has nulls. `live` says that the deployment
    still runs; a request with a terminal has ended all the same.
    """
    timeline = Timeline(facts)
    first = timeline.facts[0] if timeline.facts else None
    ended = timeline.first(*ENDS) is not None or not live
    return {
        "request_id": first.request_id if first else None,
        "external_id": first.external_id if first else None,
        "state": "ended" if ended else "live",
        "verdict": _verdict(timeline, live=live),
        "stages": _stages(timeline, timeline.stages),
        "edges": _edges(timeline),
        "terminal": _terminal(timeline),
        "attempts": _attempts(timeline),
        "events": [_event(timeline, fact) for fact in timeline.facts],
    }


def _verdict(timeline: Timeline, *, live: bool) -> dict[str, Any]:
    verdict = judge(timeline, live=live)
    return {
        "complete": verdict.complete,
        "last_boundary": verdict.last_boundary,
        "waiting_for": verdict.waiting_for,
        "since_ms": timeline.ms(verdict.since_ns),
        "owner": verdict.owner,
        "text": verdict.text,
    }


def _stages(timeline: Timeline, stories: Mapping[str, StageStory]) -> dict[str, dict[str, Any]]:
    return {name: _stage(timeline, story) for name, story in stories.items()}


def _stage(timeline: Timeline, story: StageStory) -> dict[str, Any]:
    times = {f"{step}_ms": timeline.ms(story.at_ns.get(step)) for step in ("submitted", "input_ready", "first_output")}
    reason = text(story.report, "finish_reason") or ("error" if story.error_code else None)
    return {
        "replica": story.replica,
        "engine_id": story.engine_id,
        **times,
        "finished_ms": timeline.ms(story.at_ns.get("finished")),
        "finish_reason": reason,
        "outputs": number(story.report, "outputs"),
    }


def _edges(timeline: Timeline) -> list[dict[str, Any]]:
    """One entry an edge, in the order of its producer; of several counts of one edge, the highest."""
    counts: dict[tuple[str | None, str | None], Fact] = {}
    for fact in timeline.of(timeline.attempt, "edge"):
        edge = (fact.stage, text(fact.detail, "to"))
        if edge not in counts or _chunks(fact) >= _chunks(counts[edge]):
            counts[edge] = fact
    order = {name: position for position, name in enumerate(timeline.pipeline)}
    ranked = sorted(counts.items(), key=lambda item: [order.get(stage or "", len(order)) for stage in item[0]])
    return [
        {
            "from": source,
            "to": target,
            "chunks": number(fact.detail, "chunks"),
            "bytes": number(fact.detail, "bytes"),
            "first_ms": timeline.ms(number(fact.detail, "first_ns") or None),
            "last_ms": timeline.ms(number(fact.detail, "last_ns") or None),
        }
        for (source, target), fact in ranked
    ]


def _chunks(fact: Fact) -> int:
    return number(fact.detail, "chunks") or 0


def _terminal(timeline: Timeline) -> dict[str, Any] | None:
    terminal = timeline.first("terminal")
    if terminal is None:
        return None
    return {
        "at_ms": timeline.ms(terminal.at_ns),
        "stage": terminal.stage,
        "finish_reason": text(terminal.detail, "finish_reason"),
        "error": _error(terminal.detail),
    }


def _error(detail: Mapping[str, Value]) -> dict[str, Any] | None:
    code = text(detail, "error_code")
    if code is None:
        return None
    return {
        "code": code,
        "stage": text(detail, "error_stage"),
        "replica": text(detail, "error_replica"),
        "message": text(detail, "error_message"),
        "retriable": errors.BY_CODE.get(code, errors.OmnizmqError).retriable,
    }


def _attempts(timeline: Timeline) -> list[dict[str, Any]]:
    """Every attempt with its stages; `why` is the failure that led to it, null for the first."""
    attempts: list[dict[str, Any]] = []
    why: str | None = None
    for attempt in timeline.attempts:
        stories = timeline.stories(attempt)
        attempts.append({"number": attempt, "why": why, "stages": _stages(timeline, stories)})
        why = next((story.error_code for story in stories.values() if story.error_code), None)
    return attempts


def _event(timeline: Timeline, fact: Fact) -> dict[str, Any]:
    """A fact, its detail beside its own fields; moments in the detail become milliseconds like all others."""
    event: dict[str, Any] = {"at_ms": timeline.ms(fact.at_ns), "owner": fact.owner, "event": fact.event}
    event["attempt"] = fact.attempt
    if fact.stage is not None:
        event["stage"] = fact.stage
    for key, value in fact.detail.items():
        if key.endswith("_ns"):
            key, value = f"{key[:-3]}_ms", timeline.ms(number(fact.detail, key) or None)
        event.setdefault(key, value)
    return event
