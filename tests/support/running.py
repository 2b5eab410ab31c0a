"""A real deployment in processes of its own, for tests."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from omnizmq import AsyncClient, Client, RequestOutput
from omnizmq.errors import OmnizmqError
from omnizmq.recording import file
from support import leaks
from support.recordings import first_difference

OMNIZMQ = [sys.executable, "-m", "omnizmq"]


def omnizmq(*args: str, stdin: bytes | None = None, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
    """The command, to its end; output and errors as text."""
    done = subprocess.run(
        [*OMNIZMQ, *args],
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        capture_output=True,
        timeout=timeout_s,
        check=False,
    )
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def document(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The one JSON document that is all of stdout."""
    assert done.stdout.count("\n") == 1 or done.stdout.startswith("{\n"), done.stdout
    found: dict[str, Any] = json.loads(done.stdout)
    return found


class Running:
    """`omnizmq launch`, ready. `pid` is the router's."""

    def __init__(self, process: subprocess.Popen[str], ready: dict[str, Any]) -> None:
        self.process = process
        self.ready = ready
        self.name: str = ready["name"]
        self.endpoint: str = ready["endpoint"]
        self.pid: int = ready["pid"]

    def status(self) -> dict[str, Any]:
        with Client.connect(self.name) as client:
            return client.status()

    def worker_pid(self, replica: str) -> int:
        return int(self.replica(replica)["pid"])

    def stop(self, number: int = signal.SIGTERM, timeout_s: float = 30) -> int:
        """The exit status after that signal."""
        self.process.send_signal(number)
        return self.process.wait(timeout_s)

    def replica(self, replica: str) -> dict[str, Any]:
        """What `status` says of `talker/0`."""
        stage, _, number = replica.partition("/")
        found: dict[str, Any] = self.status()["stages"][stage]["replicas"][int(number)]
        return found

    def worker_pids(self) -> list[int]:
        return [one["pid"] for stage in self.status()["stages"].values() for one in stage["replicas"]]

    def trace(self, id_: str) -> dict[str, Any]:
        """What `trace` says of the request, once it is known to have ended."""
        found: dict[str, Any] = {}

        def ended() -> bool:
            done = omnizmq("trace", id_, "--json", "--connect", self.name)
            found.clear()
            found.update(json.loads(done.stdout) if done.returncode == 0 else {})
            return found.get("state") == "ended"

        assert eventually(ended), found
        return found

    def idle(self) -> bool:
        """B3: every table is empty."""
        status = self.status()
        return not any(status[key] for key in ("live_requests", "bindings", "queued", "leftovers"))


@contextmanager
def launched(config: str = "synthetic", *sets: str, name: str | None = None) -> Iterator[Running]:
    """A deployment that is stopped at the end, if the test has not done so; then the replay of its recording agrees."""
    with TemporaryDirectory(prefix="oz-") as folder:
        recording = Path(folder) / "recording.jsonl"
        with recorded(recording, config, *sets, name=name) as running:
            yield running
        parted = first_difference(file.read(recording))
    assert parted is None, parted


@contextmanager
def recorded(
    recording: Path, config: str, *sets: str, name: str | None = None, max_mib: int = 1024
) -> Iterator[Running]:
    """The same, with a recording there, which is not looked at."""
    options = [option for setting in sets for option in ("--set", setting)]
    recording_options = ["--record", str(recording), "--record-max-mib", str(max_mib)]
    naming = [] if name is None else ["--name", name]
    process = subprocess.Popen(
        [*OMNIZMQ, "launch", "--config", config, "--json", *recording_options, *naming, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        line = process.stdout.readline()
        assert '"endpoint"' in line, f"the deployment did not start: {process.stderr.read()}"
        yield Running(process, json.loads(line))
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        process.stdout.close()
        process.stderr.close()


@contextmanager
def shared(config: str, *sets: str) -> Iterator[Running]:
    """One for all tests of a file, where loading takes seconds; its directories are its own, and it must leave nothing
    behind either."""
    with TemporaryDirectory(prefix="oz-") as folder, pytest.MonkeyPatch.context() as patch:
        root = Path(folder) / "run" / "omnizmq"
        root.mkdir(mode=0o700, parents=True)
        root.parent.chmod(0o700)
        patch.setenv("XDG_RUNTIME_DIR", str(root.parent))
        patch.setenv("XDG_STATE_HOME", f"{folder}/state")
        before = leaks.look(root)
        with launched(config, *sets) as running:
            yield running
            assert running.stop() == 0
        left = leaks.settle(before, root)
        assert not left, "left behind: " + "; ".join(left)


def eventually(holds: Callable[[], bool], timeout_s: float = 10.0) -> bool:
    """Whether it comes to hold within that time."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def state_of(pid: int) -> str | None:
    """The letter that the kernel gives: R, S, T (stopped), Z (ended, not reaped), …; None: there is no such process."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return None


def alive(pid: int) -> bool:
    """Whether a process with that number exists and is no zombie."""
    return state_of(pid) not in (None, "Z")


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    os.kill(pid, number)


async def collect(client: AsyncClient, prompt: str, **options: Any) -> list[RequestOutput]:
    """Every output of one request, the terminal at the end."""
    return [output async for output in client.generate(prompt, **options)]


def text_of(outputs: list[RequestOutput]) -> str:
    return "".join(output.text or "" for output in outputs)


def samples_of(outputs: list[RequestOutput]) -> int:
    return sum(len(output.audio) for output in outputs if output.audio is not None)


class Asking:
    """A request under way. `outputs` are those that have come."""

    def __init__(self, client: AsyncClient, prompt: str, **options: Any) -> None:
        self.outputs: list[RequestOutput] = []
        self.task = asyncio.create_task(self._read(client.generate(prompt, **options)))

    async def _read(self, outputs: AsyncIterator[RequestOutput]) -> None:
        async for output in outputs:
            self.outputs.append(output)

    async def has(self, outputs: int) -> None:
        """Wait until so many have come; an error that ends it earlier is raised."""
        await until(lambda: len(self.outputs) >= outputs or self.task.done())
        if self.task.done():
            self.task.result()
        assert len(self.outputs) >= outputs

    async def error(self) -> OmnizmqError | None:
        """What it ended with; None: a terminal."""
        try:
            await asyncio.wait_for(self.task, 20)
        except OmnizmqError as error:
            return error
        assert self.outputs[-1].finished
        return None


class Held(Asking):
    """It takes no output after this one, counted from 1, before it may go on.

    With a `router.output_window` smaller than what is left of its answer then, its stages pause: it cannot end by
    itself, however late this process is.
    """

    def __init__(self, client: AsyncClient, prompt: str, *, after: int, **options: Any) -> None:
        self._after = after
        self._may_go_on = asyncio.Event()
        super().__init__(client, prompt, **options)

    async def _read(self, outputs: AsyncIterator[RequestOutput]) -> None:
        async for output in outputs:
            self.outputs.append(output)
            if len(self.outputs) == self._after:
                await self._may_go_on.wait()

    def go_on(self) -> None:
        self._may_go_on.set()

    async def error(self) -> OmnizmqError | None:
        """It goes on, and what it ended with; None: a terminal."""
        self.go_on()
        return await super().error()


async def until(holds: Callable[[], bool], timeout_s: float = 10.0) -> None:
    """Wait until it holds; fail after that time."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, "waited in vain"
        await asyncio.sleep(0.005)
