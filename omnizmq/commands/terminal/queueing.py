"""For how long a request waited for replicas, and why: of the document's events. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from omnizmq.trace.words import duration

Document = Mapping[str, Any]

_WHYS = {
    "no_replica": "no replica of {} was live",
    "starting": "the replicas of {} were loading",
    "drained": "an operator had drained the replicas of {}",
    "full": "all places of {} were taken",
    "behind": "others were before it",
}


class Stretch(NamedTuple):
    """In one attempt, for one reason. Milliseconds of the document's clock. `open`: it has not ended."""

    attempt: int
    why: str
    begin_ms: float
    end_ms: float
    open: bool


def stretches(document: Document, end_ms: float) -> list[Stretch]:
    """In the order of time; what was not ended by a fact lasts until `end_ms`."""
    found = []
    attempts = sorted({event["attempt"] for event in document["events"]})
    for attempt in attempts:
        events = [event for event in document["events"] if event["attempt"] == attempt]
        moments = [event for event in events if event["event"] in ("queued", "bound", "abort_asked", "terminal")]
        for event, after in pairwise([*moments, None]):
            if event is not None and event["event"] == "queued":
                until_ms = end_ms if after is None else after["at_ms"]
                found.append(Stretch(attempt, _why(event), event["at_ms"], until_ms, after is None))
    return found


def told(found: Sequence[Stretch]) -> str:
    """`queued 3.9 s: all places of thinker were taken`; nothing where it was not."""
    if not found:
        return ""
    total = sum(one.end_ms - one.begin_ms for one in found)
    whys = ", then ".join(dict.fromkeys(one.why for one in found))
    return f"queued {duration(total)}{' so far' if found[-1].open else ''}: {whys}"


def _why(event: Document) -> str:
    why = str(event.get("why") or "it is not known why")
    return _WHYS.get(why, why).format(event.get("lacks") or "a stage")
