"""Counts that outlive the process that made them, however it ends: a file in memory for each, which the driver reads.

Every count has one writing thread. Corruption is written as text, one line a finding.
"""

from __future__ import annotations

import mmap
import os
import time
from collections import Counter
from pathlib import Path

import numpy as np

COUNTS = ("arrived", "released", "released_elsewhere")
_FOUND = "corrupt.txt"


class Tally:
    """Of one engine."""

    def __init__(self, folder: Path, stage: str) -> None:
        self._folder = folder
        path = folder / f"{stage}-{os.getpid()}-{time.monotonic_ns()}.tally"
        path.write_bytes(bytes(8 * len(COUNTS)))
        with open(path, "r+b") as file:
            self._counts = np.frombuffer(mmap.mmap(file.fileno(), 0), np.uint64)

    def add(self, count: str) -> None:
        self._counts[COUNTS.index(count)] += 1

    def corrupt(self, text: str) -> None:
        with open(self._folder / _FOUND, "a") as file:
            file.write(text + "\n")


def total(folder: Path) -> Counter[str]:
    """Of all engines that have ever counted there."""
    counts: Counter[str] = Counter()
    for path in folder.glob("*.tally"):
        found = np.frombuffer(path.read_bytes(), np.uint64)
        if len(found) == len(COUNTS):
            counts.update(dict(zip(COUNTS, map(int, found), strict=True)))
    return counts


def corruptions(folder: Path) -> list[str]:
    path = folder / _FOUND
    return path.read_text().splitlines() if path.exists() else []
