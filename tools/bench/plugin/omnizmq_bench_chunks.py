"""Two engines that time a chunk's way from one to the other: `step` of the producer to `feed` of the consumer.

The producer is the stage without sources. A request of `{"bytes", "chunks", "warm", "under_way", "gap_us", "summed"}`
makes `warm + chunks` chunks of one array, stamped with CLOCK_MONOTONIC as the last thing that `step` does. With
`under_way` above 0, no more than that many are unread, and each waits `gap_us` besides: the consumer acknowledges each
through a FIFO in the deployment's private directory; with 0 the edge's credits alone hold the producer back.

The consumer stamps as the first thing that `feed` does (after it has added up all bytes, where `summed`), and its final
text is JSON: the counted chunks' `latencies_ns` and `arrivals_ns`, `waits` (voluntary context switches a chunk of both
workers, the acknowledgements' thread left out), `steps` (how many of its own ended between a chunk's two stamps) and
`views` (the share of the chunks that it got in the ring itself, neither inline nor copied out).

A request of `{"busy": "numpy" | "python", "busy_ms"}` keeps both engines in steps of that length until it is aborted.

`[stage.options]`: `inline_bytes` moves the size up to which this worker sends arrays inline, to compare both ways.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from omnizmq.errors import ConfigError, InvalidRequestError, StageError
from omnizmq.protocol import Value
from omnizmq.workers import outgoing
from omnizmq.workers.engine import Chunk, Engine, EngineContext, EngineRequest, StageOutput

ACKS = "chunk-acks"
REMEMBERED_STEPS = 64
FLOW = ("bytes", "chunks", "warm", "under_way", "gap_us", "summed")


def create(context: EngineContext) -> Engine:
    """The entry point."""
    if bool(context.sources) == bool(context.targets) or len(context.sources + context.targets) != 1:
        raise ConfigError(f"stage {context.stage}: this engine is for the two stages of one edge")
    unknown = context.options.keys() - {"inline_bytes"}
    if unknown:
        raise ConfigError(f"stage {context.stage}: unknown option {min(unknown)!r}; inline_bytes is the only one")
    if "inline_bytes" in context.options:
        _move_crossover(int(context.options["inline_bytes"]))
    return Consumer(context) if context.sources else Producer(context)


def _move_crossover(inline_bytes: int) -> None:
    """The product has no setting for it, and needs none but here."""
    if not hasattr(outgoing, "INLINE_BYTES"):
        raise ConfigError("inline_bytes: this version of omnizmq has no size up to which arrays go inline")
    outgoing.INLINE_BYTES = inline_bytes


def pattern(size: int) -> NDArray[np.uint8]:
    """`[size]`, in memory that has been touched; not to be changed."""
    array = np.resize(np.arange(251, dtype=np.uint8), size)
    array.flags.writeable = False
    return array


def checksum(array: NDArray[np.uint8]) -> int:
    """Of all bytes, at about the speed of memory; `[n]`, n a multiple of 8."""
    return int(array.view(np.uint64).sum()) & 0xFFFF_FFFF_FFFF


def waits(besides: int = 0) -> int:
    """Voluntary context switches of this process's threads so far, but for the thread of that number."""
    count = 0
    for task in Path("/proc/self/task").iterdir():
        if task.name != str(besides):
            with suppress(FileNotFoundError, ProcessLookupError):
                status = (task / "status").read_text()
                count += int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])
    return count


def is_view(array: NDArray[np.uint8]) -> bool:
    """Whether its bytes are the ring's, under a lease."""
    base: object = array
    while isinstance(base, np.ndarray):
        base = base.base
    return type(base).__module__ == "omnizmq.shm.leases"


class Work:
    """What a busy engine computes for so long."""

    def __init__(self) -> None:
        self._numbers = np.linspace(0.0, 1.0, 1 << 15)
        self._result = np.empty_like(self._numbers)

    def run(self, kind: str, milliseconds: float) -> None:
        end = time.monotonic() + milliseconds / 1000
        while time.monotonic() < end:
            if kind == "numpy":
                np.sin(self._numbers, out=self._result)
            else:
                sum(number * number for number in range(2000))


# --- The producer ----------------------------------------------------------------------------------------------------


@dataclass
class _Flow:
    array: NDArray[np.uint8]
    chunks: int
    warm: int
    under_way: int
    checksum: int  # -1: not asked for
    made: int = 0
    waits_before: int = 0

    @property
    def total(self) -> int:
        return self.warm + self.chunks


@dataclass
class _Burden:
    kind: str
    milliseconds: float
    started: bool = False


class Producer:
    """An `Engine` for the stage without sources."""

    def __init__(self, context: EngineContext) -> None:
        self._wake = context.wake
        self._target = context.targets[0]
        self._work = Work()
        self._flows: dict[str, _Flow] = {}
        self._burdens: dict[str, _Burden] = {}
        self._acked = 0
        self._gap_s = 0.0
        fifo = context.private_dir / ACKS
        with suppress(FileExistsError):
            os.mkfifo(fifo, 0o600)
        self._acks = os.open(fifo, os.O_RDWR)  # for writing as well: so it never ends
        self._closing = False
        self._listener = threading.Thread(target=self._listen, name="acks", daemon=True)
        self._listener.start()

    def add(self, request: EngineRequest) -> None:
        params = request.params
        if "busy" in params:
            self._burdens[request.request_id] = _Burden(str(params["busy"]), float(params["busy_ms"]))  # type: ignore[arg-type]
            return
        if sorted(params) != sorted(FLOW) or not all(isinstance(value, int) for value in params.values()):
            raise InvalidRequestError(f"{', '.join(FLOW)}: each a whole number was expected")
        size, chunks, warm, under_way, gap_us, summed = (int(params[name]) for name in FLOW)  # type: ignore[arg-type]
        array = pattern(size)
        expected = checksum(array) if summed else -1
        self._acked = 0
        self._gap_s = gap_us / 1e6
        self._flows[request.request_id] = _Flow(array, chunks, warm, under_way, expected)

    def feed(self, request_id: str, edge: str, chunk: Chunk) -> None:
        """Nothing feeds a producer."""

    def end_of_input(self, request_id: str, edge: str) -> None:
        """Nothing feeds a producer."""

    def abort(self, request_id: str) -> list[StageOutput]:
        self._flows.pop(request_id, None)
        self._burdens.pop(request_id, None)
        return []

    def has_work(self, request_id: str) -> bool:
        flow = self._flows.get(request_id)
        if flow is None:
            return request_id in self._burdens
        return not flow.under_way or flow.made - self._acked < flow.under_way

    def step(self, ready: Sequence[str]) -> list[StageOutput]:
        outputs = []
        for request_id in ready:
            burden = self._burdens.get(request_id)
            if burden is not None:
                if not burden.started:
                    burden.started = True
                    first = Chunk({"busy": burden.kind, "busy_ms": burden.milliseconds})
                    outputs.append(StageOutput(request_id, chunks={self._target: [first]}))
                self._work.run(burden.kind, burden.milliseconds)
        for request_id in ready:
            flow = self._flows.get(request_id)
            if flow is not None:
                meta = self._meta(flow)
                last = flow.made == flow.total
                chunks = {self._target: [Chunk(meta, {"data": flow.array})]}
                outputs.append(StageOutput(request_id, None, chunks, last, "stop" if last else None))
                if last:
                    del self._flows[request_id]
                meta["stamp"] = time.monotonic_ns()
        return outputs

    def _meta(self, flow: _Flow) -> dict[str, Value]:
        if flow.made == flow.warm:
            flow.waits_before = waits(self._listener.native_id or 0)
        flow.made += 1
        meta: dict[str, Value] = {
            "counted": flow.made > flow.warm,
            "ack": flow.under_way > 0,
            "checksum": flow.checksum,
        }
        if flow.made == flow.total:
            meta["waits"] = (waits(self._listener.native_id or 0) - flow.waits_before) / flow.chunks
        return meta

    def close(self) -> None:
        self._closing = True
        os.write(self._acks, b".")
        self._listener.join()
        os.close(self._acks)

    def _listen(self) -> None:
        while acks := len(os.read(self._acks, 64)):
            if self._closing:
                return
            if self._gap_s:
                time.sleep(self._gap_s)
            self._acked += acks
            self._wake()


# --- The consumer ----------------------------------------------------------------------------------------------------


@dataclass
class _Record:
    latencies_ns: list[int] = field(default_factory=list)
    arrivals_ns: list[int] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    views: int = 0
    waits_before: int = 0
    waits: tuple[float, float] = (0.0, 0.0)
    ended: bool = False


class Consumer:
    """An `Engine` for the stage at the end of the edge."""

    def __init__(self, context: EngineContext) -> None:
        self._fifo = context.private_dir / ACKS
        self._acks: int | None = None
        self._work = Work()
        self._records: dict[str, _Record] = {}
        self._burdens: dict[str, _Burden] = {}
        self._step_ends: deque[int] = deque(maxlen=REMEMBERED_STEPS)

    def add(self, request: EngineRequest) -> None:
        self._records[request.request_id] = _Record()

    def feed(self, request_id: str, edge: str, chunk: Chunk) -> None:  # noqa: ARG002 (the interface's)
        now = time.monotonic_ns()
        meta = chunk.meta
        if "busy" in meta:
            self._burdens[request_id] = _Burden(str(meta["busy"]), float(meta["busy_ms"]))  # type: ignore[arg-type]
            return
        if meta["checksum"] != -1:
            if checksum(chunk.arrays["data"]) != meta["checksum"]:
                raise StageError("the bytes that came are not those that were made")
            now = time.monotonic_ns()
        self._note(self._records[request_id], chunk, now)
        if "waits" in meta:
            record = self._records[request_id]
            mine = (waits() - record.waits_before) / len(record.arrivals_ns)
            record.waits = (float(meta["waits"]), mine)  # type: ignore[arg-type]
        if meta["ack"]:
            self._acknowledge()

    def _note(self, record: _Record, chunk: Chunk, now: int) -> None:
        if chunk.meta["counted"]:
            stamp: int = chunk.meta["stamp"]  # type: ignore[assignment]
            record.latencies_ns.append(now - stamp)
            record.arrivals_ns.append(now)
            record.steps.append(sum(end > stamp for end in self._step_ends))
            record.views += is_view(chunk.arrays["data"])
        else:
            record.waits_before = waits()

    def _acknowledge(self) -> None:
        if self._acks is None:  # the producer has made it by now: it has sent a chunk
            self._acks = os.open(self._fifo, os.O_WRONLY)
        os.write(self._acks, b".")

    def end_of_input(self, request_id: str, edge: str) -> None:  # noqa: ARG002 (the interface's)
        self._records[request_id].ended = True

    def abort(self, request_id: str) -> list[StageOutput]:
        self._records.pop(request_id, None)
        self._burdens.pop(request_id, None)
        return []

    def has_work(self, request_id: str) -> bool:
        record = self._records.get(request_id)
        return record is not None and (record.ended or request_id in self._burdens)

    def step(self, ready: Sequence[str]) -> list[StageOutput]:
        outputs = []
        for request_id in ready:
            burden = self._burdens.get(request_id)
            if burden is None:
                outputs.append(self._result(request_id))
                continue
            if not burden.started:
                burden.started = True
                outputs.append(StageOutput(request_id, "busy"))
            self._work.run(burden.kind, burden.milliseconds)
        self._step_ends.append(time.monotonic_ns())
        return outputs

    def _result(self, request_id: str) -> StageOutput:
        record = self._records.pop(request_id)
        found = {
            "latencies_ns": record.latencies_ns,
            "arrivals_ns": record.arrivals_ns,
            "steps": record.steps,
            "waits": record.waits,
            "views": record.views / len(record.arrivals_ns),
        }
        return StageOutput(request_id, json.dumps(found), ended=True, finish_reason="stop")

    def close(self) -> None:
        if self._acks is not None:
            os.close(self._acks)
