"""The table of events: the docs show it, and what recordings of real deployments tell is in it (T1)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.known_events import mistakes
from support.mutations import ROOT
from support.recordings import steps

from omnizmq.recording import file, form
from omnizmq.recording.form import Tree
from omnizmq.trace import events
from omnizmq.trace.events import EVENTS, Event
from omnizmq.trace.facts import Fact

PAGE = (ROOT / "docs" / "tracing.md").read_text()
SCENARIOS = sorted((ROOT / "tests" / "scenarios").glob("*.jsonl"))


def row(event: Event) -> str:
    """As docs/tracing.md has it."""
    detail = "; ".join(f"`{key}`: {says}" for key, says in event.detail.items())
    where = "stage " if event.stage else ""
    return f"| {where}`{event.name}` | {event.by} | {event.says} | {detail} |"


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.name)
def test_the_page_says_what_the_table_says(event: Event) -> None:
    assert row(event) in PAGE.splitlines()


def test_the_page_has_the_events_in_the_order_of_the_table_and_no_other() -> None:
    tellers = "|".join(events.Teller)
    rows = re.findall(rf"^\| (?:stage )?`(\w+)` \| (?:{tellers}) \|", PAGE, re.MULTILINE)
    assert rows == [event.name for event in EVENTS]
    assert len(set(rows)) == len(rows)


def test_the_page_has_the_boundaries_and_the_ends_in_the_order_of_the_table() -> None:
    listed = PAGE[PAGE.index("The boundaries are these events") : PAGE.index("A stage's has its name before it")]
    found = re.findall(r"`(\w+)`", listed)
    assert found == [event.name for event in EVENTS if event.boundary or event.ends]


def test_what_a_stage_goes_through_is_of_a_stage_and_is_a_boundary() -> None:
    steps_ = [event for event in EVENTS if event.step]
    assert all(event.stage and event.boundary for event in steps_)
    assert all(event.phase for event in steps_[:-1])  # the last one ends the stage


def test_durations_are_keys_of_a_detail_that_look_like_moments() -> None:
    keys = {key for event in EVENTS for key in event.detail}
    assert keys >= events.DURATIONS
    assert all(key.endswith("_ns") for key in events.DURATIONS)
    assert [key for key in sorted(keys) if events.is_moment(key)] == ["first_ns", "last_ns"]


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_what_a_router_records_is_in_the_table(path: Path) -> None:
    recorded = [order for step in steps(file.read(path)) for order in step.got if order["$"] == "Fact"]
    assert recorded
    assert [mistake for tree in recorded for mistake in mistakes(fact(tree))] == []


def fact(tree: Tree) -> Fact:
    return Fact(**form.values({name: value for name, value in tree.items() if name != "$"}))


def test_what_is_not_in_the_table_is_noticed() -> None:
    ids = ("demo-1", "demo", 1, 0)
    assert mistakes(Fact(*ids, "router", "made up")) == ["there is no event 'made up'"]
    assert mistakes(Fact(*ids, "client", "received", detail={"stage": "x"})) == [
        "received by 'client'",
        "received says 'stage'",
    ]
    assert mistakes(Fact(*ids, "talker/1", "running", "thinker")) == ["running by 'talker/1'"]
    assert mistakes(Fact(*ids, "thinker/1", "running", None)) == ["running by 'thinker/1'", "running of stage None"]
    assert mistakes(Fact(*ids, "thinker/1", "finished", "thinker", detail={"usage_made_up": 1})) == []
