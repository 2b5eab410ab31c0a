"""What goes into the router core, and what comes out of it.

Inputs are facts in the past tense, effects are orders in the imperative; a `Fact` of the trace among them is to be
recorded. Frames of the protocol pass through both.
"""

from __future__ import annotations

import msgspec

from omnizmq import protocol as wire
from omnizmq.trace.facts import Fact


class _Input(msgspec.Struct, frozen=True):
    """Something that happened outside."""


class ClientSent(_Input, frozen=True):
    client: bytes
    frame: wire.ClientToRouter


class ClientGone(_Input, frozen=True):
    """Its process ended, its socket is full, or it said goodbye (A7)."""

    client: bytes
    why: str
    operator: bool = False


class ReplicaStarting(_Input, frozen=True):
    """A process was spawned for the replica."""

    replica: str
    incarnation: int
    pid: int


class WorkerJoined(_Input, frozen=True):
    """It said hello, with the launch's nonce, on the workers' socket. `endpoint` is its data socket's."""

    replica: str
    incarnation: int
    endpoint: str


class WorkerSent(_Input, frozen=True):
    replica: str
    incarnation: int
    frame: wire.WorkerToRouter


class WorkerUnreachable(_Input, frozen=True):
    """A frame for it could not be sent: no such peer, or its queue is full. `request_id` is empty where nobody waits
    for what the frame would have brought about."""

    replica: str
    incarnation: int
    request_id: str
    attempt: int
    why: str


class FrameUnsendable(_Input, frozen=True):
    """A frame for it is larger than a message may be; the worker is well. `submission`: it was a stage's submission, so
    the worker knows nothing of the request; else it was a relay edge's content."""

    replica: str
    incarnation: int
    request_id: str
    attempt: int
    submission: bool
    why: str


class ReplicaExited(_Input, frozen=True):
    """The process has been reaped."""

    replica: str
    incarnation: int
    reason: str


class Ticked(_Input, frozen=True):
    """Time has passed."""


class DrainAsked(_Input, frozen=True):
    """No new requests; `Drained` follows when the last one has settled."""


class StopAsked(_Input, frozen=True):
    """Every live request ends now."""

    why: str


Input = (
    ClientSent
    | ClientGone
    | ReplicaStarting
    | WorkerJoined
    | WorkerSent
    | WorkerUnreachable
    | FrameUnsendable
    | ReplicaExited
    | Ticked
    | DrainAsked
    | StopAsked
)


class _Effect(msgspec.Struct, frozen=True):
    """Something to be done outside."""


class ToClient(_Effect, frozen=True):
    client: bytes
    frame: wire.RouterToClient


class ToWorker(_Effect, frozen=True):
    replica: str
    incarnation: int
    frame: wire.RouterToWorker


class KillReplica(_Effect, frozen=True):
    """It is silent, stuck or slow to start: kill and reap it. `ReplicaExited` follows."""

    replica: str
    incarnation: int
    why: str


class RestartReplica(_Effect, frozen=True):
    """An operator wants another incarnation: end this one in good order. `ReplicaExited` follows."""

    replica: str
    incarnation: int


class ReplicaReady(_Effect, frozen=True):
    replica: str


class ReplicaLoading(_Effect, frozen=True):
    """What a starting replica says that it does."""

    replica: str
    text: str


class ReplicaFailed(_Effect, frozen=True):
    """A starting replica says that its engine did not load, and why; it waits to be ended."""

    replica: str
    why: str


class HandlingFailed(_Effect, frozen=True):
    """An exception about an event of this kind; the effects before it are to be carried out. To be logged."""

    kind: str
    error: Exception


class Drained(_Effect, frozen=True):
    """A drain has come to its end."""


Effect = (
    ToClient
    | ToWorker
    | KillReplica
    | RestartReplica
    | ReplicaReady
    | ReplicaLoading
    | ReplicaFailed
    | Fact
    | HandlingFailed
    | Drained
)
