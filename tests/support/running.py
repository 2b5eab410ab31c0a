"""A real deployment in processes of its own, for tests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

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


class Running:
    """`omnizmq launch`, ready. `pid` is the router's."""

    def __init__(self, process: subprocess.Popen[str], ready: dict[str, Any]) -> None:
        self.process = process
        self.name: str = ready["name"]
        self.endpoint: str = ready["endpoint"]
        self.pid: int = ready["pid"]

    def status(self) -> dict[str, Any]:
        done = omnizmq("status", "--json", "--connect", self.name)
        assert done.returncode == 0, done.stderr
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    def worker_pid(self, replica: str) -> int:
        stage, _, number = replica.partition("/")
        return int(self.status()["stages"][stage]["replicas"][int(number)]["pid"])

    def stop(self, number: int = signal.SIGTERM, timeout_s: float = 30) -> int:
        """The exit status after that signal."""
        self.process.send_signal(number)
        return self.process.wait(timeout_s)

    def idle(self) -> bool:
        """B3: every table is empty."""
        status = self.status()
        return not any(status[key] for key in ("live_requests", "bindings", "queued", "leftovers"))


@contextmanager
def launched(config: str = "synthetic", *sets: str, name: str | None = None) -> Iterator[Running]:
    """A deployment that is stopped at the end, if the test has not done so."""
    options = [option for setting in sets for option in ("--set", setting)]
    naming = [] if name is None else ["--name", name]
    process = subprocess.Popen(
        [*OMNIZMQ, "launch", "--config", config, "--json", *naming, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        line = process.stdout.readline()
        assert line, f"the deployment did not start: {process.stderr.read()}"
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


def eventually(holds: Callable[[], bool], timeout_s: float = 10.0) -> bool:
    """Whether it comes to hold within that time."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def alive(pid: int) -> bool:
    """Whether a process with that number exists and is no zombie."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    os.kill(pid, number)
