"""Timers of requests: when they are due, in order. Pure: time comes in as seconds.

A request that has ended takes its timers with it: the deadline of a day must not outlive a request of a second (B3).
"""

from __future__ import annotations

import heapq
from collections.abc import Collection
from typing import NamedTuple

SLACK = 64
"""Cancelled entries that the heap may hold besides as many as there are live ones."""


class Timer(NamedTuple):
    """`attempt` is the one during which it was set."""

    request_id: str
    kind: str
    attempt: int


class Timers:
    """`len` counts those that are set."""

    def __init__(self) -> None:
        self._count = 0
        self._heap: list[tuple[float, int]] = []  # when, and a number; a cancelled number stays until it comes up
        self._set: dict[int, Timer] = {}
        self._of: dict[str, list[int]] = {}  # request id -> numbers

    def __len__(self) -> int:
        return len(self._set)

    def add(self, at: float, request_id: str, kind: str, attempt: int) -> None:
        self._count += 1
        self._set[self._count] = Timer(request_id, kind, attempt)
        self._of.setdefault(request_id, []).append(self._count)
        heapq.heappush(self._heap, (at, self._count))

    def cancel(self, request_id: str) -> None:
        """All that the request has; none is no error."""
        for number in self._of.pop(request_id, ()):
            self._set.pop(number, None)
        if len(self._heap) > 2 * len(self._set) + SLACK:
            self._heap = [entry for entry in self._heap if entry[1] in self._set]
            heapq.heapify(self._heap)

    def postpone(self, kinds: Collection[str], by_s: float) -> None:
        """Those of these kinds are due so much later."""
        self._heap = [
            (at + by_s if number in self._set and self._set[number].kind in kinds else at, number)
            for at, number in self._heap
        ]
        heapq.heapify(self._heap)

    def next(self) -> float | None:
        """When the next one is due."""
        while self._heap and self._heap[0][1] not in self._set:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def due(self, now: float) -> list[Timer]:
        """All that are due, earliest first; each once."""
        fired = []
        while (at := self.next()) is not None and at <= now:
            _, number = heapq.heappop(self._heap)
            fired.append(self._set.pop(number))
        return fired
