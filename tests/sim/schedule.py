"""Virtual time: what happens next, and the chance that decides about it.

`Schedule` runs calls at their moments, those of one moment in the order in which they were asked for. `chance` is a
number for a name: it depends on nothing but the seed and that name, so what is left out of a story changes nothing for
the rest.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any
from zlib import crc32

START = 1000.0
_MASK = 0xFFFFFFFF


def chance(seed: int, name: str) -> int:
    """32 bits."""
    mixed = crc32(name.encode(), seed & _MASK)
    mixed = (mixed ^ (mixed >> 16)) * 0x45D9F3B & _MASK
    mixed = (mixed ^ (mixed >> 16)) * 0x45D9F3B & _MASK
    return mixed ^ (mixed >> 16)


def share(seed: int, name: str) -> float:
    """From 0 to 1."""
    return chance(seed, name) / (_MASK + 1)


class Schedule:
    """Seconds, from `START`."""

    def __init__(self) -> None:
        self.now = START
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0

    def at(self, when: float, call: Callable[..., None], *args: Any) -> None:
        """Not before now."""
        self._count += 1
        heapq.heappush(self._heap, (max(when, self.now), self._count, call, args))

    def after(self, delay: float, call: Callable[..., None], *args: Any) -> None:
        self.at(self.now + delay, call, *args)

    def step(self) -> None:
        """The next thing that happens. There is always one: clocks tick on."""
        self.now, _, call, args = heapq.heappop(self._heap)
        call(*args)
