"""What goes into a worker's gate, and what comes out of it. Frames of the protocol pass through both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from omnizmq import protocol as wire
from omnizmq.errors import OmnizmqError, StageError
from omnizmq.shm.ledger import Slot
from omnizmq.shm.memory import SharedMemoryError
from omnizmq.workers.engine import Chunk, EngineRequest, StageOutput

SlotData = NDArray[np.uint8] | SharedMemoryError | None
"""Of a chunk in a ring, its slot: uint8 `[nbytes]`, or why it cannot be read. None: of anything else."""

FromRouter = wire.SubmitStage | wire.FeedStage | wire.OutputCredit | wire.AbortStage | wire.PeerLost

# --- In: facts -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RouterSent:
    frame: FromRouter


@dataclass(frozen=True, slots=True)
class StageAsked:
    """The router asks how things stand. `engine`: what it does, and since when (CLOCK_MONOTONIC); `at_work_on`: for
    which requests, by their engine ids."""

    frame: wire.AskStage
    engine: str
    engine_since_ns: int
    at_work_on: frozenset[str]


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed. `deaf`: the router has been silent, so no caller's credit could come."""

    deaf: bool = False


@dataclass(frozen=True, slots=True)
class PeerSent:
    """On a data socket: from a producer, or from a consumer back."""

    replica: str
    incarnation: int
    frame: wire.OnEdge | wire.ConsumerToProducer
    data: SlotData = None


@dataclass(frozen=True, slots=True)
class PeerUnreachable:
    """A frame for it could not be sent."""

    replica: str
    incarnation: int
    why: str


@dataclass(frozen=True, slots=True)
class SlotUnwritten:
    """A chunk could not be copied into its slot. Its consumers have been told that the request failed."""

    engine_id: str
    slot: Slot
    error: StageError


@dataclass(frozen=True, slots=True)
class EngineTook:
    """The engine has taken this many more chunks of an edge: their credits are due."""

    engine_id: str
    source: str
    chunks: int


@dataclass(frozen=True, slots=True)
class EngineRan:
    """The request goes into a step for the first time."""

    engine_id: str
    at_ns: int


@dataclass(frozen=True, slots=True)
class EngineMade:
    output: StageOutput
    at_ns: int


@dataclass(frozen=True, slots=True)
class EngineIdle:
    """The answer to `ProbeEngine`: the engine has nothing to do for this request, has not had since then, and has taken
    all of the `fed` chunks and ends of edges that the request was fed."""

    engine_id: str
    since_ns: int
    fed: int


@dataclass(frozen=True, slots=True)
class EngineFailed:
    """The engine raised about this request."""

    engine_id: str
    error: OmnizmqError


@dataclass(frozen=True, slots=True)
class EngineAborted:
    """The engine has forgotten the request; `outputs` are what existed and was not handed out."""

    engine_id: str
    outputs: Sequence[StageOutput]


GateEvent = (
    RouterSent
    | StageAsked
    | Ticked
    | PeerSent
    | PeerUnreachable
    | SlotUnwritten
    | EngineTook
    | EngineRan
    | EngineMade
    | EngineIdle
    | EngineFailed
    | EngineAborted
)
EngineEvent = EngineTook | EngineRan | EngineMade | EngineIdle | EngineFailed | EngineAborted


def engine_id_of(event: GateEvent, stage: str) -> str | None:
    """Whose request the event is about, in this stage's engine. None: about none, or it says that it failed."""
    match event:
        case EngineFailed() | PeerUnreachable() | StageAsked() | Ticked():
            return None
        case EngineMade():
            return event.output.request_id
        case RouterSent() | PeerSent():
            ids = getattr(event.frame, "request_id", None), getattr(event.frame, "attempt", 0)
            return None if ids[0] is None else wire.make_engine_id(ids[0], ids[1], stage)
        case _:
            return event.engine_id


# --- Out: orders ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ToRouter:
    frame: wire.WorkerToRouter


@dataclass(frozen=True, slots=True)
class ToConsumer:
    """On this worker's connection to the consumer's data socket."""

    target: wire.Target
    frame: wire.OnEdge


@dataclass(frozen=True, slots=True)
class MeetConsumer:
    """Connect to its data socket, and offer it the ring: so much of it may be reserved for this consumer."""

    target: wire.Target
    quota: int


@dataclass(frozen=True, slots=True)
class WriteSlot:
    """Copy the chunk's arrays into the slot, then send each frame to its consumer."""

    engine_id: str
    slot: Slot
    chunk: Chunk
    sends: Sequence[tuple[wire.Target, wire.RingChunk]]


@dataclass(frozen=True, slots=True)
class FreeSlot:
    """Nobody needs this slot any more: if it has a segment of its own, that goes."""

    slot: Slot


@dataclass(frozen=True, slots=True)
class ToProducer:
    """Back over the producer's connection to this worker's data socket."""

    source: wire.Source
    frame: wire.BackOnEdge


@dataclass(frozen=True, slots=True)
class DropPeer:
    """It is dead: close what leads to it."""

    replica: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class AddToEngine:
    request: EngineRequest


@dataclass(frozen=True, slots=True)
class FeedEngine:
    engine_id: str
    source: str
    chunk: Chunk


@dataclass(frozen=True, slots=True)
class EndEngineInput:
    engine_id: str
    source: str


@dataclass(frozen=True, slots=True)
class RunEngine:
    """The request may be in steps from now on."""

    engine_id: str


@dataclass(frozen=True, slots=True)
class HoldEngine:
    """The request may not be in steps until `RunEngine`: it is parked, or done."""

    engine_id: str


@dataclass(frozen=True, slots=True)
class ProbeEngine:
    """Say `EngineIdle` as soon as the engine has nothing to do for the request, if it runs; `HoldEngine` ends that."""

    engine_id: str


@dataclass(frozen=True, slots=True)
class AbortEngine:
    """Forget the request. `EngineAborted` answers."""

    engine_id: str


EngineCommand = AddToEngine | FeedEngine | EndEngineInput | RunEngine | HoldEngine | ProbeEngine | AbortEngine
PlaneCommand = ToConsumer | ToProducer | MeetConsumer | WriteSlot | FreeSlot | DropPeer
GateCommand = ToRouter | PlaneCommand | EngineCommand
