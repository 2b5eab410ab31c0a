"""A disk that is full, read-only or stuck costs rows of the trace, and no request anything (T1).

The disk is a real one, small and of its own: a file system in memory, mounted where the deployment keeps its state.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.running import OMNIZMQ, Running, document, eventually, launched, omnizmq

from omnizmq import Client
from omnizmq.runtime import state_dir
from omnizmq.trace import database
from omnizmq.trace.store import TraceReader

pytestmark = pytest.mark.usefixtures("no_leaks")

NAME = "synthetic"
REQUESTS = 300
"""More lines of the log than fit into a pipe that nobody reads, were each complained of there."""


@pytest.fixture
def disk(home: Path) -> Iterator[Path]:  # noqa: ARG001 (its environment)
    """The state directory of the deployment, on a disk of 1 MiB."""
    path = state_dir(NAME)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", path], capture_output=True, check=False)
    if mounted.returncode != 0:
        pytest.skip("only root can mount a file system")
    yield path
    subprocess.run(["umount", path], check=True)


def fill(disk: Path) -> None:
    """To the last page, also where something has made room meanwhile."""
    with pytest.raises(OSError, match="No space left"), (disk / "filler").open("ab", buffering=0) as filler:
        filler.writelines(itertools.repeat(bytes(4096)))


@contextmanager
def read_only(path: Path) -> Iterator[None]:
    """A file that even root cannot write."""
    if subprocess.run(["chattr", "+i", path], capture_output=True, check=False).returncode != 0:
        pytest.skip("only root can make a file immutable, and only on some file systems")
    try:
        yield
    finally:
        subprocess.run(["chattr", "-i", path], check=True)


def tracing(running: Running) -> dict[str, Any]:
    found: dict[str, Any] = running.status()["trace"]
    return found


def ask(name: str, requests: int, external_id: str) -> None:
    """One after the other; each has to be whole."""
    with Client.connect(name) as client:
        for _ in range(requests):
            *_, last = client.generate("one two three", request_id=external_id, modalities=["text"])
            assert last.finish_reason == "stop"


def events(running: Running, id_: str) -> list[str]:
    return [event["event"] for event in running.trace(id_)["events"]]


def test_t1_a_full_disk_costs_no_request_anything_and_the_trace_says_what_it_lost(disk: Path) -> None:
    with launched(NAME) as running:
        ask(running.name, 1, "before")
        assert events(running, "before")[-1] == "cleaned"
        for _ in range(5):  # a database that is closed for its failure may give some room back
            fill(disk)
            ask(running.name, REQUESTS // 5, "meanwhile")
        assert tracing(running)["failure"]
        (disk / "filler").unlink()
        assert "dropped" not in events(running, "before")  # it had ended
        assert eventually(lambda: not tracing(running)["failure"])  # it notices by itself, to record the loss
        lost = tracing(running)["rows_dropped"]
        assert lost > REQUESTS
        ask(running.name, 1, "after")
        assert "dropped" not in events(running, "after")
        assert running.stop() == 0
    with TraceReader(disk / database.FILE_NAME) as reader:
        assert sum(loss.rows for loss in reader.losses()) == lost


NARROW = "router.output_window=8"
LONG = " ".join(f"w{number}" for number in range(300))
"""With that window it is under way until its caller reads it."""


@pytest.mark.usefixtures("home")
def test_t1_t2_whoever_is_told_where_a_request_is_finds_in_the_trace_what_it_did_so_far() -> None:
    """Also where the disk does not answer he is told; what is not written then, he does not find."""
    path = state_dir(NAME) / database.FILE_NAME
    with launched(NAME, NARROW) as running, Client.connect(running.name) as client:
        for count in range(5):  # at any moment of the writer's
            outputs = client.generate(LONG, request_id=f"asked-{count}", modalities=["text"])
            request_id = next(outputs).request_id
            assert client.inspect(f"asked-{count}") is not None
            with TraceReader(path) as reader:
                assert {"asked", "received", "first_output"} <= {fact.event for fact in reader.facts(request_id)}
            client.abort(f"asked-{count}")
        lock = database.connect(path, mode="rw")
        lock.execute("BEGIN IMMEDIATE")
        outputs = client.generate(LONG, request_id="locked", modalities=["text"])
        request_id = next(outputs).request_id
        assert client.inspect("locked") is not None
        with TraceReader(path) as reader:
            assert reader.facts(request_id) == []
        lock.execute("ROLLBACK")
        lock.close()
        assert client.abort("locked") == 1  # a stop would wait for its reader
        assert running.stop() == 0


@pytest.mark.usefixtures("home")
def test_t1_a_stuck_disk_costs_no_request_anything_and_the_trace_says_what_it_lost() -> None:
    """Another process's lock stands for a disk that does not answer."""
    with launched(NAME, NARROW) as running, Client.connect(running.name) as client:
        outputs = client.generate(LONG, request_id="meanwhile", modalities=["text"])
        next(outputs)
        assert eventually(lambda: omnizmq("trace", "meanwhile").returncode == 0)
        lock = database.connect(state_dir(NAME) / database.FILE_NAME, mode="rw")
        lock.execute("BEGIN IMMEDIATE")
        ask(running.name, 1, "lost")
        assert eventually(lambda: tracing(running)["rows_dropped"] > 0)
        ask(running.name, 1, "later")
        lock.execute("ROLLBACK")
        lock.close()
        assert eventually(lambda: not tracing(running)["failure"])
        *_, last = outputs
        assert last.finish_reason == "stop"
        assert "dropped" in events(running, "meanwhile")
        unknown = omnizmq("trace", "lost", "--connect", NAME)
        assert unknown.returncode == 1
        assert re.fullmatch(
            r"omnizmq trace: no request with id 'lost' is known in the trace of synthetic; "
            r"[0-9]+ rows could not be stored \(database is locked.*\), perhaps all its own\n",
            unknown.stderr,
        )
        assert running.stop() == 0


@pytest.mark.usefixtures("home")
def test_t1_a_read_only_trace_costs_no_request_anything_and_is_complained_of() -> None:
    path = state_dir(NAME) / database.FILE_NAME
    database.Database(path, token="t", pid=1).close()
    with read_only(path), launched(NAME) as running:
        ask(running.name, 3, "meanwhile")
        assert eventually(lambda: tracing(running)["rows_dropped"] > 0)
        assert "readonly" in tracing(running)["failure"]
        assert running.stop() == 0


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("harm", [Path.unlink, lambda path: os.truncate(path, 0)], ids=["removed", "truncated"])
def test_t1_t2_a_trace_that_is_spoilt_under_a_live_request_is_begun_anew_and_says_what_it_lost(
    harm: Callable[[Path], None],
) -> None:
    path = state_dir(NAME) / database.FILE_NAME
    with launched(NAME, NARROW) as running, Client.connect(running.name) as client:
        outputs = client.generate(LONG, request_id="meanwhile", modalities=["text"])
        next(outputs)
        assert eventually(lambda: omnizmq("trace", "meanwhile").returncode == 0)
        harm(path)
        assert eventually(lambda: tracing(running)["rows_dropped"] > 0)
        assert tracing(running)["failure"] is None
        assert omnizmq("trace", "meanwhile").returncode == 0  # its router holds it
        *_, last = outputs
        assert last.finish_reason == "stop"
        assert eventually(lambda: "dropped" in events(running, "meanwhile"))
        verdict = running.trace("meanwhile")["verdict"]
        assert verdict["complete"]
        assert "the trace lost" in verdict["text"]
        ask(running.name, 1, "after")
        assert "dropped" not in events(running, "after")
        assert running.stop() == 0


@pytest.mark.usefixtures("home")
def test_t2_a_request_whose_end_was_lost_does_not_count_as_live() -> None:
    with launched(NAME, NARROW) as running, Client.connect(running.name) as client:
        outputs = client.generate(LONG, request_id="lost", modalities=["text"])
        next(outputs)
        assert eventually(lambda: omnizmq("trace", "lost").returncode == 0)
        lock = database.connect(state_dir(NAME) / database.FILE_NAME, mode="rw")
        lock.execute("BEGIN IMMEDIATE")
        *_, last = outputs
        assert last.finish_reason == "stop"
        for _ in range(2):  # the first batch that is lost may have been taken before the end
            before = tracing(running)["rows_dropped"]
            ask(running.name, 1, "later")
            assert eventually(lambda: tracing(running)["rows_dropped"] > before)  # noqa: B023 (called at once)
        lock.execute("ROLLBACK")
        lock.close()
        outputs = client.generate(LONG, request_id="live", modalities=["text"])
        next(outputs)
        assert eventually(lambda: omnizmq("trace", "live").returncode == 0)
        found = document(omnizmq("trace", "--slow", "1", "--json"))["requests"]
        assert [(one["external_id"], one["outcome"]) for one in found] == [("live", "live")]
        assert "unknown: the router holds it no more" in running.trace("lost")["verdict"]["text"]
        assert client.abort("live") == 1
        assert running.stop() == 0


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("options", [(), ("--json",)], ids=["piped", "json"])
def test_t2_what_is_followed_goes_on_when_its_trace_is_removed(options: tuple[str, ...]) -> None:
    with launched(NAME, NARROW) as running, Client.connect(running.name) as client:
        outputs = client.generate(LONG, request_id="meanwhile", modalities=["text"])
        next(outputs)
        assert eventually(lambda: omnizmq("trace", "meanwhile").returncode == 0)
        command = [*OMNIZMQ, "trace", "meanwhile", "--follow", *options]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            (state_dir(NAME) / database.FILE_NAME).unlink()
            *_, last = outputs
            assert last.finish_reason == "stop"
            out, said = process.communicate(timeout=30)
        assert (process.returncode, said) == (0, "")
        text = json.loads(out)["verdict"]["text"] if options else out.splitlines()[-1]
        assert text.startswith("complete after ")
        failed = omnizmq("trace", "x", "--follow", "--json", "--connect", "nobody")
        assert (failed.returncode, json.loads(failed.stdout)["error"]["code"]) == (1, "not_found")
        assert running.stop() == 0
