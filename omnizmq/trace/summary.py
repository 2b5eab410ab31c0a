"""A request's facts as one document: what `omnizmq trace --json` prints (T1, T2).

Pure, and never raises: any part of a request's facts, in any order, has a summary.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from omnizmq import errors
from omnizmq.protocol import Value
from omnizmq.trace.events import DURATIONS, is_moment
from omnizmq.trace.facts import Fact
from omnizmq.trace.live import read
from omnizmq.trace.timeline import StageStory, Timeline, number, text
from omnizmq.trace.verdict import RouterIs, Verdict, judge


def summarize(
    facts: Sequence[Fact], *, running: bool, live: Mapping[str, Any] | None = None, router: RouterIs = "unasked"
) -> dict[str, Any]:
    """The document, of JSON types alone.

    Times (`…_ms`) are milliseconds since the client's `asked` fact; where that is missing, or comes from a clock that
    runs ahead of the router's, since the earliest fact. `stages` and `edges` are those of the last attempt, in
    topological order; a stage that was not planned, or did not get so far, has nulls. `running` says that the
    deployment still runs; a request with a terminal has ended all the same. `live` is what its router says of the
    request now (`AsyncClient.inspect`), and is shown as it came; without it, `router` says why not. A number that JSON
    has not (nan, inf), as an engine may report one, is null.
    """
    timeline = Timeline(facts)
    said = read(live)
    known = timeline.facts[0] if timeline.facts else said
    ended = timeline.end is not None or not running or (router == "unknowing" and live is None)
    document = {
        "request_id": known.request_id if known else None,
        "external_id": known.external_id if known else None,
        "state": "ended" if ended else "live",
        "verdict": _verdict(judge(timeline, running=running, live=said, router=router), timeline),
        "stages": _stages(timeline, timeline.stages),
        "edges": _edges(timeline),
        "terminal": _terminal(timeline),
        "attempts": _attempts(timeline),
        "events": [_event(timeline, fact) for fact in timeline.facts],
        "live": None if live is None else dict(live),
    }
    found: dict[str, Any] = _finite(document)
    return found


def _finite(value: Any) -> Any:
    """The same, with null for each number that is none."""
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _verdict(verdict: Verdict, timeline: Timeline) -> dict[str, Any]:
    return {
        "complete": verdict.complete,
        "last_boundary": verdict.last_boundary,
        "waiting_for": verdict.waiting_for,
        "since_ms": timeline.ms(verdict.since_ns) if timeline.facts else None,
        "owner": verdict.owner,
        "text": verdict.text,
        "cause": verdict.cause,
        "stage": verdict.stage,
        "replica": verdict.replica,
        "reason_no_output": verdict.reason_no_output,
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
        "outputs": story.outputs,
        "last_output_ms": timeline.ms(story.last_output_ns),
    }


def _edges(timeline: Timeline) -> list[dict[str, Any]]:
    """One entry an edge, in the order of its producer; of several counts of one edge, the highest."""
    order = {name: position for position, name in enumerate(timeline.pipeline)}
    counts = timeline.edges(timeline.attempt)
    ranked = sorted(counts.items(), key=lambda item: [order.get(stage, len(order)) for stage in item[0]])
    return [
        {
            "from": source or None,
            "to": target or None,
            "chunks": number(fact.detail, "chunks"),
            "bytes": number(fact.detail, "bytes"),
            "first_ms": timeline.ms(number(fact.detail, "first_ns") or None),
            "last_ms": timeline.ms(number(fact.detail, "last_ns") or None),
        }
        for (source, target), fact in ranked
    ]


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
        if key in DURATIONS:
            key, value = f"{key[:-3]}_ms", round((number(fact.detail, key) or 0) / 1e6, 3)
        elif is_moment(key):
            key, value = f"{key[:-3]}_ms", timeline.ms(number(fact.detail, key) or None)
        event.setdefault(key, value)
    return event
