"""Which waiting request computes its prompt next, and in which of the server's slots. Pure.

The server gives every batch to the lowest slot that has prompt left; a prompt in a higher one stands still meanwhile,
and cannot be stopped, because nothing calls back. So prompts are computed one at a time in the order of their arrival,
with one exception: beside a long prompt, a short one may run in a lower slot, or it would wait for many seconds.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class Slots(Generic[Key]):
    """`wait`, then `next` until it returns None; `prefilled` when a prompt is computed; `leave` when a slot is free."""

    def __init__(self, count: int) -> None:
        self._free = list(range(count))
        self._waiting: dict[Key, bool] = {}  # whether its prompt is long
        self._prefilling: dict[Key, bool] = {}
        self._slots: dict[Key, int] = {}

    @property
    def free(self) -> int:
        return len(self._free)

    def wait(self, key: Key, *, long: bool) -> None:
        self._waiting[key] = long

    def begins(self, key: Key) -> bool:
        """It waits for a slot, or its prompt is being computed."""
        return key in self._waiting or key in self._prefilling

    def forget(self, key: Key) -> None:
        """Takes it out if it still waits; one that has a slot leaves by `leave`."""
        self._waiting.pop(key, None)

    def next(self) -> tuple[Key, int] | None:
        """A request that may begin now, and its slot."""
        for key, long in self._waiting.items():
            slot = self._slot_for(long)
            if slot is not None:
                del self._waiting[key]
                self._free.remove(slot)
                self._prefilling[key] = long
                self._slots[key] = slot
                return key, slot
        return None

    def prefilled(self, key: Key) -> None:
        self._prefilling.pop(key, None)

    def leave(self, key: Key) -> None:
        self._prefilling.pop(key, None)
        self._free.append(self._slots.pop(key))

    def _slot_for(self, long: bool) -> int | None:
        """Of the slots that would do, the one that was left last: it may hold the start of this conversation."""
        if not self._prefilling:
            usable = [max(self._free)] if long and self._free else self._free
        elif long or not all(self._prefilling.values()):
            usable = []
        else:
            ceiling = min(self._slots[key] for key in self._prefilling)
            usable = [slot for slot in self._free if slot < ceiling]
        return usable[-1] if usable else None
