"""A caller in a process of its own, for drills that kill it or stop it: `python -m support.drill_caller WHAT …`.

WHAT says when it prints `ready`: `ask` when all its requests are asked; `stream`, `abort` and `close` when each has two
words, `stop` then too, and has stopped itself (SIGSTOP); `withheld` when all outputs have ended. At a line on its
standard input `abort` aborts all, and prints how many that were; `close` closes its client. At its end it prints how
many whole answers it has had. With `--launch` it owns its deployment, else it connects to the only one.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE

from omnizmq import AsyncClient
from support.drill import assert_whole, both_ended, words
from support.running import Asking, Held, eventually, state_of

TESTS = Path(__file__).parent.parent


class Caller:
    """The process, from outside."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.pid = process.pid

    def line(self) -> str:
        """What it says next."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()


@contextmanager
def caller(what: str, *sets: str, count: int = 8, name: str = "quiet", length: int = 5) -> Iterator[Caller]:
    """With `sets` it launches. It is ready inside, and is killed at the end."""
    command = [sys.executable, "-m", "support.drill_caller", what, "--count", str(count), "--name", name]
    command += ["--length", str(length), *(["--launch", *sets] if sets else [])]
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path}
    process = subprocess.Popen(command, stdin=PIPE, stdout=PIPE, text=True, env=environment)
    found = Caller(process)
    try:
        said = found.line()
        assert said == "ready", said
        assert what != "stop" or eventually(lambda: state_of(found.pid) == "T")
        yield found
    finally:
        process.kill()
        process.communicate()


async def _run(asked: argparse.Namespace) -> None:
    made = AsyncClient.connect() if asked.launch is None else AsyncClient.launch("synthetic", sets=asked.launch)
    async with made as client:
        prompts = [words(f"{asked.name}-{number}", asked.length) for number in range(asked.count)]
        asking = [_ask(client, prompt, asked) for prompt in prompts]
        await _until_there(client, asked.what, asking)
        _say("ready")
        if asked.what == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        if asked.what in ("abort", "close"):
            await asyncio.to_thread(sys.stdin.readline)
        if asked.what == "close":
            await client.close()
        elif asked.what == "abort":
            _say(str(await client.abort(asked.name)))
        _say(f"{await _whole(asking, prompts)} whole")


def _ask(client: AsyncClient, prompt: str, asked: argparse.Namespace) -> Asking:
    """Whoever stops has not read on before, however long the others' words take."""
    if asked.what == "stop":
        return Held(client, prompt, after=2, request_id=asked.name)
    return Asking(client, prompt, request_id=asked.name)


async def _until_there(client: AsyncClient, what: str, asking: Sequence[Asking]) -> None:
    if what == "ask":
        while (await client.status())["live_requests"] < len(asking):
            await asyncio.sleep(0.005)
    elif what == "withheld":
        for one in asking:
            await both_ended(one)
    else:
        for one in asking:
            await one.has(2)


async def _whole(asking: Sequence[Asking], prompts: Sequence[str]) -> int:
    errors = await asyncio.gather(*(one.error() for one in asking))
    count = 0
    for one, prompt, error in zip(asking, prompts, errors, strict=True):
        if error is None and one.outputs[-1].finish_reason == "stop":
            assert_whole(one.outputs, prompt)
            count += 1
    return count


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("ask", "withheld", "abort", "close", "stream", "stop"))
    parser.add_argument("--count", type=int)
    parser.add_argument("--name")
    parser.add_argument("--length", type=int)
    parser.add_argument("--launch", nargs="*")
    asyncio.run(_run(parser.parse_args()))


if __name__ == "__main__":
    main()
