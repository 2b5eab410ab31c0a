"""Views of shared memory that say when they have died (B4).

The lease is the array's base: it dies with the last array, tensor or memoryview that was derived from it, in whichever
thread that happens, or in a garbage collection in the middle of anything. So no lock is taken here: only single
operations of a deque, which are atomic.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

_log = logging.getLogger(__name__)


class Ended:
    """The numbers of the leases that have ended, until one thread, always the same, takes them.

    `notify` is called by whoever puts the first one after a `take`, and not again before the next.
    """

    def __init__(self, notify: Callable[[], None]) -> None:
        self._notify = notify
        self._seqs: deque[int] = deque()
        self._bell = deque([True])  # whoever gets it out rings

    def put(self, seq: int) -> None:
        self._seqs.append(seq)
        try:
            self._bell.pop()
        except IndexError:
            return
        try:
            self._notify()
        except Exception:  # noqa: BLE001 (nobody could catch it: this runs in the middle of anything)
            _log.debug("nobody was told of a lease that has ended", exc_info=True)

    def take(self, *, rearm: bool) -> list[int]:
        """What has ended. With `rearm`, the next one that ends is told of again."""
        if rearm and not self._bell:
            self._bell.append(True)  # before looking: what ends meanwhile is told of once too often, never not at all
        taken = []
        while self._seqs:
            taken.append(self._seqs.popleft())
        return taken

    def mute(self) -> None:
        """Nobody is to be told any more."""
        self._notify = _nobody


def _nobody() -> None:
    pass


class _Lease:
    """The base of a view. `_keep` is what the view's memory belongs to."""

    __slots__ = ("__array_interface__", "_ended", "_keep", "_seq")

    def __init__(self, payload: NDArray[np.uint8], seq: int, ended: Ended) -> None:
        self.__array_interface__: dict[str, Any] = payload.__array_interface__
        self._keep = payload
        self._seq = seq
        self._ended = ended

    def __del__(self) -> None:
        self._ended.put(self._seq)


def leased(payload: NDArray[np.uint8], seq: int, ended: Ended) -> NDArray[np.uint8]:
    """The same memory; when the last array derived from the returned one is gone, `seq` is put to `ended`."""
    return np.asarray(_Lease(payload, seq, ended))
