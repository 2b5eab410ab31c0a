"""Which of a worker's requests its engine may compute: those that can, as far as there are slots (R1, B1, B2). Pure.

A request that is parked, paused, ended or aborted gives its slot up. One that has nothing to do until more input comes
does so when others wait; else requests that hold slots and wait for chunks could lock those whose chunks they are, in a
graph that forks. Only the engine knows which those are: it is asked while somebody waits, and answers `EngineIdle`.
"""

from __future__ import annotations

from collections.abc import Callable

from omnizmq.workers.messages import EngineIdle, HoldEngine, ProbeEngine, RunEngine
from omnizmq.workers.slots import RunSlots
from omnizmq.workers.work import Work

Key = tuple[str, int]


class Running:
    """Of one worker incarnation. `order` takes what is to be done, in this order."""

    def __init__(
        self, slots: int, priority_age_s: float, order: Callable[[RunEngine | HoldEngine | ProbeEngine], None]
    ) -> None:
        self._slots: RunSlots[Key] = RunSlots(slots, priority_age_s)
        self._order = order
        self._works: dict[Key, Work] = {}  # who holds a slot or waits for one
        self._unasked: dict[Key, None] = {}  # holders whose engine was not asked whether they are idle

    @property
    def slots(self) -> int:
        return self._slots.count

    @property
    def holding(self) -> int:
        """Requests that have a slot."""
        return self._slots.held

    @property
    def waiting(self) -> int:
        """Requests that wait for one."""
        return self._slots.waiting

    def look(self, work: Work, now_ns: int) -> None:
        """It may be able to run now, or no longer."""
        if work.may_run == work.running:
            if not work.running:
                self.leave(work)
        elif work.may_run:
            self._works[work.key] = work
            self._slots.ask(work.key, work.submit.priority, now_ns)
        else:
            self.leave(work)
            self._order(HoldEngine(work.engine_id))

    def leave(self, work: Work) -> None:
        """It needs no slot any more, and the engine will hear of it otherwise."""
        if self._works.pop(work.key, None) is not None:
            work.running = False
            self._slots.leave(work.key)
            self._unasked.pop(work.key, None)

    def grant(self, now_ns: int) -> None:
        """Let those run whose turn it is. Call it when all has been looked at."""
        if not self._slots.contended:
            return
        for key in self._slots.grant():
            work = self._works[key]
            work.running = True
            work.moved_ns = now_ns
            self._unasked[key] = None
            self._order(RunEngine(work.engine_id))
        if self._slots.contended:
            self._ask()

    def idle(self, work: Work, event: EngineIdle, now_ns: int) -> None:
        """The engine had nothing to do for it, if what it was fed since changed nothing."""
        if not work.running:
            return
        if event.fed == work.fed and work.awaits_input and self._slots.contended:
            work.idle = True
            self.look(work, now_ns)
        else:
            self._unasked[work.key] = None

    def tick(self, works: list[Work], now_ns: int) -> None:
        """An engine that woke up by itself is at work again: whoever gave up a slot tries again, and is asked again."""
        for work in works:
            if work.idle:
                work.idle = False
                self.look(work, now_ns)
            if work.running:
                self._unasked[work.key] = None

    def _ask(self) -> None:
        """Each that may be idle is asked once for every time that it got its slot."""
        for key in self._unasked:
            if self._works[key].awaits_input:
                self._order(ProbeEngine(self._works[key].engine_id))
        self._unasked.clear()
