"""Who may have one of a worker's places when there are fewer than requests (B1, B2). Pure.

The highest priority first. Waiting raises it, by one for each `age_s`, so that nothing starves; equals go in the order
in which they began to wait. All that wait age alike, so their order never changes and is known when they arrive.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class RunSlots(Generic[Key]):
    """`ask`, then `grant` when all have asked who may; `leave` gives up a slot, or the place in the line."""

    def __init__(self, count: int, age_s: float) -> None:
        self.count = count
        self._age_ns = round(age_s * 1e9)
        self._asked = 0
        self._line: list[tuple[int, int]] = []  # rank and number, the best last
        self._by_number: dict[int, Key] = {}
        self._places: dict[Key, tuple[int, int]] = {}
        self._holders: set[Key] = set()

    @property
    def contended(self) -> bool:
        """Somebody waits."""
        return bool(self._line)

    @property
    def held(self) -> int:
        return len(self._holders)

    @property
    def waiting(self) -> int:
        return len(self._line)

    def ask(self, key: Key, priority: int, now_ns: int) -> None:
        """Again: nothing changes."""
        if key in self._holders or key in self._places:
            return
        self._asked += 1
        place = (priority * self._age_ns - now_ns, -self._asked)
        insort(self._line, place)
        self._places[key] = place
        self._by_number[place[1]] = key

    def leave(self, key: Key) -> None:
        self._holders.discard(key)
        place = self._places.pop(key, None)
        if place is not None:
            del self._line[bisect_left(self._line, place)]
            del self._by_number[place[1]]

    def grant(self) -> list[Key]:
        """Those who have a slot from now on, the best first."""
        granted = []
        while self._line and len(self._holders) < self.count:
            key = self._by_number.pop(self._line.pop()[1])
            del self._places[key]
            self._holders.add(key)
            granted.append(key)
        return granted
