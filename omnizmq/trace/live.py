"""What a running router and its workers say of one request, as they see it now: the document of `inspect`, typed.

The one reading of it, for the verdict and for what people are shown; its keys are those of docs/tracing.md. Pure. Every
field that readers can do without has a default: an answer of which a part is missing still counts. Moments (`…_ns`) are
CLOCK_MONOTONIC in nanoseconds; 0 or None: never, or not known.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec


class EdgeIn(msgspec.Struct, frozen=True):
    """An edge in, as its consumer sees it. `received`, `taken`: chunks that came, and that its engine took."""

    source: str = msgspec.field(name="from")
    replica: str = ""
    mode: str = "chunk"
    received: int = 0
    taken: int = 0
    ended: bool = False
    closed: bool = False
    last_ns: int = 0

    @property
    def open(self) -> bool:
        return not (self.ended or self.closed)


class EdgeOut(msgspec.Struct, frozen=True):
    """An edge out, as its producer sees it. `full`: why nothing more may go (credit, ring or line), if so; `holders`:
    the requests that hold the consumer's part of the ring."""

    target: str = msgspec.field(name="to")
    replica: str = ""
    mode: str = "chunk"
    made: int = 0
    sent: int = 0
    consumed: int = 0
    window: int = 0
    bytes: int = 0
    ended: bool = False
    closed: bool = False
    last_ns: int = 0
    full: str | None = None
    full_since_ns: int | None = 0
    held_bytes: int = 0
    quota_bytes: int = 0
    holders: tuple[str, ...] = ()


class Caller(msgspec.Struct, frozen=True):
    """What the caller of a final stage has been sent and has consumed, in outputs."""

    sent: int = 0
    consumed: int = 0
    window: int = 0
    unread_bytes: int = 0
    window_bytes: int = 0
    waiting: int = 0
    full: bool = False
    since_ns: int | None = 0


class WorkerAnswer(msgspec.Struct, frozen=True):
    """A worker's own word on a request: `state` as in `workers.work.WorkState`, or GONE. `moved_ns`: when it last made
    something for the request, was fed, or was at work on it. `engaged`: its engine does what it does for this request,
    too; None: not known."""

    state: str
    at_ns: int = 0
    since_ns: int | None = 0
    running: int = 0
    slots: int = 0
    waiting_for_slot: int = 0
    engine: str = ""
    engine_since_ns: int | None = 0
    engaged: bool | None = None
    moved_ns: int | None = msgspec.field(name="made_ns", default=0)
    outputs: int = 0
    inputs: tuple[EdgeIn, ...] = ()
    edges: tuple[EdgeOut, ...] = ()
    caller: Caller | None = None


class LiveStage(msgspec.Struct, frozen=True):
    """A stage as the router sees it, with its worker's answer; None: not asked, or it did not answer in time."""

    replica: str | None = None
    incarnation: int = 0
    pid: int | None = None
    state: str = ""
    engine: str = ""
    engine_since_ns: int | None = 0
    engine_text: str | None = None
    heard_ns: int | None = 0
    submitted: bool = False
    registered: bool = False
    output_ended: bool = False
    finished: bool = False
    answer: WorkerAnswer | None = None


class Queued(msgspec.Struct, frozen=True):
    """Why it waits for replicas; as the detail of a `queued` fact, and since when."""

    why: str = ""
    lacks: str | None = None
    replicas: str | None = None
    ahead: int | None = 0
    since_ns: int | None = 0


class FinalOutput(msgspec.Struct, frozen=True):
    """What the router has sent a caller of a final stage, in outputs. `ended`: all of it has come."""

    sent: int = 0
    consumed: int = 0
    ended: bool = False


class Live(msgspec.Struct, frozen=True):
    """The whole document. `silent`: the replicas that were asked and did not answer."""

    attempt: int
    now_ns: int
    phase: str
    request_id: str = ""
    external_id: str = ""
    caller: bool = True
    deadline_ns: int | None = None
    queue: Queued | None = None
    deliveries: dict[str, FinalOutput] = {}
    stages: dict[str, LiveStage] = {}
    silent: tuple[str, ...] = ()


def read(document: Mapping[str, Any] | None) -> Live | None:
    """The document, or None where there is none, or what it holds is something else: facts must do then."""
    if document is None:
        return None
    try:
        return msgspec.convert(document, Live)
    except msgspec.ValidationError:
        return None
