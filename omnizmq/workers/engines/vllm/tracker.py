"""That nothing of vLLM's executor stays in `/dev/shm`, whoever is killed and whenever.

Processes that compute one replica together share memory and semaphores by name (Python's `multiprocessing`). Its
resource tracker, a process that they all hold a pipe to, unlinks the names that are left when the last of them has
ended, however it did. It would be killed along with the worker's process group, so it gets a group of its own.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from multiprocessing import resource_tracker, util

_OWN: list[subprocess.Popen[bytes]] = []
"""Kept for as long as this process lives: one that is dropped is reported as still running."""


def start() -> None:
    """Before anything has a name."""
    spawn = util.spawnv_passfds
    util.spawnv_passfds = _spawn  # type: ignore[assignment]
    try:
        resource_tracker.ensure_running()
    finally:
        util.spawnv_passfds = spawn


def _spawn(path: str | bytes, args: Sequence[str], passfds: Sequence[int]) -> int:
    """As `multiprocessing.util` has it. What the tracker says of names that are left is no news to anybody."""
    command = [args[0], "-W", "ignore", *args[1:]]
    process = subprocess.Popen(command, executable=path, pass_fds=passfds, process_group=0)
    _OWN.append(process)
    return process.pid
