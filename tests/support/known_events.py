"""Whether a fact is of those that `omnizmq.trace.events` tells of, in every respect."""

from __future__ import annotations

from omnizmq.trace.events import EVENTS, Event, Teller
from omnizmq.trace.facts import Fact

BY_NAME = {event.name: event for event in EVENTS}


def mistakes(fact: Fact) -> list[str]:
    """What of this fact the table does not know, in words."""
    event = BY_NAME.get(fact.event)
    if event is None:
        return [f"there is no event {fact.event!r}"]
    found = [f"{fact.event} by {fact.owner!r}"] if fact.owner != _owner(event, fact) else []
    if (fact.stage is not None) != event.stage:
        found.append(f"{fact.event} of stage {fact.stage!r}")
    return found + [f"{fact.event} says {key!r}" for key in fact.detail if not _knows(event, key)]


def _owner(event: Event, fact: Fact) -> str:
    """A replica is known by its stage alone."""
    own = fact.owner.partition("/")[0] == fact.stage
    return event.by if event.by is not Teller.WORKER else fact.owner if own else f"{fact.stage}/…"


def _knows(event: Event, key: str) -> bool:
    return key in event.detail or (key.startswith("usage_") and "usage_NAME" in event.detail)
