"""What a seed stands for: a deployment, what is asked of it, and what goes wrong, as plain data.

`teller` makes the story of a seed. A story can be written down as JSON, and cut: every request, fault, kill and so on
stands for itself, and refers to others by numbers and names that stay. Times are seconds from the start.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Final = Literal["text", "audio"]
Reader = Literal["quick", "slow", "pausing", "never"]
Abort = Literal["external", "request", "cancel"]
FaultKind = Literal[
    "add",  # refuses the request
    "feed",  # raises when it is fed
    "raise",  # a step raises, for all that are in it
    "error",  # ends the request with an error
    "wrong",  # makes what no engine may make
    "unwritable",  # makes a chunk that cannot be copied
    "silent",  # makes nothing more of the request
    "hang",  # a step that never returns
    "crash",  # the process dies in a step
    "slow",  # a step takes long
    "late",  # the stage's report comes long after its output has ended, or never
    "fickle",  # another attempt says something else
]


RING_CHUNK = 70_000
"""Bytes of a chunk that goes by ring."""


class Stage(msgspec.Struct, frozen=True):
    name: str
    final: Final | None
    replicas: int
    inflight: int
    registered: int
    ready: Literal["all", "any"]
    policy: Literal["round_robin", "least_loaded", "affinity"]
    step_s: float


class Edge(msgspec.Struct, frozen=True):
    """`ring`: bytes of the producer's ring for this edge; 0: everything goes inline."""

    source: str
    target: str
    mode: Literal["chunk", "payload", "relay"]
    window: int
    ring: int


class Limits(msgspec.Struct, frozen=True):
    """The router's, under the names of the configuration. `input_timeout_s` is every edge's, `step_timeout_s` every
    stage's."""

    heartbeat_interval_s: float
    heartbeat_timeout_s: float
    abort_timeout_s: float
    terminal_grace_s: float
    max_queued: int
    output_window: int
    slow_reader_grace_s: float
    redrive: Literal["never", "other", "wait"]
    redrive_wait_s: float
    max_attempts: int
    priority_age_s: float
    restart_delay_s: float
    max_restart_delay_s: float
    input_timeout_s: float
    step_timeout_s: float


class Request(msgspec.Struct, frozen=True):
    """`size`: of what each final stage says, in characters or samples, in about `pieces` outputs. `stops_after`: chunks
    after which its fed stages have heard enough (R5). `reads`: outputs before a reader pauses, or a caller cancels."""

    n: int
    client: int
    at: float
    external: str
    modalities: list[str] | None
    kind: Literal["delta", "final"]
    size: int
    pieces: int
    stops_after: int | None
    priority: int
    affinity: str | None
    deadline_s: float | None
    reader: Reader
    read_s: float
    reads: int
    abort: Abort | None
    abort_at: float

    @property
    def id(self) -> str:
        return f"{self.external}-{self.n:016x}"


class Fault(msgspec.Struct, frozen=True):
    """Strikes at the stage's unit number `at` of the request, `times` times over all attempts."""

    request: int
    stage: str
    kind: FaultKind
    at: int
    seconds: float
    times: int


class Kill(msgspec.Struct, frozen=True):
    """Whatever incarnation there is then. `told`: how much later the launcher has reaped it."""

    at: float
    replica: str
    told: float
    fails_start: bool


class ClientEnd(msgspec.Struct, frozen=True):
    """`dropped`: the router gives it up, because it did not read."""

    at: float
    client: int
    how: Literal["killed", "bye", "dropped"]


class Stop(msgspec.Struct, frozen=True):
    """Somebody is stopped for a while (SIGSTOP), and goes on: a replica, or the `router`."""

    at: float
    who: str
    seconds: float


class Closing(msgspec.Struct, frozen=True):
    """The deployment is drained; what lives `stops` seconds later is ended."""

    at: float
    stops: float


class Order(msgspec.Struct, frozen=True):
    """An operator's, through a client (`Operate`)."""

    at: float
    client: int
    action: Literal["drain", "resume", "restart"]
    target: str
    timeout_s: float
    force: bool


class Net(msgspec.Struct, frozen=True):
    """Delays are `base_s` to `base_s + spread_s`, mostly short; a share of `stall` of all frames takes `stall_s` more.
    `repeats` is the share of frames that come again, `garbage` of those before which something else comes."""

    base_s: float
    spread_s: float
    stall: float
    stall_s: float
    repeats: float
    repeat_s: float
    garbage: float


class Story(msgspec.Struct, frozen=True):
    """`only`: the frames that come again, by name; None: by the share in `net`."""

    seed: int
    stages: list[Stage]
    edges: list[Edge]
    limits: Limits
    clients: int
    requests: list[Request]
    faults: list[Fault]
    kills: list[Kill]
    ends: list[ClientEnd]
    orders: list[Order]
    stops: list[Stop]
    closings: list[Closing]
    net: Net
    only: list[str] | None = None

    def last_moment(self) -> float:
        """After it, nothing goes wrong any more by itself."""
        moments = [0.0]
        moments += [request.at for request in self.requests]
        moments += [request.abort_at for request in self.requests if request.abort is not None]
        moments += [kill.at for kill in self.kills]
        moments += [end.at for end in self.ends]
        moments += [order.at for order in self.orders]
        moments += [stop.at + stop.seconds for stop in self.stops]
        moments += [closing.at + closing.stops for closing in self.closings]
        return max(moments)


def write(story: Story) -> bytes:
    """JSON."""
    return msgspec.json.format(msgspec.json.encode(story), indent=1)


def read(document: bytes) -> Story:
    return msgspec.json.decode(document, type=Story)
