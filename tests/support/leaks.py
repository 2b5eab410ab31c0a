"""What a test must not leave behind: processes, socket files, shared memory, descriptors, threads."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import NamedTuple

import psutil


class Left(NamedTuple):
    """A picture of what exists now."""

    processes: frozenset[int]
    runtime: frozenset[str]
    shared_memory: frozenset[str]
    descriptors: int
    threads: frozenset[str]


def look(runtime_root: Path) -> Left:
    """`runtime_root` is the directory in which this test's deployments live."""
    processes = {
        process.pid for process in psutil.process_iter(["environ"]) if _of_this_test(process, str(runtime_root))
    }
    runtime = {str(path.relative_to(runtime_root)) for path in runtime_root.rglob("*")}
    shared = {entry.name for entry in os.scandir("/dev/shm")}
    descriptors = len(os.listdir("/proc/self/fd"))
    threads = {thread.name for thread in threading.enumerate()}
    return Left(frozenset(processes), frozenset(runtime), frozenset(shared), descriptors, frozenset(threads))


def _of_this_test(process: psutil.Process, runtime_root: str) -> bool:
    """A deployment's processes inherit the test's own XDG_RUNTIME_DIR, wherever they were reparented to."""
    environ = process.info["environ"] or {}
    return process.pid != os.getpid() and environ.get("XDG_RUNTIME_DIR") == str(Path(runtime_root).parent)


def settle(before: Left, runtime_root: Path, timeout_s: float = 8.0) -> list[str]:
    """What is there now and was not before, after whatever is ending has had time to end. Empty: nothing."""
    deadline = time.monotonic() + timeout_s
    while True:
        leaks = _difference(before, look(runtime_root))
        if not leaks or time.monotonic() > deadline:
            return leaks
        time.sleep(0.05)


def _difference(before: Left, after: Left) -> list[str]:
    leaks = [f"process {pid}: {_command(pid)}" for pid in sorted(after.processes - before.processes)]
    leaks += [f"file {name} in the runtime directory" for name in sorted(after.runtime - before.runtime)]
    leaks += [f"shared memory {name}" for name in sorted(after.shared_memory - before.shared_memory)]
    leaks += [f"thread {name}" for name in sorted(after.threads - before.threads)]
    if after.descriptors > before.descriptors:
        leaks.append(f"{after.descriptors - before.descriptors} file descriptors")
    return leaks


def _command(pid: int) -> str:
    try:
        return " ".join(psutil.Process(pid).cmdline())
    except psutil.NoSuchProcess:
        return "ended meanwhile"
