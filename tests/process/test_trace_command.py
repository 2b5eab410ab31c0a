"""`omnizmq trace` beside a deployment that runs: followed, listed, piped, on a terminal, written to a file (T1, T2)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.running import OMNIZMQ, Running, document, eventually, omnizmq
from support.terminals import on_terminal

from omnizmq import Client
from omnizmq.cli import group

SETS = (
    "stage.talker.options.silent_at=2",
    "stage.talker.options.fault_only=quiet",
    "stage.code2wav.options.fail_at=2",
    "stage.code2wav.options.fault_only=bad",
)


@pytest.fixture
def home(module_home: Path) -> Path:
    return module_home


@contextmanager
def asked(deployment: Running, id_: str) -> Iterator[subprocess.Popen[str]]:
    """A request of three words, text and speech, that its trace knows of."""
    command = [*OMNIZMQ, "chat", "one two three", "--connect", deployment.name, "--request-id", id_]
    sound = f"{os.environ['XDG_STATE_HOME']}/reply.wav"
    process = subprocess.Popen(
        [*command, "--modalities", "text,audio", "--output", sound, "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert eventually(lambda: omnizmq("trace", id_).returncode == 0)
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=20)


@contextmanager
def following(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*OMNIZMQ, "trace", *arguments, "--follow"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def run_to_its_end(deployment: Running, id_: str) -> None:
    with asked(deployment, id_) as process:
        process.wait(20)
    deployment.trace(id_)


def lines_until(process: subprocess.Popen[str], text: str) -> list[str]:
    """What it prints, up to the line that holds the text."""
    assert process.stdout is not None
    seen = []
    for line in process.stdout:
        seen.append(line)
        if text in line:
            return seen
    raise AssertionError(f"it ended without {text!r}: {seen}")


def test_t1_a_request_that_has_just_ended_is_known(deployment: Running) -> None:
    """By a command that need not start first."""
    with Client.connect(deployment.name) as client:
        for count in range(3):
            *_, last = client.generate("hi", request_id=f"just-{count}", modalities=["text"])
            assert last.finished
            done = CliRunner().invoke(group, ["trace", f"just-{count}", "--json"])
            assert done.exit_code == 0, done.output
            assert json.loads(done.stdout)["verdict"]["text"].startswith("complete after ")


class TestFollow:
    def test_piped_it_tells_each_event_as_it_comes_and_ends_with_the_request(self, deployment: Running) -> None:
        with asked(deployment, "quiet-1"), following("quiet-1") as process:
            begun = lines_until(process, "now: talker/0")
            assert "asked" in begun[1]
            assert any("first_output talker" in line for line in begun)
            assert process.poll() is None
            assert omnizmq("abort", "quiet-1", "--connect", deployment.name).returncode == 0
            rest, said = process.communicate(timeout=20)
            assert (process.returncode, said) == (0, "")
            assert any("abort_asked" in line for line in rest.splitlines())
            assert rest.splitlines()[-1].startswith("aborted after ")
            assert "\x1b" not in rest

    def test_one_that_is_not_known_yet_is_waited_for(self, deployment: Running) -> None:
        with following("later") as process:
            assert process.stderr is not None
            waits = "omnizmq trace: no request with id 'later' is known; waiting for it for up to 60 s\n"
            assert process.stderr.readline() == waits
            with asked(deployment, "later"):
                rest, _ = process.communicate(timeout=20)
            assert process.returncode == 0
            assert rest.splitlines()[-1].startswith("complete after ")

    def test_a_deployment_that_there_is_not_is_not_waited_for(self, deployment: Running) -> None:
        done = omnizmq("trace", "x", "--follow", "--connect", f"{deployment.name}-not")
        assert done.returncode == 1
        assert done.stderr.count("\n") == 1

    def test_interrupted(self, deployment: Running) -> None:
        with asked(deployment, "quiet-2"), following("quiet-2") as process:
            lines_until(process, "now: talker/0")
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=20)
            assert (process.returncode, said.strip()) == (130, "omnizmq trace: interrupted")

    def test_json_is_the_one_document_of_what_has_ended(self, deployment: Running) -> None:
        with asked(deployment, "quiet-3"), following("quiet-3", "--json") as process:
            assert process.poll() is None
            assert omnizmq("abort", "quiet-3", "--connect", deployment.name).returncode == 0
            out, said = process.communicate(timeout=20)
            assert (process.returncode, said, json.loads(out)["state"]) == (0, "", "ended")


class TestTerminal:
    def test_the_view_is_drawn_in_place_and_left_whole(self, deployment: Running) -> None:
        """On a terminal that is lower than the view."""
        command = [*OMNIZMQ, "trace", "quiet-4", "--follow"]
        with asked(deployment, "quiet-4"), on_terminal(command, rows=8, columns=80) as terminal:
            terminal.until(b"whose move it is: ")
            assert omnizmq("abort", "quiet-4", "--connect", deployment.name).returncode == 0
            left = terminal.end()
            assert terminal.process.returncode == 0
        whole = left[left.rindex("quiet-4  request quiet-4-") :]
        assert "\x1b[1;31maborted after " in whole
        assert all(name in whole for name in ("thinker/0", "talker/0", "code2wav/0", "thinker to talker", "engine id"))


class TestLists:
    def test_failed_and_slow_requests_of_this_run(self, deployment: Running) -> None:
        run_to_its_end(deployment, "bad-1")
        run_to_its_end(deployment, "good-1")
        failed = document(omnizmq("trace", "--failed", "--json"))["requests"]
        assert "bad-1" in [one["external_id"] for one in failed]
        assert "good-1" not in [one["external_id"] for one in failed]
        (bad,) = [one for one in failed if one["external_id"] == "bad-1"]
        assert (bad["outcome"], bad["deployment"]) == ("stage_error", deployment.name)
        assert "code2wav/0" in bad["verdict"]["text"]
        with asked(deployment, "quiet-5"):
            slow = document(omnizmq("trace", "--slow", "1000", "--json"))["requests"]
        assert {"bad-1", "good-1", "quiet-5"} <= {one["external_id"] for one in slow}
        assert [one["outcome"] for one in slow if one["external_id"] == "quiet-5"] == ["live"]
        took = [one["duration_ms"] for one in slow]
        assert took == sorted(took, reverse=True)
        plain = omnizmq("trace", "--failed")
        assert plain.returncode == 0
        assert any("bad-1" in line and "stage_error" in line for line in plain.stdout.splitlines())
