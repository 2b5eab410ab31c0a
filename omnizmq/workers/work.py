"""One attempt of one request in a worker, as its gate keeps it (R1). Pure."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from omnizmq import protocol as wire
from omnizmq.workers.edges import InEdge, OutEdge
from omnizmq.workers.engine import FinishReason


class WorkState(enum.Enum):
    """What a request waits for here, or does."""

    WAITING_FOR_CHUNK = "WAITING_FOR_CHUNK"
    WAITING_FOR_INPUT = "WAITING_FOR_INPUT"  # the whole output of a payload or relay edge
    RUNNING = "RUNNING"
    PARKED = "PARKED"  # a consumer gave no credit, or the ring is full: the engine may not go on
    SENDING = "SENDING"  # the engine is done with it, what it made is not out yet
    ABORTING = "ABORTING"  # the engine has not confirmed yet


@dataclass
class Work:
    """Its edges, and the facts about it, none of which implies another (S2)."""

    submit: wire.SubmitStage
    ready: str
    sources: dict[str, InEdge]
    targets: dict[str, OutEdge]
    input_ready: bool = False
    running: bool = False  # the engine has been told that it may
    aborting: bool = False
    made: bool = False  # the first output is there
    ended: bool = False  # the engine's output has ended
    outputs: int = 0
    finish_reason: FinishReason | None = None
    usage: dict[str, int | float] = field(default_factory=dict)
    note: str | None = None

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
    def parked(self) -> bool:
        return any(edge.full for edge in self.targets.values())

    @property
    def may_run(self) -> bool:
        return self.input_ready and not (self.parked or self.aborting or self.finish_reason)

    @property
    def state(self) -> WorkState:
        if self.aborting:
            return WorkState.ABORTING
        if self.finish_reason is not None:
            return WorkState.SENDING
        if self.input_ready:
            return WorkState.PARKED if self.parked else WorkState.RUNNING
        lacking = [edge for edge in self.sources.values() if not edge.has_input]
        by_chunk = any(edge.source.mode == "chunk" for edge in lacking)
        return WorkState.WAITING_FOR_CHUNK if by_chunk else WorkState.WAITING_FOR_INPUT
