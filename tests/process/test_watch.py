"""`omnizmq status --watch` beside a deployment that runs: in lines, in blocks, on a terminal, to its end."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from support.running import OMNIZMQ, Asking, collect, launched, omnizmq
from support.terminals import on_terminal

from omnizmq import AsyncClient

pytestmark = pytest.mark.usefixtures("no_leaks")

QUIET = ("stage.talker.options.silent_at=2", "stage.talker.options.fault_only=quiet")


WATCH = [*OMNIZMQ, "status", "--watch", "--interval", "0.1"]


@contextmanager
def watching(*options: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([*WATCH, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def next_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line: str = process.stdout.readline()
    assert line, "it has ended"
    return line


def test_json_is_a_line_an_interval_with_rates_and_the_oldest_requests_and_their_verdicts() -> None:
    async def scenario(name: str) -> None:
        with watching("--json") as process:
            first = json.loads(await asyncio.to_thread(next_line, process))
            assert (first["slowest"], set(first["rates"].values())) == ([], {None})
            async with AsyncClient.connect(name) as client:
                await collect(client, "one two", request_id="good")
                quiet = Asking(client, "one two three", request_id="quiet")
                await quiet.has(3)
                rates = []
                one = None
                while one is None or one["external_id"] != "quiet":  # a line may tell of a look before
                    document = json.loads(await asyncio.to_thread(next_line, process))
                    rates.append(document["rates"]["outputs_per_s"])
                    one = next(iter(document["slowest"]), None)
                assert (one["attempt"], one["phase"]) == (1, "running")
                assert "talker/0" in one["verdict"]
                assert max(rate for rate in rates if rate is not None) > 0
                assert await client.abort("quiet") == 1
                assert await quiet.error() is None
            process.send_signal(signal.SIGINT)
            assert await asyncio.to_thread(process.wait, 20) == 130

    with launched("synthetic", *QUIET) as deployment:
        asyncio.run(scenario(deployment.name))


def test_piped_it_is_a_block_an_interval_and_it_says_when_the_deployment_ends() -> None:
    with launched("synthetic") as deployment, watching() as process:
        blocks: list[list[str]] = [[]]
        while len(blocks) < 3:
            line = next_line(process).rstrip("\n")
            if line.startswith("synthetic: running, ready, at "):
                blocks.append([])
            blocks[-1].append(line)
        assert any(line.startswith("thinker/0   ready  ····") for line in blocks[1])
        assert any("thinker->talker" in line for line in blocks[1])
        assert deployment.stop() == 0
        _, said = process.communicate(timeout=20)
        assert process.returncode == 1
        assert said.startswith("omnizmq status: the router is gone: ")
        assert said.count("\n") == 1


def test_on_a_terminal_the_last_picture_stays() -> None:
    with launched("synthetic"), on_terminal([*WATCH], rows=30, columns=70) as terminal:
        terminal.until(b"counters: ", times=2)
        terminal.process.send_signal(signal.SIGINT)
        shown = terminal.end()
        assert terminal.process.returncode == 130
    left = shown.rpartition("\x1b[?1049l")[2]  # what the ordinary screen shows after the other one
    assert "synthetic: running, ready, at " in left
    assert "no room here for: " in left
    assert left.endswith("omnizmq status: interrupted\n")


def test_nothing_runs() -> None:
    done = omnizmq("status", "--watch")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1


def test_an_interval_without_a_watch_is_a_wrong_usage() -> None:
    done = omnizmq("status", "--interval", "2")
    assert (done.returncode, done.stderr) == (2, "omnizmq status: --interval S goes with --watch\n")
