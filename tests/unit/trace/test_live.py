"""The live document as it is read: docs/tracing.md tells its keys, and what is missing does not hide the rest (T1)."""

from __future__ import annotations

import re

import msgspec
import pytest
from support.mutations import ROOT

from omnizmq.trace import live
from omnizmq.trace.live import Live, read

PAGE = (ROOT / "docs" / "tracing.md").read_text()


def keys(kind: type[msgspec.Struct]) -> set[str]:
    return {field.encode_name for field in msgspec.structs.fields(kind)}


def tabled(begin: str, end: str) -> set[str]:
    """The keys in the first column of the tables between."""
    rows = PAGE[PAGE.index(begin) : PAGE.index(end)].splitlines()
    return {key for line in rows if line.startswith("| ") for key in re.findall(r"`(\w+)`", line.split("|")[1])}


@pytest.mark.parametrize(
    ("kind", "begin", "end"),
    [
        (Live, "The document of `AsyncClient.inspect(id)`", "| key of a stage |"),
        (live.LiveStage, "| key of a stage |", "| key of an answer |"),
        (live.WorkerAnswer, "| key of an answer |", "## The document"),
    ],
)
def test_the_page_has_the_keys_that_are_read(kind: type[msgspec.Struct], begin: str, end: str) -> None:
    assert tabled(begin, end) == keys(kind)


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        (live.EdgeIn, "inputs"),
        (live.EdgeOut, "edges"),
        (live.Caller, "caller"),
        (live.FinalOutput, "deliveries"),
        (live.Queued, "queue"),
    ],
)
def test_the_page_has_the_keys_of_the_parts(kind: type[msgspec.Struct], key: str) -> None:
    section = PAGE[PAGE.index("The document of `AsyncClient.inspect(id)`") : PAGE.index("## The document")]
    rows = [line.split("|")[2] for line in section.splitlines() if line.startswith(f"| `{key}` |")]
    assert any(set(re.findall(r"`(\w+)`", row)) >= keys(kind) for row in rows), rows


def test_what_it_does_without_is_empty_and_what_it_needs_is_not_made_up() -> None:
    document = {"attempt": 2, "now_ns": 5, "phase": "running", "stages": {"a": {"answer": {"state": "RUNNING"}}}}
    found = read({**document, "of a newer router": 1})
    assert found is not None
    assert (found.attempt, found.caller, found.queue, found.silent) == (2, True, None, ())
    answer = found.stages["a"].answer
    assert answer is not None
    assert (answer.moved_ns, answer.inputs, answer.caller) == (0, (), None)
    for key in ("attempt", "now_ns", "phase"):
        assert read({name: value for name, value in document.items() if name != key}) is None
    assert read({**document, "stages": 7}) is None
    assert read(None) is None
