"""The memory of rings, given to an engine that pins it, and taken back before it goes (W3).

All in the engine thread. A mapping lives as long as anything refers to it, so it cannot go before its `Unmapping` has
been obeyed.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass

from omnizmq.workers.engine import Engine, EngineBrokenError, RingMemory

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Mapped:
    """A ring is there: this worker's own, which is writable, or one that it reads."""

    memory: memoryview


@dataclass(frozen=True, slots=True)
class Unmapping:
    """It is given up: the same object as before."""

    memory: memoryview


class Mappings:
    """Those that the engine has pinned. One that cannot be pinned is of use all the same, only slower."""

    def __init__(self, engine: Engine) -> None:
        self._engine: RingMemory | None = getattr(engine, "ring_memory", None)
        self._pinned: dict[int, memoryview] = {}

    def obey(self, change: Mapped | Unmapping) -> None:
        """Raises `EngineBrokenError`."""
        if isinstance(change, Mapped):
            self._pin(change.memory)
        else:
            self._unpin(change.memory)

    def close(self) -> None:
        """Before the engine is closed, broken or not."""
        with suppress(EngineBrokenError):
            for memory in list(self._pinned.values()):
                self._unpin(memory)

    def _pin(self, memory: memoryview) -> None:
        if self._engine is None:
            return
        try:
            self._engine.pin(memory)
        except EngineBrokenError:
            raise
        except Exception:
            log.exception("a ring of %d bytes was not pinned: copies to and from it are slower", memory.nbytes)
            return
        self._pinned[id(memory)] = memory

    def _unpin(self, memory: memoryview) -> None:
        if self._engine is None or self._pinned.pop(id(memory), None) is None:
            return
        try:
            self._engine.unpin(memory)
        except EngineBrokenError:
            raise
        except Exception:
            log.exception("a ring of %d bytes was not unpinned", memory.nbytes)
