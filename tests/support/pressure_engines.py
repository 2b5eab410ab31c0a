"""Two engines for full rings, and one with a fault in its worker.

`queue` (a stage without sources) serves its requests strictly one by one: it waits until `requests` of them have come,
then serves them by their external ids' numbers, rising or falling, all chunks of one before the first of the next.
`verify` (a stage without targets) knows what these must be, keeps all of a request's chunks until it has ended, and
looks at them again then.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omnizmq.errors import StageError
from omnizmq.workers.core import Gate
from omnizmq.workers.engine import Chunk, Engine, EngineContext, EngineRequest, StageOutput
from omnizmq.workers.engines.synthetic import create
from omnizmq.workers.work import Work


def content(external_id: str, stage: str, number: int, size: int) -> NDArray[np.uint8]:
    """Bytes `[size]` of this chunk alone."""
    key = sum(f"{external_id}/{stage}/{number}".encode()) + 31 * number
    return (np.arange(size, dtype=np.uint32) * 2654435761 + key * 40503 >> 7).astype(np.uint8)


class Queue:
    """An `Engine`. Options: `requests`, `chunks` a request, `chunk_bytes`, `order`."""

    def __init__(self, context: EngineContext) -> None:
        self._context = context
        self._options = context.options
        self._waiting: dict[str, str] = {}  # request id -> external id
        self._made: dict[str, int] = defaultdict(int)
        self._come = 0

    def add(self, request: EngineRequest) -> None:
        self._waiting[request.request_id] = request.external_id
        self._come += 1
        if self._come == self._options["requests"]:
            self._context.wake()

    def feed(self, *given: object) -> None:
        raise StageError(f"a stage without sources was fed {given}")

    def end_of_input(self, *given: object) -> None:
        raise StageError(f"a stage without sources was told of an end: {given}")

    def abort(self, request_id: str) -> list[StageOutput]:
        self._waiting.pop(request_id, None)
        return []

    def has_work(self, request_id: str) -> bool:
        return self._come >= self._options["requests"] and request_id == self._turn()

    def step(self, ready: Sequence[str]) -> list[StageOutput]:
        (request_id,) = ready
        number = self._made[request_id] = self._made[request_id] + 1
        data = content(self._waiting[request_id], self._context.stage, number, self._options["chunk_bytes"])
        chunks = dict.fromkeys(self._context.targets, (Chunk({"number": number}, {"data": data}),))
        if number < self._options["chunks"]:
            return [StageOutput(request_id, chunks=chunks)]
        del self._waiting[request_id]
        return [StageOutput(request_id, chunks=chunks, ended=True, finish_reason="stop")]

    def close(self) -> None:
        self._waiting.clear()

    def _turn(self) -> str | None:
        """Whose it is."""
        rising = sorted(self._waiting, key=lambda request_id: int(self._waiting[request_id].removeprefix("r")))
        if not rising:
            return None
        return rising[0] if self._options["order"] == "rising" else rising[-1]


class Verify:
    """An `Engine`."""

    def __init__(self, context: EngineContext) -> None:
        self._sources = context.sources
        self._ids: dict[str, str] = {}
        self._open: dict[str, set[str]] = {}
        self._chunks: dict[str, list[tuple[str, Chunk]]] = {}

    def add(self, request: EngineRequest) -> None:
        self._ids[request.request_id] = request.external_id
        self._open[request.request_id] = set(self._sources)
        self._chunks[request.request_id] = []

    def feed(self, request_id: str, edge: str, chunk: Chunk) -> None:
        self._chunks[request_id].append((edge, chunk))
        self._look(request_id, edge, chunk)

    def end_of_input(self, request_id: str, edge: str) -> None:
        self._open[request_id].discard(edge)

    def abort(self, request_id: str) -> list[StageOutput]:
        for table in (self._ids, self._open, self._chunks):
            table.pop(request_id, None)
        return []

    def has_work(self, request_id: str) -> bool:
        return self._open.get(request_id) == set()

    def step(self, ready: Sequence[str]) -> list[StageOutput]:
        outputs = []
        for request_id in ready:
            for edge, chunk in self._chunks[request_id]:
                self._look(request_id, edge, chunk)
            text = f"{len(self._chunks[request_id])} chunks"
            self.abort(request_id)
            outputs.append(StageOutput(request_id, text, ended=True, finish_reason="stop"))
        return outputs

    def close(self) -> None:
        self._chunks.clear()

    def _look(self, request_id: str, edge: str, chunk: Chunk) -> None:
        data, number = chunk.arrays["data"], chunk.meta["number"]
        assert isinstance(number, int)
        if not np.array_equal(data, content(self._ids[request_id], edge, number, data.size)):
            raise StageError(f"CORRUPT: chunk {number} of {edge}")


def with_a_faulty_gate(context: EngineContext) -> Engine:
    """The synthetic engine in a worker whose gate raises about requests that are called `fault…`, where its option
    `where` says: of its own engine (`made`) or of a frame (`came`)."""
    where = context.options["where"]
    name = {"made": "_made", "came": "_producer_said"}[where]
    sound = getattr(Gate, name)

    def faulty(self: Gate, work: Work, *rest: Any) -> None:
        if work.submit.external_id.startswith("fault"):
            raise ZeroDivisionError(f"a fault of the gate, where something was {where}")
        sound(self, work, *rest)

    setattr(Gate, name, faulty)
    options = {key: value for key, value in context.options.items() if key != "where"}
    return create(dataclasses.replace(context, options=options))
