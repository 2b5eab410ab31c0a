"""Every event that a fact may tell of, and all that is known of it beforehand: one row each (T1).

A fact is one record; its event is what happened. Whoever treats some events in a way of their own (steps of a stage,
boundaries, phases, what begins and ends a request) reads it here, so that another event is another row. docs/tracing.md
shows the same table to users. Pure data; knows nothing but its own words.

In a detail, `..._ns` is a moment of CLOCK_MONOTONIC, unless `durations` names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Teller(StrEnum):
    """Who records an event."""

    CLIENT = "client"
    ROUTER = "router"
    WORKER = "worker"  # the fact's owner is its replica
    TRACE = "trace"  # a reader of the store


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """`detail`: what its facts may say besides, key by key; `usage_NAME` stands for any key that begins so."""

    name: str
    by: Teller
    says: str
    detail: Mapping[str, str] = field(default_factory=dict)
    stage: bool = False
    """Its facts name a stage, in one attempt."""
    reported: bool = False
    """It comes to the router in a frame `StageFact`, which has no other meaning."""
    step: bool = False
    """What every stage goes through, in the order of the table."""
    boundary: bool = False
    """What a request passes on its way, in the order of the table."""
    begins: bool = False
    """A request may begin with it."""
    ends: bool = False
    """It ends a request."""
    each: bool = False
    """One for every chunk or output, so there may be any number of them."""
    contents: bool = False
    """Its detail quotes what a caller said or got."""
    phase: str | None = None
    """What its stage is about after it."""
    request_phase: str | None = None
    """What its request is about after it."""
    durations: tuple[str, ...] = ()
    """The keys of its detail that end like a moment and are a length of time."""


EVENTS = (
    Event(
        name="asked",
        by=Teller.CLIENT,
        says="its `generate` was called: time zero of the request",
        boundary=True,
        begins=True,
        request_phase="arrives",
    ),
    Event(
        name="received",
        by=Teller.ROUTER,
        says="it took the request in",
        detail={
            "stages": "names in topological order, with commas between them",
            "all_stages": "the same of the whole pipeline, planned or not",
            "final_stages": "of `stages`, those whose output the caller gets",
            "last_stage": "of `final_stages`, the last",
            "edges": "`from>to` of the plan, with commas between them; without them a chain is assumed",
            "modalities": "asked for; empty: all",
            "deadline_s": "where it is set",
            "priority": "where it is set",
            "traceparent": "where it is set",
        },
        boundary=True,
        begins=True,
        request_phase="is admitted",
    ),
    Event(
        name="refused",
        by=Teller.ROUTER,
        says="it did not take the request in",
        detail={"code": "the error's", "message": "the error's"},
        begins=True,
        ends=True,
    ),
    Event(
        name="prompt",
        by=Teller.ROUTER,
        says="with `router.trace_contents` alone",
        detail={
            "kind": "text, messages or tokens",
            "text": "its beginning",
            "chars": "how long the text is",
            "tokens": "how many there are",
        },
        contents=True,
    ),
    Event(
        name="queued",
        by=Teller.ROUTER,
        says="no replica had room",
        detail={
            "why": "no_replica, starting (its replicas load), drained, full, behind (others wait for the same places)",
            "lacks": "the stage that has none for it",
            "replicas": "that stage's, in words",
            "ahead": "how many wait before it for the same places",
        },
        boundary=True,
        request_phase="queued",
    ),
    Event(
        name="bound",
        by=Teller.ROUTER,
        says="a stage's replica was chosen",
        detail={"replica": "which"},
        stage=True,
        step=True,
        boundary=True,
        phase="waits for submission",
        request_phase="runs",
    ),
    Event(
        name="submitted",
        by=Teller.ROUTER,
        says="it sent the replica the request",
        stage=True,
        step=True,
        boundary=True,
        phase="waits for registration",
    ),
    Event(
        name="registered",
        by=Teller.WORKER,
        says="it holds the request",
        stage=True,
        reported=True,
        step=True,
        boundary=True,
        phase="waits for input",
    ),
    Event(
        name="input_ready",
        by=Teller.WORKER,
        says="the input that its stage needs to begin has come",
        stage=True,
        reported=True,
        step=True,
        boundary=True,
        phase="waits for slot",
    ),
    Event(
        name="running",
        by=Teller.WORKER,
        says="its engine was first asked to compute the request",
        stage=True,
        reported=True,
        step=True,
        boundary=True,
        phase="runs without output",
    ),
    Event(
        name="first_output",
        by=Teller.WORKER,
        says="its engine gave the first output or chunk",
        stage=True,
        reported=True,
        step=True,
        boundary=True,
        phase="gives output",
    ),
    Event(
        name="published",
        by=Teller.ROUTER,
        says="it sent the first output of a final stage to the caller",
        stage=True,
        boundary=True,
    ),
    Event(
        name="consumed",
        by=Teller.ROUTER,
        says="the first credit for a final stage came: its caller reads",
        detail={"outputs": "how many it had read"},
        stage=True,
    ),
    Event(
        name="parked",
        by=Teller.WORKER,
        says="an edge has no credit or no room, so the stage may not go on; once for each edge and cause",
        detail={
            "to": "the consumer",
            "replica": "the consumer's",
            "why": "credit (its window is full), ring (it holds its whole quota), line (others wait for room before)",
            "sent": "chunks",
            "unconsumed": "chunks",
            "held_bytes": "of a ring",
            "quota_bytes": "of a ring",
        },
        stage=True,
        reported=True,
    ),
    Event(
        name="paused",
        by=Teller.WORKER,
        says="its caller has to read before the stage goes on; the first time alone",
        stage=True,
        phase="paused",
    ),
    Event(
        name="resumed",
        by=Teller.WORKER,
        says="the caller has read, so the stage goes on; the first time alone",
        stage=True,
    ),
    Event(
        name="chunk_sent",
        by=Teller.WORKER,
        says="with `router.trace_chunks` alone",
        detail={"to": "the consumer", "seq": "the chunk's number on its edge", "bytes": "the chunk's"},
        stage=True,
        reported=True,
        each=True,
    ),
    Event(
        name="chunk_came",
        by=Teller.WORKER,
        says="with `router.trace_chunks` alone",
        detail={"from": "the producer", "seq": "the chunk's number on its edge"},
        stage=True,
        reported=True,
        each=True,
    ),
    Event(
        name="output",
        by=Teller.ROUTER,
        says="with `router.trace_contents` alone",
        detail={
            "kind": "text or audio",
            "text": "its beginning",
            "chars": "how long the text is",
            "bytes": "of sound",
            "sample_rate": "of sound",
        },
        stage=True,
        each=True,
        contents=True,
    ),
    Event(
        name="output_ended",
        by=Teller.WORKER,
        says="a final stage's output has ended",
        stage=True,
        step=True,
        boundary=True,
        phase="report awaited",
    ),
    Event(
        name="delivered",
        by=Teller.ROUTER,
        says="it sent the last output of a final stage to the caller",
        stage=True,
        boundary=True,
    ),
    Event(
        name="edge",
        by=Teller.WORKER,
        says="what its stage sent over one edge, told at its end",
        detail={
            "to": "the consumer",
            "chunks": "how many",
            "bytes": "how many",
            "first_ns": "when the first went; 0: none did",
            "last_ns": "when the last went; 0: none did",
            "parked_ns": "for how long in all the edge kept the stage from going on",
        },
        stage=True,
        durations=("parked_ns",),
    ),
    Event(
        name="finished",
        by=Teller.WORKER,
        says="the stage's own report of its end, good or bad",
        detail={
            "finish_reason": "stop, length, abort or error",
            "outputs": "for the caller",
            "usage_NAME": "what its engine counted: tokens, samples, …",
            "note": "what its engine remarks, such as why there is no output",
            "error_code": "where it failed",
            "error_message": "where it failed",
            "error_stage": "where it failed: whose error it was, its own or that of an input",
        },
        stage=True,
        step=True,
        boundary=True,
    ),
    Event(
        name="withheld",
        by=Teller.ROUTER,
        says="all outputs are complete; the terminal waits for a stage's report",
        detail={"stages": "those whose report is awaited, with commas between them"},
        boundary=True,
        request_phase="terminal withheld",
    ),
    Event(
        name="abort_asked",
        by=Teller.ROUTER,
        says="it began to abort the request",
        detail={"why": "caller, operator (another client asked), or `disconnect: …`"},
        boundary=True,
        request_phase="aborts",
    ),
    Event(
        name="replica_lost",
        by=Teller.ROUTER,
        says="the replica that a stage was bound to died before the request had ended",
        detail={"replica": "which", "reason": "how it died"},
        stage=True,
    ),
    Event(
        name="redriven",
        by=Teller.ROUTER,
        says="another attempt begins; its facts bear its number",
        detail={"why": "what the attempt before was lost to", "code": "the error's"},
        request_phase="is admitted again",
    ),
    Event(
        name="left_behind",
        by=Teller.ROUTER,
        says="an aborted stage did not confirm in time",
        detail={"replica": "which"},
        stage=True,
    ),
    Event(
        name="last_output",
        by=Teller.ROUTER,
        says="the last output of a stage that was aborted, or gave some and not its end; told when the request ended",
        detail={"outputs": "how many went to the caller"},
        stage=True,
    ),
    Event(
        name="terminal",
        by=Teller.ROUTER,
        says="the one end was sent to the caller",
        detail={
            "finish_reason": "stop, length, abort or error",
            "usage_incomplete": "stages whose usage is missing, with commas between them",
            "error_code": "where it failed",
            "error_stage": "where it failed in a stage",
            "error_replica": "where it failed in a stage",
            "error_message": "where it failed",
        },
        stage=True,
        ends=True,
        request_phase="cleans up",
    ),
    Event(
        name="cleaned",
        by=Teller.ROUTER,
        says="every stage of every attempt has reported, was lost, or was left behind",
    ),
    Event(
        name="dropped",
        by=Teller.TRACE,
        says="rows were lost while the request ran, its own or others'; no record, it is added by who reads the trace",
        detail={"rows": "how many", "why": "what kept them from being stored"},
    ),
)
"""In the order in which a request usually meets them."""

STEPS = tuple(event.name for event in EVENTS if event.step)
BOUNDARIES = tuple(event.name for event in EVENTS if event.boundary)
REPORTED = frozenset(event.name for event in EVENTS if event.reported)
BEGINS = tuple(event.name for event in EVENTS if event.begins)
ENDS = tuple(event.name for event in EVENTS if event.ends)
EACH = frozenset(event.name for event in EVENTS if event.each)
CONTENTS = frozenset(event.name for event in EVENTS if event.contents)
STAGE_PHASES = {event.name: event.phase for event in EVENTS if event.phase}
REQUEST_PHASES = {event.name: event.request_phase for event in EVENTS if event.request_phase}
DURATIONS = frozenset(key for event in EVENTS for key in event.durations)


def is_moment(key: str) -> bool:
    """Whether that key of a detail is a moment of CLOCK_MONOTONIC, in nanoseconds."""
    return key.endswith("_ns") and key not in DURATIONS
