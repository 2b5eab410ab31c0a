"""The scenarios of `tests/scenarios`, which `omnizmq replay RECORDING --scenario` makes.

What a router once ordered upon such events, it orders again. One that is meant to change is written anew
(docs/replay.md).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from support.recordings import first_difference, steps

from omnizmq.recording import file

SCENARIOS = {path.stem: path for path in sorted((Path(__file__).parents[1] / "scenarios").glob("*.jsonl"))}


def facts(name: str) -> list[str]:
    """The events of the facts that the router records, in order."""
    return [order["event"] for step in steps(file.read(SCENARIOS[name])) for order in step.got if order["$"] == "Fact"]


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_router_orders_what_it_did(name: str) -> None:
    assert first_difference(file.read(SCENARIOS[name])) is None


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_says_what_it_shows_and_is_whole(name: str) -> None:
    found = file.read(SCENARIOS[name])
    assert found.header.about
    assert found.ended
    assert found.lines


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_is_of_no_machine(name: str) -> None:
    assert re.findall(r"://[^\"]*/", SCENARIOS[name].read_text()) == []


SHOWN = {
    "text_and_audio": ["first_output", "terminal"],
    "abort_midway": ["first_output", "abort_asked", "terminal"],
    "replica_killed": ["first_output", "replica_lost", "redriven", "terminal"],
    "slow_reader": ["paused", "terminal"],
    "terminal_withheld": ["withheld", "terminal"],
}


@pytest.mark.parametrize(("name", "shown"), SHOWN.items())
def test_they_are_about_what_they_say(name: str, shown: list[str]) -> None:
    found = iter(facts(name))
    assert all(event in found for event in shown), f"{shown}, in this order, were expected"


def test_a_withheld_terminal_lacks_the_late_reports_usage() -> None:
    assert _terminal("terminal_withheld")["usage_incomplete"] == ["talker"]


def test_who_is_driven_again_gets_every_word_once() -> None:
    """The stand-ins of the two attempts are as long as what they stand for."""
    words = "one two three four five six"
    assert sum(size for size in _delivered("replica_killed", "thinker")) == len(words)


def _terminal(name: str) -> dict[str, Any]:
    (found,) = [frame for frame in _to_client(name) if frame["$"] == "Terminal"]
    return found


def _delivered(name: str, stage: str) -> list[int]:
    """The characters of each delivery."""
    return [
        frame["content"]["text"]["$chars"]
        for frame in _to_client(name)
        if frame["$"] == "Delivery" and frame["stage"] == stage and frame["content"] is not None
    ]


def _to_client(name: str) -> list[dict[str, Any]]:
    found = steps(file.read(SCENARIOS[name]))
    return [order["frame"] for step in found for order in step.got if order["$"] == "ToClient"]
