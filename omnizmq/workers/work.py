"""One attempt of one request in a worker, as its gate keeps it (R1). Pure."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from omnizmq import protocol as wire
from omnizmq.workers.caller import CallerEdge
from omnizmq.workers.edges import InEdge, OutEdge
from omnizmq.workers.engine import FinishReason


class WorkState(enum.Enum):
    """What a request waits for here, or does."""

    WAITING_FOR_CHUNK = "WAITING_FOR_CHUNK"
    WAITING_FOR_INPUT = "WAITING_FOR_INPUT"  # the whole output of a payload or relay edge
    QUEUED = "QUEUED"  # others have all the places in the engine
    RUNNING = "RUNNING"
    PARKED = "PARKED"  # a consumer gave no credit, or the ring is full: the engine may not go on
    PAUSED = "PAUSED"  # its caller has to read first
    SENDING = "SENDING"  # the engine is done with it, what it made is not out yet
    ABORTING = "ABORTING"  # the engine has not confirmed yet


@dataclass
class Times:
    """CLOCK_MONOTONIC, in nanoseconds, when this gate heard of it. None: not yet."""

    submitted_ns: int
    ready_ns: int | None = None
    first_ns: int | None = None

    def usage(self, now_ns: int) -> dict[str, int | float]:
        """How long this stage had the request, in seconds (C6): waiting for its input, until its first output, in
        all."""
        spans = {
            "input_wait_s": (self.submitted_ns, self.ready_ns),
            "first_output_s": (self.ready_ns, self.first_ns),
            "stage_s": (self.submitted_ns, now_ns),
        }
        return {
            name: round((end - start) / 1e9, 6)
            for name, (start, end) in spans.items()
            if start is not None and end is not None
        }


@dataclass
class Work:
    """Its edges, and the facts about it, none of which implies another (S2)."""

    submit: wire.SubmitStage
    ready: str
    sources: dict[str, InEdge]
    targets: dict[str, OutEdge]
    caller: CallerEdge | None
    times: Times
    input_ready: bool = False
    running: bool = False  # it has a slot, and the engine has been told that it may
    idle: bool = False  # it gave its slot up to others until there is more input
    aborting: bool = False
    aborting_ns: int = 0  # since when
    ended: bool = False  # the engine's output has ended
    fed: int = 0  # chunks and ends of edges that went to the engine
    moved_ns: int = 0  # when it last made something, got something to do, or was at work (R4)
    probed_ns: int = 0  # when the engine was last asked whether it is at work on it
    finish_reason: FinishReason | None = None
    usage: dict[str, int | float] = field(default_factory=dict)
    note: str | None = None
    told: set[tuple[str, str]] = field(default_factory=set)  # edges out and causes that it was parked for

    @property
    def key(self) -> tuple[str, int]:
        return self.submit.request_id, self.submit.attempt

    @property
    def engine_id(self) -> str:
        return self.submit.engine_id

    @property
    def has_input(self) -> bool:
        edges = [edge.has_input for edge in self.sources.values()]
        return not edges or (all(edges) if self.ready == "all" else any(edges))

    @property
    def awaits_input(self) -> bool:
        return any(edge.open for edge in self.sources.values())

    @property
    def paused(self) -> bool:
        return self.caller is not None and self.caller.full

    @property
    def parked(self) -> bool:
        return self.paused or any(edge.full for edge in self.targets.values())

    @property
    def may_run(self) -> bool:
        """As far as it goes itself: others may have all the slots."""
        if not self.input_ready or self.idle or self.aborting or self.finish_reason is not None:
            return False
        return not self.parked

    @property
    def all_out(self) -> bool:
        """Nothing of it is left to send, and nothing will come."""
        delivered = self.caller is None or not self.caller.open
        return self.finish_reason is not None and delivered and not any(edge.open for edge in self.targets.values())

    @property
    def state(self) -> WorkState:
        if self.aborting:
            return WorkState.ABORTING
        if self.finish_reason is not None:
            return WorkState.SENDING
        if not self.input_ready:
            lacking = [edge for edge in self.sources.values() if not edge.has_input]
            by_chunk = any(edge.source.mode == "chunk" for edge in lacking)
            return WorkState.WAITING_FOR_CHUNK if by_chunk else WorkState.WAITING_FOR_INPUT
        if self.parked:
            return WorkState.PAUSED if self.paused else WorkState.PARKED
        if self.idle:
            return WorkState.WAITING_FOR_CHUNK
        return WorkState.RUNNING if self.running else WorkState.QUEUED

    @property
    def since_ns(self) -> int:
        """Since when it is in this state, as far as is known."""
        state, ready_ns = self.state, self.times.ready_ns or 0
        if state is WorkState.ABORTING:
            return self.aborting_ns
        if state is WorkState.PAUSED and self.caller is not None:
            return self.caller.since_ns
        if state is WorkState.PARKED:
            return min((edge.full_ns for edge in self.targets.values() if edge.full_ns is not None), default=0)
        if not self.input_ready:
            return max([self.times.submitted_ns, *(edge.came_ns for edge in self.sources.values())])
        return max(self.moved_ns, ready_ns)
