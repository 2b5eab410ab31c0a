"""What vLLM's executor would leave in `/dev/shm` when it is killed.

Processes that compute one replica together share memory and semaphores by name (Python's `multiprocessing`). Once all
of them have those mapped the names serve nobody, and a name that is gone cannot be left behind.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil  # type: ignore[import-untyped]

_FOLDER = "/dev/shm"
_OF_MULTIPROCESSING = ("psm_", "sem.mp-")


def unlink() -> None:
    """Those of what this process and its children have mapped. Call it when all of them have loaded."""
    this = psutil.Process()
    mapped = {inode for process in (this, *this.children(recursive=True)) for inode in _mapped(process.pid)}
    for entry in os.scandir(_FOLDER):
        if entry.name.startswith(_OF_MULTIPROCESSING):
            with suppress(FileNotFoundError):
                if entry.inode() in mapped:
                    os.unlink(entry.path)


def _mapped(pid: int) -> Iterator[int]:
    """The inodes of its mappings there, in the fifth column: a semaphore's name is not the one it was made by."""
    with suppress(FileNotFoundError, ProcessLookupError):
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            if _FOLDER in line:
                yield int(line.split()[4])
