"""A pipeline's workers in one thread: real gates, runners, engines and rings, frames encoded on every way between them,
and a seeded scheduler that decides whose turn it is.

Each way (router to worker, producer to consumer and back, gate to engine thread and back) keeps its own order; between
two ways there is none. The router here does the least that a router must: it submits consumers before producers, hands
on relay content and credits, and aborts the other stages of a request that failed. Callers read what comes at once, but
for those that do not read; time passes when `tick` is called.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from omnizmq import protocol as wire
from omnizmq.errors import StageError
from omnizmq.shm.ledger import Slot
from omnizmq.shm.memory import SharedMemoryError
from omnizmq.shm.ring import RingReader, RingWriter, Segment
from omnizmq.workers import messages as m
from omnizmq.workers.core import Gate
from omnizmq.workers.dataplane import DataPlane
from omnizmq.workers.engine import Engine
from omnizmq.workers.peers import Peers
from omnizmq.workers.ring import Share
from omnizmq.workers.runner import EngineRunner

SUFFIX = "-0123456789abcdef"


class Edge(NamedTuple):
    source: str
    target: str
    mode: str = "chunk"
    window: int = 3
    ring: int = 0  # bytes of the producer's ring that the consumer may hold; 0: all goes inline
    timeout_s: float = 60.0


class Way:
    """Frames in order, as messages."""

    def __init__(self, decoder: msgspec.msgpack.Decoder[Any]) -> None:
        self.messages: deque[bytes] = deque()
        self._packer = wire.Packer()
        self._unpacker: wire.Unpacker[Any] = wire.Unpacker(decoder)

    def put(self, frame: msgspec.Struct) -> None:
        self.messages += self._packer.pack(frame)

    def take(self) -> Any:
        """A frame, or None: its other parts are still to come."""
        return self._unpacker.unpack(self.messages.popleft())


class Plane:
    """A worker's data plane without sockets: its frames are put on the ways of the line, its rings are real."""

    def __init__(self, line: Line, stage: str, ring: RingWriter | None) -> None:
        self.ring = ring
        self.readers: dict[str, RingReader] = {}  # by producer
        self.freed: set[str] = set()  # producers that have something to hear of
        self._line = line
        self._stage = stage

    def meet(self, target: wire.Target, quota: int) -> None:
        if self.ring is not None:
            segment = wire.Segment(*_fields(self.ring.segment))
            self._line.to_consumer(self._stage, target, wire.RingOffer(self.ring.id, segment, quota))

    def write(self, slot: Slot, fill: Callable[[NDArray[np.uint8]], None]) -> wire.Segment | None:
        assert self.ring is not None
        try:
            spill = self.ring.write(slot, fill)
        except SharedMemoryError as error:
            raise StageError(f"no memory: {error}") from error
        return None if spill is None else wire.Segment(*_fields(spill))

    def free(self, slot: Slot) -> None:
        if self.ring is not None:
            self.ring.free(slot)

    def to_consumer(self, target: wire.Target, frame: wire.ProducerToConsumer) -> None:
        self._line.to_consumer(self._stage, target, frame)

    def to_producer(self, source: wire.Source, frame: wire.ConsumerToProducer) -> None:
        self._line.to_producer(self._stage, source.stage, frame)

    def drop(self, peer: tuple[str, int]) -> None:
        reader = self.readers.pop(peer[0].partition("/")[0], None)
        if reader is not None:
            reader.close()

    # --- As a consumer ---------------------------------------------------------------------------------------------

    def map(self, producer: str, offer: wire.RingOffer) -> wire.RingAnswer:
        segment = Segment(*_fields(offer.segment))
        self.readers[producer] = RingReader(offer.ring, segment, offer.quota, partial(self.freed.add, producer))
        return wire.RingAnswer(None)

    def read(self, producer: str, frame: wire.RingChunk) -> NDArray[np.uint8] | SharedMemoryError:
        spill = None if frame.spill is None else Segment(*_fields(frame.spill))
        try:
            return self.readers[producer].take(frame.slot, frame.offset, frame.nbytes, spill)
        except SharedMemoryError as error:
            return error

    def take_freed(self, producer: str) -> None:
        self.freed.discard(producer)
        slots = self.readers[producer].take_freed() if producer in self.readers else []
        if slots:
            self._line.to_producer(self._stage, producer, wire.SlotsFreed(slots))

    def close(self) -> None:
        for reader in self.readers.values():
            reader.close()
        if self.ring is not None:
            self.ring.close()

    def is_empty(self) -> bool:
        """No view is alive, nothing that was freed is untold, no spilled record has a segment left."""
        return not (
            self.freed
            or any(reader._live for reader in self.readers.values())
            or (self.ring is not None and self.ring._spills)
        )


class Worker:
    """One stage: its gate, its engine behind two queues, and what carries out its gate's orders towards its peers."""

    def __init__(self, stage: str, engine: Engine, gate: Gate, plane: Plane, now: Callable[[], int]) -> None:
        self.stage = stage
        self.engine = engine
        self.gate = gate
        self.plane = plane
        self.runner = EngineRunner(engine, now)
        self.orders: deque[m.EngineCommand] = deque()
        self.said: deque[list[m.EngineEvent]] = deque()
        self.later: deque[m.GateEvent] = deque()
        self.peers = Peers(cast("DataPlane", plane), stage, f"{stage}/0", self.later.append)
        self.asleep = True

    def turn(self) -> None:
        """What the engine thread does in one go."""
        events: list[m.EngineEvent] = []
        while self.orders:
            events += self.runner.obey(self.orders.popleft())
        made = self.runner.round()
        self.asleep = made is None
        if events or made:
            self.said.append(events + (made or []))


class Line:
    """`engines` in topological order. After `settle` nothing is under way any more."""

    def __init__(
        self,
        engines: Mapping[str, Engine],
        edges: Sequence[Edge],
        *,
        final: Iterable[str],
        ready: str = "all",
        seed: int = 0,
        window: int = 1 << 20,
        window_bytes: int = 1 << 40,
        slots: int = 64,
    ) -> None:
        self.edges = list(edges)
        self.window = window
        self.window_bytes = window_bytes
        self.slots = slots
        self.final = set(final)
        self.chance = random.Random(seed)
        self.now = 0
        self.workers = {stage: self._worker(stage, engine, ready) for stage, engine in engines.items()}
        self.reports: dict[tuple[str, str], list[wire.StageFinished]] = defaultdict(list)
        self.outputs: dict[str, list[wire.Output]] = defaultdict(list)
        self.not_reading: set[str] = set()
        self.frozen: set[str] = set()  # stages whose engine does not come back from what it does
        self.paused: dict[str, list[bool]] = defaultdict(list)
        self.facts: list[tuple[str, str, str]] = []  # request, stage, fact, in the order in which the router heard
        self.submitted: set[tuple[str, str]] = set()
        self.duplicate = 0.0
        self.most_unread: dict[tuple[str, str], int] = defaultdict(int)
        self._prompts: dict[str, tuple[wire.Prompt, Mapping[str, dict[str, wire.Param]]]] = {}
        self._relayed: dict[tuple[str, str, str], bytes] = {}
        self._credited: dict[str, int] = defaultdict(int)
        self._aborted: set[str] = set()
        self._to_router = {stage: Way(wire.worker_to_router) for stage in engines}
        self._from_router = {stage: Way(wire.router_to_worker) for stage in engines}
        self._forward = {(edge.source, edge.target): Way(wire.producer_to_consumer) for edge in edges}
        self._back = {(edge.source, edge.target): Way(wire.consumer_to_producer) for edge in edges}
        self._unread: dict[tuple[str, str, str], int] = defaultdict(int)

    def _clock(self) -> int:
        self.now += 1
        return self.now

    def _worker(self, stage: str, engine: Engine, ready: str) -> Worker:
        out = [edge for edge in self.edges if edge.source == stage]
        shares = {edge.target: Share(edge.ring, edge.ring) for edge in out if edge.ring and edge.mode != "relay"}
        size = sum(share.capacity for share in shares.values())
        timeouts = {edge.source: edge.timeout_s for edge in self.edges if edge.target == stage}
        targets = [edge.target for edge in out]
        gate = Gate(stage, f"{stage}/0", 1, ready, targets, shares, slots=self.slots, input_timeouts_s=timeouts)
        return Worker(stage, engine, gate, Plane(self, stage, RingWriter(size) if size else None), self._clock)

    def close(self) -> None:
        """A line with rings has descriptors."""
        for worker in self.workers.values():
            worker.plane.close()

    # --- The caller ------------------------------------------------------------------------------------------------

    def ask(self, external_id: str, prompt: str = "one two", **params: dict[str, wire.Param]) -> str:
        request_id = external_id + SUFFIX
        self._prompts[request_id] = (wire.Prompt(prompt, None, None), params)
        self._submit_what_can_be(request_id)
        return request_id

    def abort(self, request_id: str) -> None:
        """Of every stage that was submitted and has not reported."""
        self._aborted.add(request_id)
        for rid, stage in sorted(self.submitted):
            if rid == request_id and not self.reports[(rid, stage)]:
                self._from_router[stage].put(wire.AbortStage(request_id, 1))

    def read(self, request_id: str) -> None:
        """The caller reads all that has come, and what will come."""
        self.not_reading.discard(request_id)
        self._credit(request_id, least=1)

    def unread(self, request_id: str) -> int:
        return len(self.outputs[request_id]) - self._credited[request_id]

    def text(self, request_id: str) -> str:
        parts = (output.content for output in self.outputs[request_id])
        return "".join(part.text for part in parts if isinstance(part, wire.Text))

    def report(self, request_id: str, stage: str) -> wire.StageFinished:
        (report,) = self.reports[(request_id, stage)]
        return report

    def tick(self, seconds: float) -> None:
        """So much later, a heartbeat of each worker."""
        self.now += round(seconds * 1e9)
        for worker in self.workers.values():
            self._feed_all(worker, [m.Ticked()])

    # --- The scheduler ---------------------------------------------------------------------------------------------

    def settle(self, most: int = 200_000) -> None:
        for _ in range(most):
            if not self.step():
                return
        raise AssertionError("this does not come to an end")

    def step(self) -> bool:
        """One thing that can happen now. False: nothing can."""
        turns = list(self._turns())
        if not turns:
            return False
        self.chance.choice(turns)()
        return True

    def _turns(self) -> Iterator[Callable[[], None]]:
        for stage, worker in self.workers.items():
            if stage not in self.frozen and (worker.orders or not worker.asleep):
                yield worker.turn
            if worker.said:
                yield lambda worker=worker: self._feed_all(worker, worker.said.popleft())  # type: ignore[misc]
            if self._from_router[stage].messages:
                yield lambda worker=worker: self._router_sent(worker)  # type: ignore[misc]
            if self._to_router[stage].messages:
                yield lambda stage=stage: self._worker_sent(stage)  # type: ignore[misc]
        for worker in self.workers.values():
            if worker.later:
                yield lambda worker=worker: self._feed_all(worker, [worker.later.popleft()])  # type: ignore[misc]
            for producer in sorted(worker.plane.freed):
                yield partial(worker.plane.take_freed, producer)
        for (source, target), way in self._forward.items():
            if way.messages:
                yield lambda way=way, to=target, by=source: self._peer_sent(way, to, by)  # type: ignore[misc]
        for (source, target), way in self._back.items():
            if way.messages:
                yield lambda way=way, to=source, by=target: self._peer_sent(way, to, by)  # type: ignore[misc]

    # --- Workers ---------------------------------------------------------------------------------------------------

    def _feed_all(self, worker: Worker, events: Iterable[m.GateEvent]) -> None:
        for event in events:
            for command in worker.gate.handle(event, self._clock()):
                self._carry_out(worker, command)

    def _carry_out(self, worker: Worker, command: m.GateCommand) -> None:
        match command:
            case m.ToRouter():
                self._to_router[worker.stage].put(command.frame)
            case m.ToConsumer() | m.ToProducer() | m.MeetConsumer() | m.WriteSlot() | m.FreeSlot() | m.DropPeer():
                worker.peers.carry_out(command)
            case _:
                worker.orders.append(command)

    def to_consumer(self, stage: str, target: wire.Target, frame: wire.ProducerToConsumer) -> None:
        key = (stage, target.stage)
        self._forward[key].put(frame)
        self._count(key, frame)
        if not isinstance(frame, wire.RingOffer) and self.chance.random() < self.duplicate:
            self._forward[key].put(frame)

    def to_producer(self, stage: str, producer: str, frame: wire.ConsumerToProducer) -> None:
        self._back[(producer, stage)].put(frame)

    def _count(self, key: tuple[str, str], frame: object) -> None:
        if isinstance(frame, wire.ChunkFrame | wire.RingChunk):
            self._unread[(*key, frame.request_id)] += 1
            self.most_unread[key] = max(self.most_unread[key], self._unread[(*key, frame.request_id)])

    def _router_sent(self, worker: Worker) -> None:
        frame = self._from_router[worker.stage].take()
        if frame is not None:
            self._feed_all(worker, [m.RouterSent(frame)])

    def _peer_sent(self, way: Way, to: str, by: str) -> None:
        frame = way.take()
        if frame is None:
            return
        plane, data = self.workers[to].plane, None
        if isinstance(frame, wire.RingOffer):
            self.to_producer(to, by, plane.map(by, frame))
            return
        if isinstance(frame, wire.RingChunk):
            data = plane.read(by, frame)
        if isinstance(frame, wire.EdgeCredit):
            sent = self._unread[(to, by, frame.request_id)]
            self._unread[(to, by, frame.request_id)] = min(sent, self._sent(to, by, frame) - frame.consumed)
        self._feed_all(self.workers[to], [m.PeerSent(f"{by}/0", 1, frame, data)])

    def _sent(self, producer: str, consumer: str, frame: wire.EdgeCredit) -> int:
        work = self.workers[producer].gate._work.get((frame.request_id, frame.attempt))
        return frame.consumed if work is None else work.targets[consumer].sent

    # --- The router ------------------------------------------------------------------------------------------------

    def _worker_sent(self, stage: str) -> None:
        match self._to_router[stage].take():
            case wire.StageFact() as fact:
                self.facts.append((fact.request_id, stage, fact.fact))
                self._submit_what_can_be(fact.request_id)
            case wire.Output() as output:
                assert stage in self.final
                assert output.seq == len(self.outputs[output.request_id]) + 1
                self.outputs[output.request_id].append(output)
                if output.request_id not in self.not_reading:
                    self._credit(output.request_id, least=max(1, self.window // 8))
            case wire.StagePaused() as frame:
                self.paused[frame.request_id].append(frame.paused)
            case wire.RelayContent() as content:
                self._relayed[(content.request_id, stage, content.target)] = content.data
            case wire.StageFinished() as report:
                self._reported(stage, report)

    def _credit(self, request_id: str, least: int) -> None:
        """For all that has come, if that is enough to tell."""
        if self.unread(request_id) >= least:
            self._credited[request_id] = len(self.outputs[request_id])
            (stage,) = self.final
            self._from_router[stage].put(wire.OutputCredit(request_id, 1, self._credited[request_id], 0))

    def _reported(self, stage: str, report: wire.StageFinished) -> None:
        self.reports[(report.request_id, stage)].append(report)
        if report.error is not None or report.finish_reason == "abort":
            if report.request_id not in self._aborted:
                self.abort(report.request_id)
            return
        for edge in self.edges:
            if edge.source == stage and edge.mode == "relay" and (report.request_id, edge.target) in self.submitted:
                self._hand_on(report.request_id, edge)
        self._submit_what_can_be(report.request_id)

    def _hand_on(self, request_id: str, edge: Edge) -> None:
        data = self._relayed.pop((request_id, edge.source, edge.target), None)
        if data is not None:
            self._from_router[edge.target].put(wire.FeedStage(request_id, 1, edge.source, data))

    def _submit_what_can_be(self, request_id: str) -> None:
        if request_id in self._aborted:
            return
        for stage in reversed(self.workers):
            if (request_id, stage) not in self.submitted and self._may_be_submitted(request_id, stage):
                self.submitted.add((request_id, stage))
                self._from_router[stage].put(self._submission(request_id, stage))
                for edge in self.edges:
                    if edge.target == stage and edge.mode == "relay" and self.reports[(request_id, edge.source)]:
                        self._hand_on(request_id, edge)

    def _may_be_submitted(self, request_id: str, stage: str) -> bool:
        direct = [edge.target for edge in self.edges if edge.source == stage and edge.mode != "relay"]
        if not all((request_id, target, "registered") in self.facts for target in direct):
            return False
        incoming = [edge for edge in self.edges if edge.target == stage]
        if not incoming or any(edge.mode != "relay" for edge in incoming):
            return True
        return all(bool(self.reports[(request_id, edge.source)]) for edge in incoming)

    def _submission(self, request_id: str, stage: str) -> wire.SubmitStage:
        prompt, params = self._prompts[request_id]
        sources = [wire.Source(e.source, f"{e.source}/0", 1, e.mode) for e in self.edges if e.target == stage]
        targets = [
            wire.Target(e.target, f"{e.target}/0", 1, f"ipc:///{e.target}", e.mode, e.window, e.timeout_s)
            for e in self.edges
            if e.source == stage
        ]
        return wire.SubmitStage(
            request_id=request_id,
            external_id=request_id.removesuffix(SUFFIX),
            attempt=1,
            engine_id=wire.make_engine_id(request_id, 1, stage),
            prompt=None if sources else prompt,
            original_prompt=None,
            params=dict(params.get(stage, {})),
            priority=0,
            final=stage in self.final,
            window=self.window,
            window_bytes=self.window_bytes,
            unread=0,
            sources=sources,
            targets=targets,
            traceparent="",
        )

    # --- What must hold at the end ---------------------------------------------------------------------------------

    def is_empty(self) -> bool:
        """B3: no gate, no runner, no way and no ring holds anything of any request."""
        ways = [*self._to_router.values(), *self._from_router.values(), *self._forward.values(), *self._back.values()]
        return (
            not any(worker.gate.live or worker.gate._by_engine_id for worker in self.workers.values())
            and not any(worker.runner._requests or worker.orders for worker in self.workers.values())
            and not any(way.messages or way._unpacker._open for way in ways)
            and all(worker.plane.is_empty() and _is_free(worker.gate) for worker in self.workers.values())
        )

    def each_reported_once(self) -> bool:
        """C2: every submission has exactly one report."""
        return {key: len(self.reports[key]) for key in self.submitted} == dict.fromkeys(self.submitted, 1)


def _is_free(gate: Gate) -> bool:
    """Nothing of its ring is reserved, and nobody stands in line for it."""
    ring = gate._ring
    free = not (ring._ledger.used or ring._ledger.spilled or ring._ledger._records or any(ring._lines.values()))
    return free and not any(use.used for use in gate.rings())


def _fields(segment: Segment | wire.Segment) -> tuple[int, int, int, int, int]:
    return segment.pid, segment.fd, segment.inode, segment.device, segment.nbytes
