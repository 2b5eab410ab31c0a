"""Timers of requests: when they are due, in order. Pure: time comes in as seconds."""

from __future__ import annotations

import heapq


class Timers:
    """A timer of a request that has ended meanwhile still fires; whoever asks finds no such request."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, str, str]] = []
        self._count = 0

    def add(self, at: float, request_id: str, kind: str) -> None:
        self._count += 1
        heapq.heappush(self._heap, (at, self._count, request_id, kind))

    def next(self) -> float | None:
        return self._heap[0][0] if self._heap else None

    def due(self, now: float) -> list[tuple[str, str]]:
        """Request id and kind of all that are due, earliest first; each once."""
        fired = []
        while self._heap and self._heap[0][0] <= now:
            _, _, request_id, kind = heapq.heappop(self._heap)
            fired.append((request_id, kind))
        return fired
