"""What goes into a worker's gate, and what comes out of it. Frames of the protocol pass through both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from omnizmq import protocol as wire
from omnizmq.errors import OmnizmqError
from omnizmq.workers.engine import Chunk, EngineRequest, StageOutput

# --- In: facts -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RouterSent:
    frame: wire.SubmitStage | wire.FeedStage | wire.AbortStage | wire.PeerLost


@dataclass(frozen=True, slots=True)
class PeerSent:
    """On a data socket: from a producer, or from a consumer back."""

    replica: str
    incarnation: int
    frame: wire.ProducerToConsumer | wire.ConsumerToProducer


@dataclass(frozen=True, slots=True)
class PeerUnreachable:
    """A frame for it could not be sent."""

    replica: str
    incarnation: int
    why: str


@dataclass(frozen=True, slots=True)
class EngineTook:
    """The engine has taken this many more chunks of an edge: their credits are due."""

    engine_id: str
    source: str
    chunks: int


@dataclass(frozen=True, slots=True)
class EngineRan:
    """The request was in a step for the first time."""

    engine_id: str
    at_ns: int


@dataclass(frozen=True, slots=True)
class EngineMade:
    output: StageOutput
    at_ns: int


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


GateEvent = RouterSent | PeerSent | PeerUnreachable | EngineTook | EngineRan | EngineMade | EngineFailed | EngineAborted
EngineEvent = EngineTook | EngineRan | EngineMade | EngineFailed | EngineAborted


# --- Out: orders ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ToRouter:
    frame: wire.WorkerToRouter


@dataclass(frozen=True, slots=True)
class ToConsumer:
    """On this worker's connection to the consumer's data socket."""

    target: wire.Target
    frame: wire.ProducerToConsumer


@dataclass(frozen=True, slots=True)
class ToProducer:
    """Back over the producer's connection to this worker's data socket."""

    source: wire.Source
    frame: wire.ConsumerToProducer


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
    """The request is parked: it may not be in steps until `RunEngine`."""

    engine_id: str


@dataclass(frozen=True, slots=True)
class AbortEngine:
    """Forget the request. `EngineAborted` answers."""

    engine_id: str


EngineCommand = AddToEngine | FeedEngine | EndEngineInput | RunEngine | HoldEngine | AbortEngine
GateCommand = ToRouter | ToConsumer | ToProducer | DropPeer | EngineCommand
