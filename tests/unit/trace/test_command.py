"""`omnizmq trace`: which request is meant, what goes to stdout and stderr, and the exit codes (T1, T2)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support import trace_stories as stories
from support.tracing import run

from omnizmq.runtime import state_dir
from omnizmq.trace.database import FILE_NAME, Database, Loss
from omnizmq.trace.facts import Fact
from omnizmq.trace.packing import pack
from omnizmq.trace.store import TraceWriter
from omnizmq.trace.summary import summarize

SECOND = 10**9
Start = Callable[[str], None]
STARTED = 1_700_000_000 * SECOND


@pytest.fixture(autouse=True)
def _directories(home: Path) -> None:
    """Every test has its own."""


def store(name: str, facts: list[Fact], *, wall_s: int, pid: int = 1, token: str | None = None) -> None:
    """A trace as a writer leaves it that was killed, at a known wall-clock time."""
    database = Database(state_dir(name) / FILE_NAME, token=token or f"{pid} {wall_s}", pid=pid)
    database.add([pack([fact]) for fact in facts], [], wall_ns=STARTED + wall_s * SECOND)
    database.close()


def endpoint(name: str) -> str:
    return f"ipc:///run/{name}.sock"


def document(*arguments: str) -> dict[str, object]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert isinstance(found, dict)
    return found


def request(number: int) -> str:
    return f"demo-{number:016x}"


def asked(request_id: str) -> list[Fact]:
    return [stories.fact(0, "asked", request_id=request_id)]


# --- Output --------------------------------------------------------------------------------------------------------


def test_t1_json_is_the_summary_of_an_ended_request_and_nothing_else() -> None:
    store("d", stories.spoken(), wall_s=5)
    result = run("demo", "--json")
    assert result.exit_code == 0
    assert result.stderr == ""
    extra = {"deployment": "d", "started_at": "2023-11-14T22:13:25+00:00", "other_matches": 0, "other_deployments": []}
    assert json.loads(result.stdout) == summarize(stories.spoken(), running=False) | extra


def test_t1_a_request_id_is_as_good_as_an_external_id() -> None:
    store("d", stories.spoken(), wall_s=5)
    assert document(stories.REQUEST) == document("demo") == document("--last")


def test_t2_for_people_the_verdict_is_the_last_line() -> None:
    store("d", stories.spoken(), wall_s=5)
    result = run("demo")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1] == "complete after 200 ms, finish reason stop"
    assert "ended, deployment d, 2023-11-1" in result.stdout
    assert "\x1b" not in result.stdout
    assert result.stderr == ""


@pytest.mark.parametrize("arguments", [(), ("demo", "--last"), ("--json",), ("demo", "another")])
def test_without_exactly_one_request_it_is_a_wrong_usage(arguments: tuple[str, ...]) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert bool(result.stdout) is ("--json" in arguments)  # it has the error as well
    assert result.stderr.startswith("omnizmq trace: ")
    assert result.stderr.count("\n") == 1


# --- Which one -----------------------------------------------------------------------------------------------------


def test_a_name_that_cannot_be_one_is_a_wrong_usage() -> None:
    result = run("x", "--connect", "../d")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("omnizmq trace: deployment name '../d' is not usable: ")


def test_one_on_another_machine_keeps_its_traces_there() -> None:
    result = run("x", "--connect", "remote.json")
    said = "omnizmq trace: traces stay on the machine of their deployment: run `omnizmq trace` there\n"
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", said)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("nobody",), "omnizmq trace: no request with id 'nobody' is known\n"),
        (("nobody", "--connect", "d"), "omnizmq trace: no request with id 'nobody' is known in the trace of d\n"),
        (
            ("--last", "--connect", "e"),
            "omnizmq trace: no deployment 'e' runs or has left a trace; those that have: d\n",
        ),
    ],
)
def test_an_unknown_request_or_deployment_is_one_line_and_exit_code_1(arguments: tuple[str, ...], line: str) -> None:
    store("d", asked(request(1)), wall_s=1)
    result = run(*arguments, "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["error"]["code"] == "not_found"
    assert result.stderr.startswith(line)
    assert result.stderr.count("\n") == 1


def test_where_rows_were_lost_an_unknown_request_may_have_been_among_them() -> None:
    database = Database(state_dir("d") / FILE_NAME, token="t", pid=1)
    database.add([], [Loss(2, 1, 2, "disk full"), Loss(3, 1, 2, "too slow"), Loss(4, 5, 6, "disk full")], wall_ns=1)
    database.close()
    line = "no request with id 'nobody' is known; 9 rows could not be stored (disk full, too slow), perhaps all its own"
    assert run("nobody").stderr == f"omnizmq trace: {line}\n"


def test_with_nothing_stored_at_all_it_says_so() -> None:
    result = run("--last")
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", "omnizmq trace: no request is stored\n")


def test_the_newest_of_all_stored_traces_wins_and_the_others_are_counted() -> None:
    store("a", asked(request(1)), wall_s=1)
    store("b", asked(request(2)), wall_s=9)
    store("c", asked(request(3)) + asked(request(4)), wall_s=5)
    result = run("demo", "--json")
    found = json.loads(result.stdout)
    assert (found["request_id"], found["deployment"], found["other_matches"]) == (request(2), "b", 3)
    assert result.stderr == "omnizmq trace: 3 other requests bear this id (in a, c)\n"
    assert found["other_deployments"] == ["a", "c"]
    assert document(request(1))["other_matches"] == 0
    assert document("--last")["request_id"] == request(2)


def test_a_running_deployments_request_wins_over_newer_ones_of_ended_deployments(running: Start) -> None:
    store("a", asked(request(1)), wall_s=1)
    store("b", asked(request(2)), wall_s=9)
    running("a")
    found = document("demo")
    assert (found["request_id"], found["other_matches"]) == (request(1), 1)
    assert document("--last")["request_id"] == request(1)
    assert document(request(2))["deployment"] == "b"


def test_connect_takes_a_name_or_a_running_deployments_endpoint(running: Start) -> None:
    store("a", asked(request(1)), wall_s=1)
    store("b", asked(request(2)), wall_s=9)
    running("a")
    assert document("demo", "--connect", "b")["request_id"] == request(2)
    assert document("demo", "--connect", "a")["other_matches"] == 0
    assert document("--last", "--connect", endpoint("a"))["request_id"] == request(1)


def test_one_unreadable_trace_does_not_hide_the_others() -> None:
    store("a", asked(request(1)), wall_s=1)
    (state_dir("b") / FILE_NAME).write_bytes(b"garbage" * 100)
    result = run("demo", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["request_id"] == request(1)
    assert "cannot be read as a trace database" in result.stderr
    named = run("demo", "--connect", "b")
    assert named.exit_code == 1
    assert "cannot be read as a trace database" in named.stderr


# --- Live ----------------------------------------------------------------------------------------------------------


def live_facts() -> list[Fact]:
    """A request that was asked 10 s ago by the real clock."""
    begin = time.monotonic_ns() - 10 * SECOND
    return [
        Fact(stories.REQUEST, "demo", 1, begin, "client", "asked"),
        Fact(stories.REQUEST, "demo", 1, begin + 10**6, "router", "received", detail=stories.SPEECH),
    ]


def test_t1_t2_a_request_is_live_while_its_router_runs_and_has_not_ended_it(running: Start) -> None:
    running("d")
    writer = TraceWriter(state_dir("d") / FILE_NAME, max_mib=16, max_age_days=7.0)
    facts = live_facts()
    for fact in facts:
        writer.append(fact)
    assert writer.flush()
    found = document("demo")
    assert found["state"] == "live"
    assert found["verdict"] == {
        "complete": False,
        "last_boundary": "received",
        "waiting_for": "the router to answer",
        "since_ms": 1.0,
        "owner": "router",
        "text": "the router does not answer; last known: received, and not yet given to any replica",
        "cause": "router_silent",
        "stage": None,
        "replica": None,
        "reason_no_output": None,
    }
    axis = next(line for line in run("demo").stdout.splitlines() if line.startswith("stage"))
    assert float(axis.partition(" s ")[0].split()[-1]) >= 10.0
    last = facts[-1].at_ns + 5 * 10**6
    writer.append(
        Fact(stories.REQUEST, "demo", 1, last, "router", "terminal", "code2wav", detail={"finish_reason": "stop"})
    )
    assert writer.flush()
    assert document("demo")["state"] == "ended"
    writer.close()


ROUTER_LOST = "lost with its router, which ended some time after 1.0 ms without saying so (killed?); what was awaited"
STOPPED = "not complete: the deployment ended while waiting for the router to choose its replicas"


@pytest.mark.parametrize(
    ("pid", "said"),
    [(1, ROUTER_LOST), (os.getpid(), STOPPED)],
    ids=["another pid", "this pid, stopped in good order"],
)
def test_t2_a_request_of_an_earlier_run_is_not_live_though_its_deployment_runs_again(
    pid: int, said: str, running: Start
) -> None:
    running("d")
    if pid == 1:
        store("d", live_facts(), wall_s=1)
    else:
        writer = TraceWriter(state_dir("d") / FILE_NAME, max_mib=16, max_age_days=7.0)
        for fact in live_facts():
            writer.append(fact)
        writer.close()
    found = document("demo")
    assert found["state"] == "ended"
    text = found["verdict"]["text"]  # type: ignore[index]
    assert text.startswith(said)


def test_t2_a_request_of_a_killed_deployment_is_not_live() -> None:
    store("d", live_facts(), wall_s=1, pid=os.getpid())
    assert document("demo")["state"] == "ended"


def test_importing_the_command_loads_nothing_heavy() -> None:
    heavy = {"sqlite3", "rich", "numpy", "zmq", "msgspec", "omnizmq.protocol", "omnizmq.trace.store"}
    program = f"import sys, omnizmq.commands.trace; print(sorted({heavy!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n"
