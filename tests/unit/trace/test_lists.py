"""`omnizmq trace --failed` and `--slow`, and which options go together (T1, T2)."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support import trace_stories as stories
from support.tracing import begin, run

from omnizmq.commands import listing
from omnizmq.protocol import Value
from omnizmq.runtime import state_dir
from omnizmq.trace.database import FILE_NAME
from omnizmq.trace.facts import Fact
from omnizmq.trace.finding import Found, Store
from omnizmq.trace.perfetto import encode
from omnizmq.trace.store import Traced, TraceWriter

FAILURE: dict[str, Value] = {"error_code": "stage_error", "error_replica": "talker/0", "error_message": "boom"}


@pytest.fixture(autouse=True)
def _directories(home: Path) -> None:
    """Every test has its own."""


def request(name: str, number: int) -> str:
    return f"{name}-{number:016x}"


def ended(name: str, took_ms: float, reason: str = "stop", **detail: Value) -> list[Fact]:
    request_id = request(name, 1)
    end = stories.fact(took_ms, "terminal", "talker", {"finish_reason": reason, **detail}, request_id=request_id)
    return [stories.fact(0, "asked", request_id=request_id), end]


def refused(name: str) -> list[Fact]:
    detail: dict[str, Value] = {"code": "overloaded", "message": "too many"}
    return [
        stories.fact(at, event, detail=detail, request_id=request(name, 1))
        for at, event in enumerate(("asked", "refused"))
    ]


def kept(deployment: str, *requests: list[Fact]) -> None:
    """A trace, written in that order and closed."""
    writer = TraceWriter(state_dir(deployment) / FILE_NAME, max_mib=16, max_age_days=7.0)
    for facts in requests:
        for fact in facts:
            writer.append(fact)
        assert writer.flush()
    writer.close()


def listed(*arguments: str) -> list[dict[str, Any]]:
    result = run(*arguments, "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    found = json.loads(result.stdout)["requests"]
    assert isinstance(found, list)
    return found


def ids(*arguments: str) -> list[object]:
    return [one["external_id"] for one in listed(*arguments)]


def test_the_newest_failed_requests_of_all_traces_the_newest_first() -> None:
    kept("a", ended("first", 5, "error", **FAILURE), ended("good", 9), refused("second"))
    kept("b", ended("third", 7, "error", **FAILURE), ended("aborted", 8, "abort"))
    assert ids("--failed") == ["third", "second", "first"]
    assert ids("--failed", "--limit", "2") == ["third", "second"]
    assert ids("--failed", "--connect", "a") == ["second", "first"]


def test_what_is_said_of_each() -> None:
    kept("a", ended("first", 5, "error", **FAILURE))
    (one,) = listed("--failed")
    verdict = one.pop("verdict")
    started = one.pop("started_at")
    assert isinstance(verdict, dict)
    assert isinstance(started, str)
    assert "boom" in verdict["text"]
    assert one == {
        "request_id": request("first", 1),
        "external_id": "first",
        "deployment": "a",
        "duration_ms": 5.0,
        "state": "ended",
        "outcome": "stage_error",
    }


def test_the_slowest_of_all_traces_the_longest_first_however_they_ended() -> None:
    kept("a", ended("short", 5), ended("long", 900, "error", **FAILURE))
    kept("b", ended("middle", 70, "abort"))
    assert ids("--slow", "10") == ["long", "middle", "short"]
    assert ids("--slow", "1") == ["long"]
    assert [one["outcome"] for one in listed("--slow", "3")] == ["stage_error", "abort", "stop"]


def test_what_a_running_deployment_has_not_ended_counts_by_its_age(running: Callable[[str], None]) -> None:
    running("a")
    writer = begin("a", "stuck", age_s=100)
    kept("b", ended("minute", 60_000))
    found = listed("--slow", "5")
    assert [(one["external_id"], one["outcome"], one["state"]) for one in found] == [
        ("stuck", "live", "live"),
        ("minute", "stop", "ended"),
    ]
    assert float(str(found[0]["duration_ms"])) >= 100_000
    writer.close()
    assert ids("--slow", "5") == ["minute"]  # of a run that is over, nobody knows how long it took


def test_what_has_no_end_though_its_deployment_is_gone_has_failed(running: Callable[[str], None]) -> None:
    running("a")
    goes_on, killed = begin("a", "goes-on", age_s=10), begin("b", "killed", age_s=10)
    kept("c", [stories.fact(0, "asked", request_id=request("stopped", 1))])
    found = {str(one["external_id"]): one for one in listed("--failed")}
    assert {name: (one["outcome"], one["state"], one["duration_ms"]) for name, one in found.items()} == {
        "killed": ("unended", "ended", 1.0),
        "stopped": ("unended", "ended", 0.0),
    }
    causes = {name: one["verdict"]["cause"] for name, one in found.items()}
    assert causes == {"killed": "router_lost", "stopped": "client"}
    goes_on.close()
    killed.close()


def test_a_request_that_cannot_be_read_does_not_hide_the_others() -> None:
    kept("a", ended("first", 5), ended("hostile", 900), ended("third", 70))
    connection = sqlite3.connect(state_dir("a") / FILE_NAME)
    block = msgspec.msgpack.encode(([None], [(1, 1 << 63, "router", "received", None, 0, {})]))
    query = "UPDATE facts SET block = ? WHERE request = (SELECT id FROM requests WHERE external_id = 'hostile')"
    connection.execute(query, (block,))
    connection.commit()
    connection.close()
    result = run("--slow", "3", "--json")
    assert [one["external_id"] for one in json.loads(result.stdout)["requests"]] == ["third", "first"]
    assert result.stderr.startswith(f"omnizmq trace: {request('hostile', 1)}: ")
    assert result.stderr.count("\n") == 1
    result = run("hostile")
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)


def test_piped_it_is_a_line_each() -> None:
    kept("a", ended("first", 5, "error", **FAILURE), refused("second"))
    heading, *rows = run("--failed").stdout.splitlines()
    assert heading.split() == ["when", "id", "deployment", "took", "outcome", "verdict"]
    assert [row.split()[2] for row in rows] == ["second", "first"]
    assert all("a" in row.split() for row in rows)


@pytest.mark.parametrize("width", [200, 120, 80, 60])
def test_on_a_terminal_verdicts_wrap_and_nothing_is_cut(width: int) -> None:
    facts = ended("first", 5, "error", **(FAILURE | {"error_message": "a long story of why it failed " * 4}))
    about = Traced(facts[0].request_id, "first", time.time_ns(), 1, True)
    found = Found(Store("a", Path("trace.db"), None), about, facts)
    listed = [listing.Listed(found, 5.0, "stage_error")]
    shown = [line.text for line in listing.lines(listed, listing.documents(listed), width)]
    assert max(map(len, shown)) <= width
    assert " ".join("\n".join(shown).split()).count("a long story of why it failed") >= (4 if width < 120 else 1)
    assert "stage_error" in "".join(shown)


@pytest.mark.parametrize(
    ("option", "line"), [("--failed", "no request has failed\n"), ("--slow=3", "no request is stored\n")]
)
def test_an_empty_list_says_so(option: str, line: str) -> None:
    assert run(option)[:2] == (0, line)
    assert json.loads(run(option, "--json").stdout) == {"requests": []}


def test_several_requests_in_one_file_for_perfetto(tmp_path: Path) -> None:
    kept("a", ended("first", 5, "error", **FAILURE), ended("good", 9))
    path = tmp_path / "trace.perfetto"
    result = run("--slow", "2", "--perfetto", str(path), "--json")
    assert result.exit_code == 0
    assert result.stderr == f"omnizmq trace: wrote {path}; open it at https://ui.perfetto.dev\n"
    assert json.loads(result.stdout)["perfetto"] == str(path)
    assert path.read_bytes() == encode([ended("good", 9), ended("first", 5, "error", **FAILURE)], deployment="a")


def test_a_file_that_cannot_be_written_is_one_line() -> None:
    kept("a", ended("good", 9))
    line = "omnizmq trace: /dev/full cannot be written: No space left on device\n"
    assert run("--last", "--perfetto", "/dev/full") == (1, "", line)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--failed", "--slow", "3"), "name one request (an ID, or --last), or one list (--failed, or --slow N)"),
        (("x", "--failed"), "name one request (an ID, or --last), or one list (--failed, or --slow N)"),
        (("--last", "--slow", "3"), "name one request (an ID, or --last), or one list (--failed, or --slow N)"),
        (("x", "--limit", "3"), "--limit N goes with --failed"),
        (("--slow", "3", "--limit", "3"), "--limit N goes with --failed; --slow has its own N"),
        (("--failed", "--follow"), "--follow shows one request: name an ID, or --last"),
        (("--slow", "0"), "Invalid value for '--slow': 0 is not in the range 1<=x<=1000."),
        (("--slow", "many"), "Invalid value for '--slow': 'many' is not a valid integer range."),
    ],
)
def test_what_does_not_go_together_is_one_line(arguments: tuple[str, ...], line: str) -> None:
    assert run(*arguments) == (2, "", f"omnizmq trace: {line}\n")


def test_one_unreadable_trace_does_not_hide_the_others() -> None:
    kept("a", ended("first", 5, "error", **FAILURE))
    (state_dir("b") / FILE_NAME).write_bytes(b"garbage" * 100)
    result = run("--failed", "--json")
    assert [one["external_id"] for one in json.loads(result.stdout)["requests"]] == ["first"]
    assert "cannot be read as a trace database" in result.stderr
