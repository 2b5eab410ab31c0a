"""The engine thread: loads the engine, then runs it. Everything it has to say goes through one callback.

It sleeps on its queue while there is nothing to do, so nothing spins; a command or the engine's `wake` ends the sleep.
It also waits when what it said `AHEAD` turns ago has not been heard yet: what an engine has made and no gate has seen
is bounded (B1), and a busy engine lets the socket thread have the interpreter.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue

from omnizmq.errors import LaunchError, OmnizmqError
from omnizmq.workers.engine import Engine, EngineBrokenError
from omnizmq.workers.mappings import Mapped, Mappings, Unmapping
from omnizmq.workers.messages import EngineCommand, EngineEvent
from omnizmq.workers.runner import EngineRunner

log = logging.getLogger(__name__)

AHEAD = 2
"""Turns. One that is heard while the next one runs, so that neither thread waits for the other in the ordinary case."""


class _Wake:
    """Something may have changed: look."""


class _Stop:
    """Close the engine and end the thread."""


_Command = EngineCommand | Mapped | Unmapping | _Wake | _Stop


class EngineThread:
    """`loaded(None)` or `loaded(error)` is called once, `said` for every batch of events, `broke` when the engine can
    do nothing any more, as the last thing; all in this thread. Whoever has handled a batch calls `heard`."""

    def __init__(
        self,
        load: Callable[[Callable[[], None]], Engine],
        *,
        loaded: Callable[[Exception | None], None],
        said: Callable[[list[EngineEvent]], None],
        broke: Callable[[EngineBrokenError], None],
    ) -> None:
        self._load = load
        self._loaded = loaded
        self._said = said
        self._broke = broke
        self._queue: SimpleQueue[_Command] = SimpleQueue()
        self._woken = threading.Event()
        self._ahead = threading.Semaphore(AHEAD)
        self._runner: EngineRunner | None = None
        self._started_ns = time.monotonic_ns()
        self._thread = threading.Thread(target=self._main, name="engine", daemon=True)

    @property
    def state(self) -> tuple[str, int]:
        """`loading`, `idle`, `stepping` or `computing`, and since when (CLOCK_MONOTONIC ns). Read from any thread."""
        return ("loading", self._started_ns) if self._runner is None else self._runner.state

    @property
    def at_work_on(self) -> frozenset[str]:
        """The requests that the engine has to do with now. Read from any thread."""
        return frozenset() if self._runner is None else self._runner.at_work_on

    def start(self) -> None:
        self._thread.start()

    def put(self, command: EngineCommand | Mapped | Unmapping) -> None:
        self._queue.put(command)

    def wake(self) -> None:
        if not self._woken.is_set():
            self._woken.set()
            self._queue.put(_Wake())

    def heard(self) -> None:
        """A batch of events has been handled. Call it from any thread."""
        self._ahead.release()

    def stop(self, timeout_s: float) -> bool:
        """Whether the engine was closed within that time."""
        self._queue.put(_Stop())
        self.heard()  # it must not wait for who does not listen any more
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _main(self) -> None:
        try:
            engine = self._load(self.wake)
        except BaseException as error:
            asked = "asked to exit" if isinstance(error, SystemExit) else f"raised {type(error).__name__}"
            failure = error if isinstance(error, Exception) else LaunchError(f"the engine {asked}: {error}")
            expected = isinstance(failure, OmnizmqError)  # its message says all
            log.error("the engine did not load: %s", failure, exc_info=not expected)
            self._loaded(failure)
            return
        self._runner = EngineRunner(engine, time.monotonic_ns)
        mappings = Mappings(engine)
        try:
            self._loaded(None)
            self._run(self._runner, mappings)
        except EngineBrokenError as error:
            log.exception("the engine is broken")
            self._broke(error)
        finally:
            self._close(engine, mappings)

    def _close(self, engine: Engine, mappings: Mappings) -> None:
        try:
            mappings.close()
            engine.close()
        except Exception:
            log.exception("the engine did not close")

    def _run(self, runner: EngineRunner, mappings: Mappings) -> None:
        idle: bool | None = True
        while idle is not None:
            idle = self._turn(runner, mappings, wait=idle)

    def _turn(self, runner: EngineRunner, mappings: Mappings, *, wait: bool) -> bool | None:
        """Whether the engine has nothing to do now; None: stop. What a turn has held does not outlive it: while this
        thread sleeps, no chunk is kept from being released."""
        events: list[EngineEvent] = []
        for command in self._commands(wait=wait):
            if isinstance(command, _Stop):
                return None
            if isinstance(command, Mapped | Unmapping):
                mappings.obey(command)
            elif not isinstance(command, _Wake):
                events += runner.obey(command)
        made = runner.round()
        events += made or ()
        if events:
            self._ahead.acquire()
            self._said(events)
        return made is None

    def _commands(self, *, wait: bool) -> list[_Command]:
        """All that is queued; at least one where `wait`."""
        commands = [self._queue.get()] if wait else []
        with suppress(Empty):
            while True:
                commands.append(self._queue.get_nowait())
        # After the last `_Wake` was taken and before the engine is looked at: a wake from here on is put again, and
        # what an earlier one stood for is seen now.
        self._woken.clear()
        return commands
