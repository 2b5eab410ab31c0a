"""Facts as a router would record them, for the tests of store, summary, verdict and view."""

from __future__ import annotations

from omnizmq.protocol import Value
from omnizmq.trace.events import EVENTS, Teller
from omnizmq.trace.facts import Fact

REQUEST = "demo-0123456789abcdef"
BOOT_NS = 5_000_000_000_000
"""Where the monotonic clock stands at the client's `asked`."""

CHAIN = "thinker,talker,code2wav"
SPEECH: dict[str, Value] = {
    "stages": CHAIN,
    "all_stages": CHAIN,
    "final_stages": "thinker,code2wav",
    "last_stage": "code2wav",
}
TEXT: dict[str, Value] = {
    "stages": "thinker",
    "all_stages": CHAIN,
    "final_stages": "thinker",
    "last_stage": "thinker",
}

_TELLERS = {event.name: event.by for event in EVENTS}


def ns(at_ms: float) -> int:
    return BOOT_NS + round(at_ms * 1e6)


def fact(
    at_ms: float,
    event: str,
    stage: str | None = None,
    detail: dict[str, Value] | None = None,
    *,
    attempt: int = 1,
    request_id: str = REQUEST,
) -> Fact:
    """One fact, by the owner that records such an event; a stage's replica is its number 0."""
    teller = _TELLERS.get(event, Teller.WORKER)
    owner = f"{stage}/0" if teller is Teller.WORKER else teller.value
    external_id = request_id.rpartition("-")[0]
    if event == "bound":
        detail = {"replica": f"{stage}/0"}
    return Fact(request_id, external_id, attempt, ns(at_ms), owner, event, stage, detail or {})


def edge(at_ms: float, source: str, target: str, chunks: int, first_ms: float, last_ms: float) -> Fact:
    detail: dict[str, Value] = {"to": target, "chunks": chunks, "bytes": chunks * 256}
    return fact(at_ms, "edge", source, detail | {"first_ns": ns(first_ms), "last_ns": ns(last_ms)})


def asked(plan: dict[str, Value] = SPEECH) -> list[Fact]:
    return [fact(0, "asked"), fact(1, "received", detail=plan)]


def bound(at_ms: float = 2, *stages: str, attempt: int = 1) -> list[Fact]:
    return [fact(at_ms, "bound", stage, attempt=attempt) for stage in stages or CHAIN.split(",")]


def registered(at_ms: float, *stages: str, attempt: int = 1) -> list[Fact]:
    """Submitted, and registered a millisecond later."""
    return [
        fact(at_ms + later, event, stage, attempt=attempt)
        for stage in stages
        for later, event in ((0, "submitted"), (1, "registered"))
    ]


def finished(at_ms: float, stage: str, outputs: int = 8) -> Fact:
    return fact(at_ms, "finished", stage, {"finish_reason": "stop", "outputs": outputs})


def started() -> list[Fact]:
    """A request for text and speech, up to where the thinker computes."""
    return [
        *asked(),
        *bound(),
        *registered(3, "code2wav", "talker"),
        *registered(5, "thinker"),
        fact(7, "input_ready", "thinker"),
        fact(8, "running", "thinker"),
    ]


def spoken() -> list[Fact]:
    """A request for text and speech, from asked to a good terminal at 200 ms."""
    return [
        *started(),
        fact(40, "first_output", "thinker"),
        fact(41, "input_ready", "talker"),
        fact(42, "running", "talker"),
        fact(60, "first_output", "talker"),
        fact(61, "input_ready", "code2wav"),
        fact(62, "running", "code2wav"),
        fact(80, "first_output", "code2wav"),
        fact(90, "output_ended", "thinker"),
        edge(91, "thinker", "talker", 8, 40.5, 88),
        finished(91, "thinker"),
        edge(150, "talker", "code2wav", 16, 60.5, 148),
        finished(150, "talker", outputs=0),
        fact(190, "output_ended", "code2wav"),
        finished(199, "code2wav", outputs=4),
        terminal(200),
    ]


def terminal(at_ms: float, reason: str = "stop", stage: str = "code2wav", **detail: Value) -> Fact:
    return fact(at_ms, "terminal", stage, {"finish_reason": reason, "usage_incomplete": "", **detail})


def redriven() -> list[Fact]:
    """The first attempt's talker fails, the second attempt speaks."""
    failure: dict[str, Value] = {
        "finish_reason": None,
        "outputs": 0,
        "error_code": "replica_lost",
        "error_message": "x",
    }
    second = [*bound(60, attempt=2), *registered(61, *CHAIN.split(","), attempt=2)]
    ended = [
        fact(at_ms, event, stage, {"finish_reason": "stop", "outputs": 1} if event == "finished" else None, attempt=2)
        for at_ms, stage in ((70, "thinker"), (80, "talker"), (90, "code2wav"))
        for event in ("input_ready", "running", "first_output", "finished")
    ]
    return [
        *started(),
        fact(40, "first_output", "thinker"),
        fact(50, "finished", "talker", failure),
        *second,
        *ended,
        fact(95, "terminal", "code2wav", {"finish_reason": "stop", "usage_incomplete": ""}, attempt=2),
    ]
