"""The stress engine: any stage of the stress, with every chunk verified on arrival and again when its views are let go.

A chunk's views outlive the call that brought them: for a random number of further chunks, or (a `greedy` request)
until the request has ended here. Then they go in random order, half of them in another thread. With its last request
an engine lets everything go, so an idle deployment holds nothing.

Corruption fails a request with `stage_error` and a message that begins with `CORRUPT`, and is written down besides,
since a view may be found corrupt when its request has ended. For the negative control see `support.stress_control`.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from random import Random

from omnizmq.errors import StageError
from omnizmq.workers.engine import Chunk, EngineContext, EngineRequest, StageOutput
from support import stress_control
from support.stress_content import (
    MIDDLES,
    SOURCE,
    Arrays,
    Plan,
    arrays_of,
    difference,
    greedy,
    laid_out,
    maker,
)
from support.stress_tally import Tally

CORRUPT = "CORRUPT"
PLANNED = "planned failure"
HELD_FEEDS = 40
HELD_BYTES = 24 << 20


def create(context: EngineContext) -> StressEngine:
    """The entry point. Options: `seed`, and `tally`, the folder of the counts."""
    stress_control.arm()
    return StressEngine(context)


@dataclass(slots=True)
class _Request:
    external_id: str
    plan: Plan
    open_sources: set[str]
    arrived: dict[str, int]
    waiting: deque[Chunk] = field(default_factory=deque)  # what it makes of its input
    made: int = 0
    corrupt: str | None = None


@dataclass(slots=True)
class _Held:
    """Views that are kept. `skip`: they are flat, without so many items at their start."""

    request_id: str
    key: tuple[str, str, int]
    arrays: Arrays
    skip: int
    due: int | None  # after so many chunks in all; None: with the end of the request

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays.values())


class StressEngine:
    """An `Engine`."""

    def __init__(self, context: EngineContext) -> None:
        self._context = context
        self._random = Random(f"{context.options['seed']}/{context.stage}/{os.getpid()}")
        self._requests: dict[str, _Request] = {}
        self._held: list[_Held] = []
        self._fed = 0
        self._tally = Tally(Path(context.options["tally"]), context.stage)
        self._dropper = _Dropper(self._check)
        self._found: deque[str] = deque()  # corruption that no request has been failed for

    def add(self, request: EngineRequest) -> None:
        plan = Plan.of(request.external_id)
        sources = set(self._context.sources)
        self._requests[request.request_id] = _Request(request.external_id, plan, sources, dict.fromkeys(sources, 0))

    def feed(self, request_id: str, edge: str, chunk: Chunk) -> None:
        request = self._requests.get(request_id)
        if request is None:
            return
        request.arrived[edge] += 1
        number = request.arrived[edge]
        key = (request.external_id, maker(request.external_id, edge, number), number)
        self._tally.add("arrived")
        problem = difference(chunk.arrays, *key)
        if chunk.meta != {"maker": key[1], "number": number}:
            problem = f"meta {chunk.meta} where maker {key[1]} and number {number} were expected"
        if problem:
            request.corrupt = self._corrupt("on arrival", key, problem)
        if self._context.targets:
            request.waiting.append(self._made_of(request, chunk, number))
        self._fed += 1
        self._hold(request_id, key, chunk)
        self._let_go([held for held in self._held if held.due is not None and held.due <= self._fed])
        if not self._context.targets and self._random.random() < 0.02:
            time.sleep(0.004)  # a consumer that is slow now and then

    def end_of_input(self, request_id: str, edge: str) -> None:
        request = self._requests.get(request_id)
        if request is not None:
            request.open_sources.discard(edge)

    def abort(self, request_id: str) -> list[StageOutput]:
        self._forget(request_id)
        return []

    def has_work(self, request_id: str) -> bool:
        request = self._requests.get(request_id)
        if request is None:
            return False
        if not self._context.sources:
            return True
        return bool(request.corrupt or request.waiting) or self._has_ended(request)

    def step(self, ready: Sequence[str]) -> list[StageOutput]:
        outputs = []
        for request_id in ready:
            request = self._requests.get(request_id)
            if request is not None:
                outputs.append(self._advance(request_id, request))
        return outputs

    def close(self) -> None:
        self._requests.clear()
        self._let_go(list(self._held))
        self._dropper.close()

    # --- One request -------------------------------------------------------------------------------------------------

    def _has_ended(self, request: _Request) -> bool:
        if self._context.sources and not self._context.targets and request.plan.fate == "early":
            return sum(request.arrived.values()) >= request.plan.at
        if self._context.sources:
            return not request.open_sources and not request.waiting
        return request.made >= request.plan.chunks

    def _advance(self, request_id: str, request: _Request) -> StageOutput:
        corrupt = request.corrupt or (self._found.popleft() if self._found else None)
        if corrupt is not None:
            self._forget(request_id)
            return StageOutput(request_id, error=StageError(corrupt, stage=self._context.stage))
        chunks = []
        for _ in range(self._random.randint(1, 3)):
            plan = request.plan
            if plan.fate == "fail" and plan.fails == self._context.stage and request.made + 1 >= plan.at:
                self._forget(request_id)
                return StageOutput(request_id, error=StageError(PLANNED, stage=self._context.stage))
            chunk = self._next(request)
            if chunk is None:
                break
            request.made += 1
            chunks.append(chunk)
        return self._output(request_id, request, chunks)

    def _next(self, request: _Request) -> Chunk | None:
        if self._context.sources:
            return request.waiting.popleft() if request.waiting else None
        return None if request.made >= request.plan.chunks else self._new(request, request.made + 1)

    def _output(self, request_id: str, request: _Request, chunks: list[Chunk]) -> StageOutput:
        """The same chunks, as objects, to every consumer."""
        sent = dict.fromkeys(self._context.targets, tuple(chunks))
        if not self._has_ended(request):
            return StageOutput(request_id, chunks=sent)
        content = None
        if self._context.final_output:
            content = "early" if request.plan.fate == "early" else f"{sum(request.arrived.values())} chunks"
        self._forget(request_id)
        return StageOutput(request_id, content, sent, ended=True, finish_reason="stop")

    def _made_of(self, request: _Request, chunk: Chunk, number: int) -> Chunk:
        """What was fed as it came, views and all, or something new."""
        handed_on = maker(request.external_id, self._context.stage, number) == SOURCE
        return chunk if handed_on and self._context.stage in MIDDLES else self._new(request, number)

    def _new(self, request: _Request, number: int) -> Chunk:
        arrays = arrays_of(request.external_id, self._context.stage, number)
        return Chunk({"maker": self._context.stage, "number": number}, laid_out(arrays, self._random))

    def _forget(self, request_id: str) -> None:
        if self._requests.pop(request_id, None) is not None:
            last = not self._requests
            self._let_go([held for held in self._held if last or (held.due is None and held.request_id == request_id)])

    # --- Views -------------------------------------------------------------------------------------------------------

    def _hold(self, request_id: str, key: tuple[str, str, int], chunk: Chunk) -> None:
        """All of each array, or what is derived from it."""
        skip = self._random.choice((0, 0, 3))
        arrays = {name: array.reshape(-1)[skip:] if skip else array for name, array in chunk.arrays.items()}
        due = None if greedy(key[0], self._context.stage) else self._fed + self._random.randint(0, HELD_FEEDS)
        self._held.append(_Held(request_id, key, arrays, skip, due))
        while sum(held.nbytes for held in self._held) > HELD_BYTES:
            self._let_go([self._random.choice(self._held)])

    def _let_go(self, going: list[_Held]) -> None:
        """In random order, here or in the other thread. Nobody else refers to them any more."""
        gone = {id(held) for held in going}
        self._held = [held for held in self._held if id(held) not in gone]
        self._random.shuffle(going)
        while going:
            if self._random.random() < 0.5:
                self._dropper.put(going.pop())
            else:
                self._check(going.pop(), "released")

    def _check(self, held: _Held, counted: str) -> None:
        """Before the views die: they are what they were."""
        problem = difference(held.arrays, *held.key, skip=held.skip)
        self._tally.add(counted)
        if problem:
            self._found.append(self._corrupt("at release", held.key, problem))

    def _corrupt(self, when: str, key: tuple[str, str, int], problem: str) -> str:
        text = f"{CORRUPT} {when} in {self._context.stage}, request {key[0]}: {problem}"
        self._tally.corrupt(text)
        return text


class _Dropper:
    """A thread in which views die. It keeps none while it waits."""

    def __init__(self, check: Callable[[_Held, str], None]) -> None:
        self._check = check
        self._queue: SimpleQueue[_Held | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="dropper", daemon=True)
        self._thread.start()

    def put(self, held: _Held) -> None:
        self._queue.put(held)

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (held := self._queue.get()) is not None:
            self._check(held, "released_elsewhere")
            del held
