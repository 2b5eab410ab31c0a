"""What the engine thread does: feed, step, report. It runs an engine without threads or sockets of its own.

A request's input waits here until its engine can use it: a chunk is handed over only while the engine has nothing else
to do for that request, and its credit is due then. So an engine that is busy with a request holds one chunk of it; one
that waits for something else (time, a thread of its own) takes all that comes.

An engine is other people's code, and may raise anything from anywhere: that fails the request it was called for, or all
that were in the step (F1). Nothing leaves this module as an exception but `EngineBrokenError`, which is about all of
them. It may also never return, from whichever method: `state` says `stepping` while it has the thread (F2).

A probed request is answered for in the first round in which the engine has nothing to do for it (R4).
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import assert_never

from omnizmq.errors import StageError
from omnizmq.workers.engine import Chunk, Engine, EngineBrokenError, EngineRequest, StageOutput
from omnizmq.workers.failures import failure_of
from omnizmq.workers.messages import (
    AbortEngine,
    AddToEngine,
    EndEngineInput,
    EngineAborted,
    EngineCommand,
    EngineEvent,
    EngineFailed,
    EngineIdle,
    EngineMade,
    EngineRan,
    EngineTook,
    FeedEngine,
    HoldEngine,
    ProbeEngine,
    RunEngine,
)

log = logging.getLogger(__name__)


@dataclass
class _Held:
    """A request in the engine: what it has not been fed yet (`None`: the end of an edge), and when it was last added,
    let run, fed or in a step."""

    active_ns: int
    runs: bool = False
    ran: bool = False
    probed: bool = False
    fed: int = 0  # of all that was in the inbox
    inbox: deque[tuple[str, Chunk | None]] = field(default_factory=deque)


class EngineRunner:
    """Call `obey` for each command, then `round` until it returns None. `clock_ns` is CLOCK_MONOTONIC."""

    def __init__(self, engine: Engine, clock_ns: Callable[[], int]) -> None:
        self._state: tuple[str, int] = ("idle", clock_ns())
        self._engine = engine
        self._busy_with = getattr(engine, "busy_with", None)
        self._inside = getattr(engine, "at_work_on", self._busy_with)
        self._clock_ns = clock_ns
        self._called_for: Collection[str] = ()  # while the engine is in a method: for which requests
        self._requests: dict[str, _Held] = {}

    @property
    def state(self) -> tuple[str, int]:
        """`stepping`, `idle`, or `computing` (not in a step, and at work in threads of its own), and since when. Read
        from any thread."""
        state, since_ns = self._state
        if state == "idle" and any(map(self._is_inside, list(self._requests))):
            return "computing", since_ns
        return state, since_ns

    @property
    def at_work_on(self) -> frozenset[str]:
        """The requests for which the engine is in a step, or in another of its methods; else those that it says are
        queued or computed inside. Read from any thread."""
        if self._state[0] == "stepping":
            return frozenset(self._called_for)
        return frozenset(filter(self._is_inside, list(self._requests)))

    def obey(self, command: EngineCommand) -> list[EngineEvent]:
        if isinstance(command, AddToEngine):
            self._called_for = (command.request.request_id,)
            self._enter()
            return self._leave(self._add(command.request))
        held = self._requests.get(command.engine_id)
        if isinstance(command, AbortEngine):
            self._called_for = (command.engine_id,)
            self._enter()
            return self._leave([self._abort(command.engine_id)])
        if held is None:
            return []
        match command:
            case FeedEngine():
                held.inbox.append((command.source, command.chunk))
            case EndEngineInput():
                held.inbox.append((command.source, None))
            case RunEngine():
                held.runs = True
                held.active_ns = self._clock_ns()
            case HoldEngine():
                held.runs = held.probed = False
            case ProbeEngine():
                held.probed = True
            case _:
                assert_never(command)
        return []

    def round(self) -> list[EngineEvent] | None:
        """Feed what the engine can use, then one step over all requests that have work. None: there was nothing.

        That a request goes into its first step is said before, in a round of its own: a step may never end."""
        events: list[EngineEvent] = []
        running = [engine_id for engine_id, held in self._requests.items() if held.runs]
        if not running:
            return None
        self._enter()
        ready = [engine_id for engine_id in running if self._feed(engine_id, events)]
        begun = [EngineRan(engine_id, self._clock_ns()) for engine_id in self._at_work(running, ready)]
        if ready and not begun:
            return events + self._step(ready)
        events += begun
        return self._leave(events) or None

    def _at_work(self, running: Sequence[str], ready: Collection[str]) -> list[str]:
        """Of those that run, which the engine begins with: they go into their first step, or it is at work on them."""
        begun = []
        for engine_id in running:
            held = self._requests.get(engine_id)
            if held is not None and not held.ran and (engine_id in ready or self._is_inside(engine_id)):
                held.ran = True
                begun.append(engine_id)
        return begun

    def _enter(self) -> None:
        self._state = ("stepping", self._clock_ns())

    def _leave(self, events: list[EngineEvent]) -> list[EngineEvent]:
        self._state = ("idle", self._clock_ns())
        return events

    def _add(self, request: EngineRequest) -> list[EngineEvent]:
        self._requests[request.request_id] = _Held(self._clock_ns())
        try:
            self._engine.add(request)
        except BaseException as error:  # noqa: BLE001 (F1: an engine's exception is one request's)
            return [self._failed(request.request_id, error)]
        return []

    def _abort(self, engine_id: str) -> EngineAborted:
        """Confirmed whatever the engine does: nobody waits for ever for an abort (A6)."""
        self._requests.pop(engine_id, None)
        try:
            return EngineAborted(engine_id, _outputs(self._engine.abort(engine_id)))
        except EngineBrokenError:
            raise
        except BaseException:
            log.exception("the engine failed to abort %s", engine_id)
            return EngineAborted(engine_id, [])

    def _feed(self, engine_id: str, events: list[EngineEvent]) -> bool:
        """Whether the engine has work for this request, which gets what input it can use."""
        self._called_for = (engine_id,)
        held = self._requests[engine_id]
        took: Counter[str] = Counter()
        failed = None
        has_work = idle = False
        try:
            while not (has_work := self._engine.has_work(engine_id)) and held.inbox:
                source, chunk = held.inbox.popleft()
                held.fed += 1
                held.active_ns = self._clock_ns()
                if chunk is None:
                    self._engine.end_of_input(engine_id, source)
                else:
                    self._engine.feed(engine_id, source, chunk)
                    took[source] += 1
            idle = held.probed and not has_work and not self._is_busy(engine_id)
        except BaseException as error:  # noqa: BLE001 (F1: an engine's exception is one request's)
            failed = self._failed(engine_id, error)
        events += [EngineTook(engine_id, source, chunks) for source, chunks in took.items()]
        if failed is not None:
            events.append(failed)
        elif idle:
            held.probed = False
            events.append(EngineIdle(engine_id, held.active_ns, held.fed))
        return has_work

    def _is_busy(self, engine_id: str) -> bool:
        return self._busy_with is not None and bool(self._busy_with(engine_id))

    def _is_inside(self, engine_id: str) -> bool:
        """To look at, from any thread: nobody waits for it, so it fails no request."""
        try:
            return self._inside is not None and bool(self._inside(engine_id))
        except BaseException:  # noqa: BLE001 (F1: an engine may raise anything)
            return False

    def _step(self, ready: list[str]) -> list[EngineEvent]:
        events: list[EngineEvent] = []
        stepped = [self._requests[engine_id] for engine_id in ready]
        self._called_for = ready
        self._enter()
        try:
            outputs = _outputs(self._engine.step(ready))
        except BaseException as error:  # noqa: BLE001 (F1: a step that raises fails the requests that were in it)
            return [self._failed(engine_id, error) for engine_id in ready]
        finally:
            self._state = ("idle", self._clock_ns())
        now_ns = self._clock_ns()
        for held in stepped:
            held.active_ns = now_ns
        for output in outputs:
            if output.finish_reason is not None or output.error is not None:
                self._requests.pop(output.request_id, None)
            events.append(EngineMade(output, now_ns))
        return events

    def _failed(self, engine_id: str, error: BaseException) -> EngineFailed:
        """Raises the error itself when it is no request's."""
        if isinstance(error, EngineBrokenError):
            raise error
        self._requests.pop(engine_id, None)
        return EngineFailed(engine_id, failure_of(error, engine_id))


def _outputs(made: object) -> list[StageOutput]:
    """What an engine returned, which must be outputs of requests."""
    if not isinstance(made, list) or not all(isinstance(output, StageOutput) for output in made):
        raise StageError(f"the engine returned a {type(made).__name__}: a list of StageOutput was expected")
    if not all(isinstance(output.request_id, str) for output in made):
        raise StageError("the engine returned an output without the id of a request")
    return made
