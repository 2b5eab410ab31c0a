"""The free parts of a ring: where the next record goes.

Next-fit: the search goes on where the last record ended, so it seldom meets the same small holes again. It turns back
to the lowest hole as early as what is in use allows: memory that is written again soon is still in the cache.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import chain

_HOLES_A_TURN = 8


class Holes:
    """`nbytes` of free memory, from offset 0. `free` is what is left; neighbouring holes are always one."""

    def __init__(self, nbytes: int) -> None:
        self.free = nbytes
        self._nbytes = nbytes
        self._starts: list[int] = [0] if nbytes else []  # sorted
        self._sizes: dict[int, int] = {0: nbytes} if nbytes else {}
        self._cursor = 0
        self._since_turn = 0

    def take(self, nbytes: int) -> int | None:
        """The offset of `nbytes` in one piece; None: no hole is large enough."""
        if nbytes > self.free:
            return None
        self._turn_back()
        first = bisect_left(self._starts, self._cursor)
        for index in chain(range(first, len(self._starts)), range(first)):
            start = self._starts[index]
            if self._sizes[start] >= nbytes:
                self._cut(index, nbytes)
                self._cursor = start + nbytes
                return start
        return None

    def give(self, start: int, nbytes: int) -> None:
        """Takes back what `take` gave, and joins it with its free neighbours."""
        self.free += nbytes
        index = bisect_left(self._starts, start)
        if index < len(self._starts) and self._starts[index] == start + nbytes:
            nbytes += self._sizes.pop(self._starts.pop(index))
        if index and self._starts[index - 1] + self._sizes[self._starts[index - 1]] == start:
            self._sizes[self._starts[index - 1]] += nbytes
            return
        self._starts.insert(index, start)
        self._sizes[start] = nbytes

    def _turn_back(self) -> None:
        """Where less is in use than lies below the cursor, there is a hole below it. Not every time: the lowest holes
        may all be too small, and would be looked at again and again."""
        self._since_turn += 1
        if self._cursor > self._nbytes - self.free and self._since_turn * _HOLES_A_TURN > len(self._starts):
            self._cursor = self._since_turn = 0

    def _cut(self, index: int, nbytes: int) -> None:
        start = self._starts[index]
        left = self._sizes.pop(start) - nbytes
        self.free -= nbytes
        if left:
            self._starts[index] = start + nbytes
            self._sizes[start + nbytes] = left
        else:
            del self._starts[index]
