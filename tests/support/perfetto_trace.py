"""A Perfetto trace, decoded by Perfetto's own schema and checked by its rules."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as schema

Event = schema.TrackEvent


@dataclass
class Slice:
    name: str
    begin_ns: int
    notes: dict[str, Any]
    depth: int
    end_ns: int = -1


@dataclass
class Instant:
    name: str
    at_ns: int
    notes: dict[str, Any]


@dataclass
class Track:
    name: str
    parent: int
    rank: int
    slices: list[Slice] = field(default_factory=list)
    instants: list[Instant] = field(default_factory=list)

    def names(self, depth: int) -> list[str]:
        return [one.name for one in self.slices if one.depth == depth]

    def slice(self, name: str) -> Slice:
        (found,) = [one for one in self.slices if one.name == name]
        return found


@dataclass
class Decoded:
    """`flows`: the name of the event that each begins at, and of that where it ends, each with its track's."""

    process: str
    tracks: dict[str, Track]
    flows: list[tuple[tuple[str, str], tuple[str, str]]]


def decoded(data: bytes) -> Decoded:
    """What it holds. Fails on what Perfetto would drop or misplace."""
    trace = schema.Trace.FromString(data)
    trace.DiscardUnknownFields()
    assert trace.ByteSize() == len(data), "fields that the schema does not know"
    snapshot = trace.packet[0].clock_snapshot
    assert snapshot.primary_trace_clock == schema.BUILTIN_CLOCK_MONOTONIC
    assert [clock.clock_id for clock in snapshot.clocks] == [schema.BUILTIN_CLOCK_MONOTONIC]
    assert all(packet.trusted_packet_sequence_id for packet in trace.packet)
    by_uuid: dict[int, Track] = {}
    process: dict[int, str] = {}
    stacks: dict[int, list[Slice]] = {}
    latest: dict[int, int] = {}
    begins: dict[int, tuple[int, tuple[str, str]]] = {}
    ends: dict[int, tuple[int, tuple[str, str]]] = {}
    for packet in trace.packet[1:]:
        if packet.HasField("track_descriptor"):
            _describe(packet.track_descriptor, by_uuid, process)
            continue
        event, at_ns = packet.track_event, packet.timestamp
        assert packet.timestamp_clock_id == schema.BUILTIN_CLOCK_MONOTONIC
        track = by_uuid[event.track_uuid]  # described before
        assert at_ns >= latest.get(event.track_uuid, 0), f"time goes back on {track.name}"
        latest[event.track_uuid] = at_ns
        _take(event, at_ns, track, stacks.setdefault(event.track_uuid, []))
        here = (at_ns, (track.name, event.name))
        for flow in event.flow_ids:
            assert flow not in begins
            begins[flow] = here
        for flow in event.terminating_flow_ids:
            assert flow not in ends
            ends[flow] = here
    assert not any(stacks.values()), "a slice without its end"
    assert begins.keys() == ends.keys(), "a flow with one end"
    assert all(begins[flow][0] <= ends[flow][0] for flow in begins), "a flow back in time"
    assert len(process) == 1
    assert len({track.name for track in by_uuid.values()}) == len(by_uuid)
    tracks = {track.name: track for track in by_uuid.values()}
    return Decoded(*process.values(), tracks, [(begins[flow][1], ends[flow][1]) for flow in begins])


def _describe(descriptor: Any, by_uuid: dict[int, Track], process: dict[int, str]) -> None:
    assert descriptor.uuid not in by_uuid.keys() | process.keys() | {0}
    if descriptor.HasField("process"):
        assert descriptor.process.pid > 0
        process[descriptor.uuid] = descriptor.process.process_name
        return
    assert descriptor.parent_uuid in by_uuid.keys() | process.keys(), "a parent that was not described before"
    by_uuid[descriptor.uuid] = Track(descriptor.name, descriptor.parent_uuid, descriptor.sibling_order_rank)


def _take(event: Any, at_ns: int, track: Track, stack: list[Slice]) -> None:
    notes = {note.name: getattr(note, note.WhichOneof("value")) for note in event.debug_annotations}
    if event.type == Event.TYPE_INSTANT:
        track.instants.append(Instant(event.name, at_ns, notes))
    elif event.type == Event.TYPE_SLICE_BEGIN:
        track.slices.append(Slice(event.name, at_ns, notes, len(stack)))
        stack.append(track.slices[-1])
    else:
        assert event.type == Event.TYPE_SLICE_END
        ended = stack.pop()
        ended.end_ns = at_ns
        ended.notes |= notes
