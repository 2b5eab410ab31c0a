"""Facts of requests as a Perfetto trace, which ui.perfetto.dev opens. Pure.

The deployment is a process with one track for its requests and one for each replica. On a replica's track a request is
a slice, cut into its phases; what overlaps gets tracks of its own below. Other facts are instants, and a flow leads
along each edge: from each chunk's departure to its arrival where chunks were traced one by one, else from the first one
to the consumer's readiness. Every slice bears the ids.

Messages and field numbers: https://perfetto.dev/docs/reference/trace-packet-proto.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b

from omnizmq.protocol import Value
from omnizmq.trace import phases, protobuf
from omnizmq.trace.events import REQUEST_PHASES, STAGE_PHASES
from omnizmq.trace.facts import Fact
from omnizmq.trace.phases import Run
from omnizmq.trace.timeline import Timeline, number, text

_MONOTONIC = 3  # BuiltinClock
_SEQUENCE = 1
_CLEARED = 1  # SequenceFlags: nothing before is referred to
_BEGIN, _END, _INSTANT = 1, 2, 3  # TrackEvent.Type
_EXPLICIT = 3  # ChildTracksOrdering
_STAND_IN_PID = 1  # a process track needs a number, and the facts name none

_REQUESTS = "requests"
_SLICES = {*STAGE_PHASES, *REQUEST_PHASES, "resumed", "finished", "cleaned"} - {"terminal"}
"""Facts that begin or end a slice, and so are no instants."""


def encode(requests: Sequence[Sequence[Fact]], *, deployment: str = "omnizmq", now_ns: int | None = None) -> bytes:
    """A trace of these requests, each given by its facts in any order, of one machine's boot.

    What has not ended lasts until `now_ns` (CLOCK_MONOTONIC; by default the latest fact) and says `ended: false`.
    """
    timelines = [Timeline(facts) for facts in requests if facts]
    until_ns = max([now_ns or 0, *(timeline.facts[-1].at_ns for timeline in timelines)])
    places: dict[str, list[_Visit]] = defaultdict(list)
    for timeline in timelines:
        for place, visit in _visits(timeline, until_ns):
            places[place].append(visit)
    first_ns = min((timeline.facts[0].at_ns for timeline in timelines), default=until_ns)
    return b"".join([_clock(first_ns), *_tracks(deployment, places, _order(timelines))])


# --- What happens on a track ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Event:
    """`flows` begin here or pass through; `ends` end here."""

    at_ns: int
    kind: int
    name: str = ""
    notes: Mapping[str, Value] = field(default_factory=dict)
    flows: Sequence[int] = ()
    ends: Sequence[int] = ()


class _Visit:
    """One request at one place: a slice with its phases, and instants."""

    def __init__(self, name: str, run: Run, notes: Mapping[str, Value], report: Mapping[str, Value]) -> None:
        self.events = [_Event(run.begin_ns, _BEGIN, name, notes)]
        for phase in run.phases:
            self.events.append(_Event(phase.begin_ns, _BEGIN, phase.name, {"since": phase.since}))
            self.events.append(_Event(phase.end_ns, _END))
        self.events.append(_Event(run.end_ns, _END, notes=report if run.ended else {"ended": False}))

    def began_ns(self, since: str) -> int | None:
        """When the phase began that this fact begins."""
        return next((event.at_ns for event in self.events if event.notes.get("since") == since), None)

    def end_flows(self, since: str, flows: Sequence[int]) -> None:
        """They lead to that phase."""
        self.events = [
            replace(event, ends=flows) if event.notes.get("since") == since else event for event in self.events
        ]

    def sort(self) -> None:
        """By time; slices stay nested, since they were put in their order."""
        self.events.sort(key=lambda event: event.at_ns)

    @property
    def begin_ns(self) -> int:
        return self.events[0].at_ns

    @property
    def end_ns(self) -> int:
        return self.events[-1].at_ns


def _visits(timeline: Timeline, until_ns: int) -> Iterator[tuple[str, _Visit]]:
    """Where the request was, the track of the requests first."""
    run = phases.request_run(timeline, until_ns)
    if run is None:
        return
    ids: dict[str, Value] = {
        "request_id": timeline.facts[0].request_id,
        "external_id": timeline.facts[0].external_id,
    }
    name = timeline.facts[0].external_id or timeline.facts[0].request_id
    end = timeline.end
    whole = _Visit(name, run, ids | {"attempts": timeline.attempt}, end.detail if end else {})
    stages = {
        (run.attempt, run.story.name): (run.story.who, _stage_visit(name, run, ids))
        for run in phases.stage_runs(timeline, until_ns)
        if run.story is not None
    }
    visits = {key: visit for key, (_, visit) in stages.items()}
    flows = _Flows(timeline, visits)
    for fact in timeline.facts:
        if fact.event not in _SLICES:
            visit = visits.get((fact.attempt, fact.stage or ""), whole) if _is_of_replica(fact) else whole
            visit.events.append(_instant(fact, flows))
    flows.lead(visits)
    for place, visit in [(_REQUESTS, whole), *stages.values()]:
        visit.sort()
        yield place, visit


def _stage_visit(name: str, run: Run, ids: Mapping[str, Value]) -> _Visit:
    story = run.story
    assert story is not None
    again = f" (attempt {run.attempt})" if run.attempt > 1 else ""
    notes: dict[str, Value] = {
        "attempt": run.attempt,
        "stage": story.name,
        "replica": story.replica,
        "engine_id": story.engine_id,
    }
    return _Visit(name + again, run, {**ids, **notes}, story.report)


def _is_of_replica(fact: Fact) -> bool:
    """Whether it belongs to the replica's track: what it told itself, and its end."""
    return fact.owner.startswith(f"{fact.stage}/") or fact.event in ("replica_lost", "left_behind")


def _instant(fact: Fact, flows: _Flows) -> _Event:
    """An instant, and for a chunk the flow that begins or ends with it."""
    name = fact.event if fact.stage is None else f"{fact.event} {fact.stage}"
    begins, ends = flows.at(fact)
    return _Event(fact.at_ns, _INSTANT, name, {"owner": fact.owner, **fact.detail}, begins, ends)


# --- Flows ---------------------------------------------------------------------------------------------------------


_Edge = tuple[int, str, str]
"""Attempt, producer, consumer."""


class _Flows:
    """The flows of one request. A flow that would have one end alone is left out."""

    def __init__(self, timeline: Timeline, visits: Mapping[tuple[int, str], _Visit]) -> None:
        self._timeline = timeline
        sent = {_chunk(fact) for fact in timeline.of_event("chunk_sent")}
        came = {_chunk(fact) for fact in timeline.of_event("chunk_came")}
        there = {chunk for chunk in sent & came if {(chunk[0], chunk[1]), (chunk[0], chunk[2])} <= visits.keys()}
        self._chunks = {chunk: self._id(*chunk) for chunk in there}

    def at(self, fact: Fact) -> tuple[Sequence[int], Sequence[int]]:
        """What begins, and what ends, with this fact."""
        if fact.event not in ("chunk_sent", "chunk_came"):
            return (), ()
        flow = self._chunks.get(_chunk(fact))
        here = () if flow is None else (flow,)
        return (here, ()) if fact.event == "chunk_sent" else ((), here)

    def lead(self, visits: Mapping[tuple[int, str], _Visit]) -> None:
        """Along those edges whose chunks were not traced: an instant at the first chunk, and the flow from it."""
        traced = {chunk[:3] for chunk in self._chunks}
        ends: dict[tuple[int, str], list[int]] = defaultdict(list)
        for (attempt, source, target), first_ns in self._first_sent().items():
            producer, consumer = visits.get((attempt, source)), visits.get((attempt, target))
            if producer is None or consumer is None:
                continue
            ready_ns = consumer.began_ns("input_ready")
            # A consumer that takes any input may have been ready before this edge had some.
            led = (attempt, source, target) not in traced and ready_ns is not None and ready_ns >= first_ns
            flows = [self._id(attempt, source, target, 0)] if led else []
            producer.events.append(_Event(first_ns, _INSTANT, f"first chunk to {target}", flows=flows))
            ends[attempt, target] += flows
        for key, flows in ends.items():
            visits[key].end_flows("input_ready", flows)

    def _first_sent(self) -> dict[_Edge, int]:
        """When the first chunk went over each edge, as far as its producer has said."""
        found: dict[_Edge, int] = {}
        for fact in self._timeline.of_event("edge"):
            first_ns, target = number(fact.detail, "first_ns"), text(fact.detail, "to")
            if first_ns and target and fact.stage:
                found[fact.attempt, fact.stage, target] = first_ns
        return found

    def _id(self, attempt: int, source: str, target: str, seq: int) -> int:
        name = f"{self._timeline.facts[0].request_id} {attempt} {source} {target} {seq}"
        return int.from_bytes(blake2b(name.encode(), digest_size=8).digest())


def _chunk(fact: Fact) -> tuple[int, str, str, int]:
    """Which chunk of which edge a chunk's fact is about."""
    stage = fact.stage or ""
    source, target = (
        (stage, text(fact.detail, "to")) if fact.event == "chunk_sent" else (text(fact.detail, "from"), stage)
    )
    return fact.attempt, source or "", target or "", number(fact.detail, "seq") or 0


# --- Tracks and packets --------------------------------------------------------------------------------------------


def _order(timelines: Iterable[Timeline]) -> dict[str, int]:
    """The stages in topological order, as the request tells it that knows most of them."""
    pipelines = sorted((timeline.pipeline for timeline in timelines), key=len, reverse=True)
    stages = dict.fromkeys(stage for pipeline in pipelines for stage in pipeline)
    return {stage: position for position, stage in enumerate(stages)}


def _tracks(deployment: str, places: Mapping[str, list[_Visit]], order: Mapping[str, int]) -> Iterator[bytes]:
    """All tracks with what is on them: the requests, then the replicas in the order of the pipeline."""

    def rank(place: str) -> tuple[int, str, int]:
        stage, _, replica = place.partition("/")
        position = -1 if place == _REQUESTS else order.get(stage, len(order))
        return position, stage, int(replica) if re.fullmatch(r"\d+", replica) else -1

    process = 1
    yield _process(process, deployment)
    uuid = process
    for place in sorted(places, key=rank):
        parent = process
        for lane, visits in enumerate(_lanes(places[place])):
            uuid += 1
            yield _track(uuid, parent, place if lane == 0 else f"{place} ({lane + 1})", uuid)
            for visit in visits:
                yield from (_packet(uuid, event) for event in visit.events)
            parent = uuid if lane == 0 else parent


def _lanes(visits: Iterable[_Visit]) -> list[list[_Visit]]:
    """Spread over as few lanes as it takes for none to overlap."""
    lanes: list[list[_Visit]] = []
    for visit in sorted(visits, key=lambda visit: visit.begin_ns):
        free = next((lane for lane in lanes if lane[-1].end_ns <= visit.begin_ns), None)
        if free is None:
            lanes.append([visit])
        else:
            free.append(visit)
    return lanes


def _clock(at_ns: int) -> bytes:
    """ClockSnapshot: the trace's own time is CLOCK_MONOTONIC."""
    clock = protobuf.uint(1, _MONOTONIC) + protobuf.uint(2, max(0, at_ns))
    snapshot = protobuf.message(1, clock) + protobuf.uint(2, _MONOTONIC)
    return _wrapped(protobuf.message(6, snapshot) + protobuf.uint(13, _CLEARED))


def _process(uuid: int, name: str) -> bytes:
    process = protobuf.uint(1, _STAND_IN_PID) + protobuf.text(6, name)
    descriptor = protobuf.uint(1, uuid) + protobuf.message(3, process) + protobuf.uint(11, _EXPLICIT)
    return _wrapped(protobuf.message(60, descriptor))


def _track(uuid: int, parent: int, name: str, rank: int) -> bytes:
    descriptor = protobuf.uint(1, uuid) + protobuf.text(2, name) + protobuf.uint(5, parent)
    descriptor += protobuf.uint(11, _EXPLICIT) + protobuf.uint(12, rank)
    return _wrapped(protobuf.message(60, descriptor))


def _packet(track: int, event: _Event) -> bytes:
    """A TracePacket with a TrackEvent."""
    fields = [protobuf.uint(9, event.kind), protobuf.uint(11, track)]
    if event.name:
        fields.append(protobuf.text(23, event.name))
    fields += [protobuf.message(4, note) for note in _notes(event.notes)]
    fields += [protobuf.fixed64(47, flow) for flow in event.flows]
    fields += [protobuf.fixed64(48, flow) for flow in event.ends]
    stamped = protobuf.uint(8, max(0, event.at_ns)) + protobuf.uint(58, _MONOTONIC)
    return _wrapped(stamped + protobuf.message(11, b"".join(fields)))


def _wrapped(packet: bytes) -> bytes:
    """A packet in its place in the trace."""
    return protobuf.message(1, packet + protobuf.uint(10, _SEQUENCE))


def _notes(notes: Mapping[str, Value]) -> Iterator[bytes]:
    """DebugAnnotations. What is None is left out."""
    for key, value in notes.items():
        name = protobuf.text(10, key)
        match value:
            case bool():
                yield name + protobuf.uint(2, value)
            case int():
                yield name + (protobuf.int64(4, value) if value < 1 << 63 else protobuf.uint(3, value))
            case float():
                yield name + protobuf.double(5, value)
            case str():
                yield name + protobuf.text(6, value)
