"""Requests that wait for replicas, in the order in which they may go (B1, B2). Pure.

Higher priority goes first. Waiting raises it, for all at the same pace, so the order of two requests never changes and
nothing starves: a later request overtakes an earlier one only by as much as its priority is higher.

Requests that need the same places stand in one line: when its first finds no room, nobody in it does.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterator
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from omnizmq.router.pools import Binding


class Line(NamedTuple):
    """Who needs the same places: the stages, the affinity key where it decides the replica, and the bindings that are
    not wanted."""

    stages: tuple[str, ...]
    affinity: str | None = None
    shunned: frozenset[Binding] = frozenset()


class Waiting(NamedTuple):
    """One request in its line; the lowest goes first."""

    rank: float
    number: int
    request_id: str
    since: float


class Queue:
    """`age_s`: waiting so long counts as much as one more of priority."""

    def __init__(self, age_s: float) -> None:
        self._age_s = age_s
        self._count = 0
        self._lines: dict[Line, list[Waiting]] = {}
        self._line_of: dict[str, tuple[Line, Waiting]] = {}

    def __len__(self) -> int:
        return len(self._line_of)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._line_of

    @property
    def lines(self) -> Collection[Line]:
        """Those in which somebody waits."""
        return self._lines.keys()

    def add(self, request_id: str, line: Line, *, priority: int, arrived: float, since: float) -> None:
        """`arrived`: when the request came; `since`: when it began to wait, which may be later (F2)."""
        self._count += 1
        waiting = Waiting(arrived / self._age_s - priority, self._count, request_id, since)
        insort(self._lines.setdefault(line, []), waiting)
        self._line_of[request_id] = line, waiting

    def ahead(self, request_id: str) -> int:
        """How many wait before it for the same places."""
        line, waiting = self._line_of[request_id]
        return bisect_left(self._lines[line], waiting)

    def since(self, request_id: str) -> float:
        """When it began to wait."""
        return self._line_of[request_id][1].since

    def remove(self, request_id: str) -> None:
        """One that does not wait is no error."""
        line, waiting = self._line_of.pop(request_id, (None, None))
        if line is None or waiting is None:
            return
        entries = self._lines[line]
        del entries[bisect_left(entries, waiting)]
        if not entries:
            del self._lines[line]

    def heads(self) -> Iterator[tuple[Line, Waiting]]:
        """Who goes first, the best of all lines; when that one has been removed meanwhile, the next of its line comes
        in its turn, else nobody else of it does."""
        heap = [(entries[0], number, line) for number, (line, entries) in enumerate(self._lines.items())]
        heapify(heap)
        while heap:
            waiting, number, line = heappop(heap)
            yield line, waiting
            entries = self._lines.get(line)
            if entries and entries[0] != waiting:
                heappush(heap, (entries[0], number, line))
