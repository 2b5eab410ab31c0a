"""What a soak measures of its processes and tables, once a second: one number for each name.

Own memory is anonymous memory: pages of a ring, which several processes map, are in `memfd MiB` instead, each once.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from support.stress_watch import TABLES, replicas_of, used_bytes

MIB = 1 << 20
Sample = dict[str, float]

OWN, RSS, FILES, THREADS = "own MiB", "RSS MiB", "descriptors", "threads"
TRACE, SHARED, MEMFDS, MEMFD_MIB, RINGS_USED = "trace MiB", "/dev/shm MiB", "memfds", "memfd MiB", "rings used MiB"


def sample(status: dict[str, Any], others: Mapping[str, int], trace: Path) -> Sample:
    """`others` are processes besides the workers, by their names. A process that has just ended has no numbers."""
    workers = {one["id"]: one["pid"] for one in replicas_of(status) if one["pid"] and one["state"] != "starting"}
    found: Sample = {}
    segments: dict[int, int] = {}
    for name, pid in {**others, **workers}.items():
        try:
            numbers, shared = _process(pid)
        except (FileNotFoundError, ProcessLookupError):
            continue
        found |= {f"{name} {what}": number for what, number in numbers.items()}
        segments |= shared
    tables = {key: float(status[key]) for key in (*TABLES, "paused")}
    tables["unconsumed"] = float(status["counters"]["unconsumed"])
    return {
        **found,
        **tables,
        RINGS_USED: used_bytes(status) / MIB,
        MEMFDS: len(segments),
        MEMFD_MIB: sum(segments.values()) / MIB,
        SHARED: sum(entry.stat().st_blocks * 512 for entry in os.scandir("/dev/shm")) / MIB,
        TRACE: sum(_size(trace.with_name(trace.name + suffix)) for suffix in ("", "-wal")) / MIB,
    }


def _process(pid: int) -> tuple[Sample, dict[int, int]]:
    """Its numbers, and the bytes of each segment of anonymous shared memory that it holds, by inode."""
    rollup = _kib(Path(f"/proc/{pid}/smaps_rollup").read_text())
    threads = len(os.listdir(f"/proc/{pid}/task"))
    descriptors = os.listdir(f"/proc/{pid}/fd")
    segments: dict[int, int] = {}
    for number in descriptors:
        path = f"/proc/{pid}/fd/{number}"
        try:
            if os.readlink(path).startswith("/memfd:"):
                held = os.stat(path)
                segments[held.st_ino] = held.st_blocks * 512
        except FileNotFoundError:  # closed meanwhile
            continue
    own, rss = rollup["Anonymous"] / 1024, rollup["Rss"] / 1024
    return {OWN: own, RSS: rss, FILES: len(descriptors), THREADS: threads}, segments


def _kib(rollup: str) -> dict[str, int]:
    fields = (line.split() for line in rollup.splitlines()[1:])
    return {name.rstrip(":"): int(kib) for name, kib, _ in fields}


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
