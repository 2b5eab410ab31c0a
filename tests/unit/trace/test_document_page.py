"""docs/tracing.md has the keys of `trace --json` and of its lists, each where it belongs, and no other (T1, T2)."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from support import trace_stories as stories
from support.mutations import ROOT
from support.tracing import run

from omnizmq.runtime import state_dir
from omnizmq.trace.database import FILE_NAME
from omnizmq.trace.store import TraceWriter

pytestmark = pytest.mark.usefixtures("home")

PAGE = (ROOT / "docs" / "tracing.md").read_text()
DOCUMENT = PAGE[PAGE.index("## The document\n") : PAGE.index("## The verdict\n")]
VERDICT = PAGE[PAGE.index("## The verdict\n") : PAGE.index("`stage`, `replica` and `last_boundary` stay the same")]
ERROR = {"error_code": "stage_error", "error_stage": "talker", "error_replica": "talker/0", "error_message": "boom"}


def table(heading: str, section: str = DOCUMENT) -> dict[str, str]:
    """The keys in the first column of the table with that heading, each with what is said of it."""
    rows = section[section.index(f"| {heading} |") :].partition("\n\n")[0].splitlines()[2:]
    return {key: row for row in rows for key in re.findall(r"`(\w+)`", row.split("|")[1])}


def said(row: str) -> set[str]:
    """The keys in the second column."""
    return set(re.findall(r"`(\w+)`", row.split("|")[2]))


@pytest.fixture
def document(home: Path) -> dict[str, Any]:
    """Of a request that failed in its second attempt, as the command prints it."""
    writer = TraceWriter(state_dir("d") / FILE_NAME, max_mib=16, max_age_days=7.0)
    for fact in [*stories.redriven()[:-1], stories.edge(94, "thinker", "talker", 8, 80, 88)]:
        writer.append(fact)
    writer.append(stories.fact(95, "terminal", "code2wav", {"finish_reason": "error", **ERROR}, attempt=2))
    writer.close()
    result = run("demo", "--json", "--perfetto", str(home / "file"))
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_the_document(document: dict[str, Any]) -> None:
    assert table("key").keys() == document.keys()


def test_its_parts(document: dict[str, Any]) -> None:
    stages = [stage for attempt in document["attempts"] for stage in attempt["stages"].values()]
    assert {key for stage in stages for key in stage} == table("key of a stage").keys()
    assert document["stages"] == document["attempts"][-1]["stages"]
    (attempt, _) = document["attempts"]
    assert attempt.keys() == said(table("key")["attempts"])
    assert document["terminal"].keys() == table("key of the terminal").keys()
    assert document["terminal"]["error"].keys() == said(table("key of the terminal")["error"])


def test_its_edges_and_events(document: dict[str, Any]) -> None:
    writer = TraceWriter(state_dir("spoken") / FILE_NAME, max_mib=16, max_age_days=7.0)
    for fact in stories.spoken():
        writer.append(fact)
    writer.close()
    found = json.loads(run("demo", "--json", "--connect", "spoken").stdout)
    assert {key for edge in found["edges"] for key in edge} == table("key of an edge").keys()
    common = said(table("key")["events"])
    assert all(common - event.keys() <= {"stage"} for event in [*document["events"], *found["events"]])


def test_the_verdict(document: dict[str, Any]) -> None:
    assert table("key", VERDICT).keys() == document["verdict"].keys()


@pytest.mark.usefixtures("document")
def test_a_list() -> None:
    views = (ROOT / "docs" / "tracing-views.md").read_text()
    (listed,) = re.findall(r'`\{"requests": \[\{(.+?)\}\]\}`', views.replace("\n", " "))
    (one,) = json.loads(run("--failed", "--json").stdout)["requests"]
    assert re.findall(r'"(\w+)"', listed) == list(one)
