"""A clock for engines that wait for time: it calls back, from a thread of its own, so that nothing spins.

Knows nothing of engines.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Alarm:
    """Calls back once, at the earliest time that was set; who waits for a later one sets it again then."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self._changed = threading.Condition()
        self._next: float | None = None
        self._closed = False
        self._thread: threading.Thread | None = None

    def set(self, at: float) -> None:
        """Call back at this time of `time.monotonic`, or earlier where that was set before."""
        with self._changed:
            if self._next is not None and self._next <= at:
                return
            self._next = at
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="synthetic-alarm", daemon=True)
                self._thread.start()
            self._changed.notify()

    def close(self) -> None:
        """End the thread. Not from the callback."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while self._wait():
            self._call()

    def _wait(self) -> bool:
        """Until the time that is set has come. False: closed."""
        with self._changed:
            while not self._closed:
                left = None if self._next is None else self._next - time.monotonic()
                if left is not None and left <= 0:
                    self._next = None
                    return True
                self._changed.wait(left)
            return False
