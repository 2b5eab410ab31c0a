"""What a gate must do, said another way: totals that follow from what has happened, and commands that make up the
difference.

The gate in the package reacts to events one by one. This model keeps, for each request, the history of its edges and
of its engine, and after each event works out where everything ought to stand: how many chunks and outputs should be
out, how many credits back, whether the engine should be running, whether the stage should have reported. What is
missing is the prediction, for each destination in order. At last slots go to whoever counts most.

Of the ring it keeps totals: what each reader holds, and who stands in which line. Where in memory a slot lies is the
ledger's matter: a real one is driven by what the model decides.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from omnizmq import protocol as wire
from omnizmq.shm.ledger import Ledger, Slot
from omnizmq.shm.memory import SegmentGoneError
from omnizmq.shm.ring import RingError
from omnizmq.workers import messages as m
from omnizmq.workers.chunks import pack_arrays
from omnizmq.workers.engine import Chunk, EngineRequest, StageOutput
from omnizmq.workers.ring import Share

Commands = dict[str, list[Any]]
Key = tuple[str, int]
Peer = tuple[str, int]

INLINE = 65_536


def by_destination(commands: Iterable[object]) -> Commands:
    """Errors lose their messages: those are for people, and the transcripts' matter. Probes have no order."""
    sorted_out: Commands = defaultdict(list)
    for command in commands:
        match command:
            case m.ToRouter():
                sorted_out["router"].append(_plain(command.frame))
            case m.ToConsumer():
                sorted_out[f"consumer {command.target.replica}"].append(_plain(command.frame))
            case m.ToProducer():
                sorted_out[f"producer {command.source.replica}"].append(command.frame)
            case m.MeetConsumer():
                sorted_out[f"consumer {command.target.replica}"].append(command)
            case m.WriteSlot():
                for target, frame in command.sends:
                    written = (command.engine_id, command.slot, _whose(command.chunk), frame)
                    sorted_out[f"consumer {target.replica}"].append(written)
            case m.FreeSlot():
                sorted_out["slots"].append(command.slot)
            case m.DropPeer():
                sorted_out["sockets"].append(command)
            case m.ProbeEngine():
                sorted_out["probes"] = sorted([*sorted_out["probes"], command.engine_id])
            case m.FeedEngine():
                sorted_out["engine"].append((command.engine_id, command.source, described(command.chunk)))
            case _:
                sorted_out["engine"].append(command)
    return dict(sorted_out)


def _whose(chunk: Chunk) -> list[int]:
    """The very arrays of a chunk."""
    return [id(array) for array in chunk.content().values()]


def _plain(frame: msgspec.Struct) -> msgspec.Struct:
    error = getattr(frame, "error", None)
    if error is None:
        return frame
    return msgspec.structs.replace(frame, error=msgspec.structs.replace(error, message=""))


def described(chunk: Chunk, *, own: bool | None = None) -> object:
    """What can be compared: of each array its content, and whether it is in memory of its own."""
    arrays = [
        (name, array.dtype.str, array.shape, array.tobytes(), array.flags.owndata if own is None else own)
        for name, array in chunk.arrays.items()
    ]
    return dict(chunk.meta), arrays


def record(nbytes: int) -> int:
    """What a slot of so many bytes takes."""
    return 64 * (1 + (nbytes + 63) // 64)


class RingModel:
    """What each reader holds, and who waits for it."""

    def __init__(self, shares: Mapping[str, Share]) -> None:
        self.shares = shares
        self.ledger = Ledger(sum(share.capacity for share in shares.values()))
        self.met: dict[Peer, str] = {}
        self.readers: set[Peer] = set()
        self.cut: set[Peer] = set()  # whose connection broke
        self.holds: dict[Peer, dict[int, Slot]] = defaultdict(dict)
        self.lines: dict[Peer, list[Key]] = {}
        self.moved: list[Peer] = []  # of several lines that moved, the last one goes on first

    def reads(self, peer: Peer) -> bool:
        return peer in self.readers - self.cut

    def quota(self, peer: Peer) -> int:
        return self.shares[self.met[peer]].quota

    def total(self, peer: Peer) -> int:
        return sum(record(slot.nbytes) for slot in self.holds[peer].values())

    def fits(self, peer: Peer, nbytes: int) -> bool:
        size, quota = record(nbytes), self.quota(peer)
        spilled = any(slot.offset is None for slot in self.holds[peer].values())
        return self.total(peer) + size <= quota or (size > quota / 2 and not spilled)

    def may_write(self, key: Key, peer: Peer, nbytes: int) -> bool:
        line = self.lines.setdefault(peer, [])
        if (not line or line[0] == key) and self.fits(peer, nbytes):
            return True
        if key not in line:
            line.append(key)
        return False

    def take(self, key: Key, peers: Sequence[Peer], nbytes: int) -> Slot:
        slot = self.ledger.reserve(nbytes, peers)
        assert slot is not None
        if any(record(nbytes) > self.quota(peer) / 2 for peer in peers):
            assert slot.offset is None
        for peer in peers:
            self.holds[peer][slot.seq] = slot
            self.leave(key, peer)
        return slot

    def leave(self, key: Key, peer: Peer) -> None:
        if key in self.lines.get(peer, ()):
            self.lines[peer].remove(key)
            self.moved.append(peer)

    def waits(self, key: Key, peer: Peer) -> bool:
        return key in self.lines.get(peer, ())

    def admit(self, peer: Peer) -> None:
        if peer in self.met and self.ledger.capacity:
            self.readers.add(peer)
            self.ledger.admit(peer, self.quota(peer))

    def freed(self, peer: Peer, seqs: Iterable[int]) -> list[Slot]:
        """Slots that nobody holds any more."""
        gone = [slot for seq in seqs if (slot := self.holds[peer].pop(seq, None)) is not None]
        for slot in gone:
            self.ledger.release(peer, slot.seq)
        return [slot for slot in gone if not self.is_held(slot.seq)]

    def is_held(self, seq: int) -> bool:
        return any(seq in held for held in self.holds.values())

    def unwritten(self, seq: int) -> None:
        for held in self.holds.values():
            held.pop(seq, None)
        self.ledger.cancel(seq)
        self.moved += self.lines

    def reaped(self, peer: Peer) -> list[Slot]:
        gone = self.freed(peer, list(self.holds[peer]))
        self.ledger.drop(peer)
        self.readers.discard(peer)
        self.cut.discard(peer)
        self.met.pop(peer, None)
        self.lines.pop(peer, None)
        return gone

    def uses(self) -> list[wire.RingUse]:
        uses = []
        for stage, share in self.shares.items():
            peers = [peer for peer in self.met if self.met[peer] == stage]
            spilled = sum(self.ledger.spilled_for(peer) for peer in peers)
            uses.append(wire.RingUse(stage, share.capacity, sum(map(self.total, peers)) - spilled, spilled))
        return uses


@dataclass
class _Inflow:
    """An edge in: what came, what was fed, what was credited."""

    source: wire.Source
    came: list[object] = field(default_factory=list)  # as `described`
    whole: bool = False
    shut: bool = False
    fed: int = 0
    fed_end: bool = False
    taken: int = 0
    advance: int = 0
    credited: int = 0

    @property
    def listening(self) -> bool:
        return not (self.whole or self.shut)

    @property
    def counts_as_input(self) -> bool:
        return self.whole or bool(self.source.mode == "chunk" and self.came)

    @property
    def should_be_fed(self) -> int:
        return len(self.came) if self.source.mode == "chunk" or self.whole else 0

    @property
    def should_be_credited(self) -> int:
        if self.source.mode == "payload":
            return len(self.came)
        return max(self.taken, self.advance)


@dataclass
class _Outflow:
    """An edge out: what was made for it, how much the consumer has taken."""

    target: wire.Target
    made: list[Chunk] = field(default_factory=list)
    out: int = 0
    bytes: int = 0
    times: list[int] = field(default_factory=list)
    taken: int = 0
    over: bool = False  # the consumer was told of the end, or it closed
    blocked_at: int | None = None
    blocked_for: int = 0
    told: set[str] = field(default_factory=set)  # why it was blocked

    @property
    def relay(self) -> bool:
        return self.target.mode == "relay"

    @property
    def peer(self) -> Peer:
        return self.target.replica, self.target.incarnation

    @property
    def spent(self) -> bool:
        return not self.over and not self.relay and self.out - self.taken >= self.target.window

    @property
    def next(self) -> Chunk | None:
        """What may go, as far as credits say."""
        waiting = not (self.over or self.relay or self.spent) and self.out < len(self.made)
        return self.made[self.out] if waiting else None

    def count(self, now: int) -> wire.EdgeCount:
        first, last = (self.times[0], self.times[-1]) if self.times else (0, 0)
        blocked = self.blocked_for + (0 if self.blocked_at is None else now - self.blocked_at)
        return wire.EdgeCount(self.target.stage, self.out, self.bytes, first, last, blocked)


@dataclass
class _Reader:
    """The caller: all that was said to it, how much of that is out, and how much of it was read."""

    window: int
    window_bytes: int
    read: int
    said: list[tuple[wire.Content | None, bool]] = field(default_factory=list)
    out: int = 0
    told: bool = False  # that the request is paused
    since: int = 0  # of the pause, or the last credit

    @property
    def over(self) -> bool:
        return any(last for _, last in self.said[: self.out])

    @property
    def behind(self) -> bool:
        unread = self.said[max(0, self.read) : self.out]
        size = sum(len(content.text) for content, _ in unread if isinstance(content, wire.Text))
        return not self.over and (self.out - self.read >= self.window or size >= self.window_bytes)


@dataclass
class _Request:
    submit: wire.SubmitStage
    inflows: dict[str, _Inflow]
    outflows: dict[str, _Outflow]
    reader: _Reader | None
    submitted_at: int
    ready_at: int | None = None
    first_at: int | None = None
    engine_runs: bool = False
    queued: tuple[int, int] | None = None  # since when it waits for a slot, and as which
    unasked: bool = False
    yielded: bool = False
    active: int = 0  # when it last got something, or gave something
    asked: int = 0
    aborting: bool = False
    output_over: bool = False
    reason: str | None = None
    usage: dict[str, int | float] = field(default_factory=dict)
    note: str | None = None

    @property
    def input_ready(self) -> bool:
        return self.ready_at is not None

    @property
    def hungry(self) -> bool:
        return any(inflow.listening for inflow in self.inflows.values())

    @property
    def fed(self) -> int:
        return sum(inflow.fed + inflow.fed_end for inflow in self.inflows.values())


class GateModel:
    """A worker's requests, and how many events were too late to matter."""

    def __init__(
        self,
        stage: str,
        replica: str,
        incarnation: int,
        ready: str,
        targets: Sequence[str],
        shares: Mapping[str, Share] | None = None,
        *,
        slots: int = 64,
        priority_age_s: float = 5.0,
        reader_grace_s: float = 30.0,
    ) -> None:
        self.late = 0
        self.discarded = 0
        self.slots = slots
        self._age = round(priority_age_s * 1e9)
        self._grace = round(reader_grace_s * 1e9)
        self._queued = 0
        self.ring = RingModel(shares or {})
        self.requests: dict[Key, _Request] = {}
        self._me = (stage, replica, incarnation)
        self._needs = all if ready == "all" else any
        self._targets = set(targets)
        self._said: Commands = {}
        self._now = 0

    def predict(self, event: m.GateEvent, now: int) -> Commands:
        self._said, self._now = defaultdict(list), now
        match event:
            case m.RouterSent(wire.SubmitStage() as frame):
                self._submitted(frame)
            case m.Ticked():
                self._ticked()
            case m.RouterSent(wire.PeerLost() as frame):
                self._peer_gone((frame.replica, frame.incarnation), dead=True)
                self._said["slots"] += self.ring.reaped((frame.replica, frame.incarnation))
                self._said["sockets"].append(m.DropPeer(frame.replica, frame.incarnation))
            case m.PeerUnreachable():
                self._peer_gone((event.replica, event.incarnation), dead=False)
            case m.SlotUnwritten():
                self.ring.unwritten(event.slot.seq)
                request = self._request_of(event.engine_id)
                if request is not None and not request.aborting:
                    self._end_with_error(request, self._own("stage_error", retriable=False))
            case m.PeerSent(frame=wire.RingAnswer() as frame):
                if frame.refused is None:
                    self.ring.admit((event.replica, event.incarnation))
            case m.PeerSent(frame=wire.SlotsFreed() as frame):
                peer = (event.replica, event.incarnation)
                self._said["slots"] += self.ring.freed(peer, frame.slots)
                self.ring.moved.append(peer)
            case m.RouterSent(frame) | m.PeerSent(frame=frame):
                request = self.requests.get((frame.request_id, frame.attempt))  # type: ignore[union-attr]
                if isinstance(event, m.PeerSent) and frame.incarnation != event.incarnation:
                    self.late += 1
                elif request is None or request.aborting:
                    self.late += 1
                    if isinstance(frame, wire.ChunkFrame | wire.RingChunk):
                        self._shut_to_nobody(frame, event)
                elif isinstance(event, m.PeerSent):
                    self._peer_said(request, event)
                else:
                    self._router_said(request, frame)
            case _:
                self._engine_said(event)
        while self.ring.moved:
            line = self.ring.lines.get(self.ring.moved.pop())
            if line:
                self._settle(self.requests[line[0]])
        self._share_slots()
        return dict(self._said)

    # --- What happened ---------------------------------------------------------------------------------------------

    def _submitted(self, frame: wire.SubmitStage) -> None:
        if (frame.request_id, frame.attempt) in self.requests:
            self.late += 1
            return
        request = _Request(
            frame,
            {source.stage: _Inflow(source) for source in frame.sources},
            {target.stage: _Outflow(target) for target in frame.targets},
            _Reader(frame.window, frame.window_bytes, -frame.unread) if frame.final else None,
            self._now,
        )
        self.requests[(frame.request_id, frame.attempt)] = request
        for target in frame.targets:
            peer = (target.replica, target.incarnation)
            if target.mode != "relay" and target.stage in self.ring.shares and peer not in self.ring.met:
                self.ring.met[peer] = target.stage
                self._said[f"consumer {target.replica}"].append(m.MeetConsumer(target, self.ring.quota(peer)))
        self._tell_fact(request, "registered", self._now)
        names = ("prompt", "params", "original_prompt", "external_id", "priority", "traceparent")
        fields = {name: getattr(frame, name) for name in names}
        self._said["engine"].append(m.AddToEngine(EngineRequest(request_id=frame.engine_id, **fields)))
        self._settle(request)

    def _router_said(self, request: _Request, frame: object) -> None:
        if isinstance(frame, wire.AbortStage):
            request.aborting = True
            self._stands_back(request)
            self._leave_lines(request)
            self._said["engine"].append(m.AbortEngine(request.submit.engine_id))
            return
        if isinstance(frame, wire.OutputCredit):
            self._caller_read(request, frame.consumed)
            return
        assert isinstance(frame, wire.FeedStage)
        inflow = request.inflows.get(frame.source)
        if inflow is None or inflow.source.mode != "relay" or not inflow.listening:
            self.late += 1
            return
        inflow.came = [described(Chunk(each.meta)) for each in wire.decode_relay(frame.data)]
        inflow.whole = True
        self._settle(request)

    def _caller_read(self, request: _Request, consumed: int) -> None:
        reader = request.reader
        if reader is None:
            self.late += 1
            return
        reader.read, reader.since = max(reader.read, min(consumed, reader.out)), self._now
        self._settle(request)

    def _ticked(self) -> None:
        for request in list(self.requests.values()):
            reader = request.reader
            if request.aborting:
                continue
            if reader is not None and reader.told and self._now - reader.since >= self._grace:
                self._end_with_error(request, self._own("slow_reader", retriable=False))
                continue
            limit = self._silent_beyond(request)
            if limit is not None and self._now - request.asked >= limit:
                request.asked = self._now
                self._probe(request)
        for request in self.requests.values():
            request.unasked = request.unasked or request.engine_runs
            if request.yielded and not request.aborting:
                request.yielded = False
                self._settle(request)

    def _silent_beyond(self, request: _Request) -> int | None:
        """The time that has passed in silence on one of its edges, by which it has too."""
        if not request.engine_runs or request.hungry:
            return None
        limits = [round(each.target.input_timeout_s * 1e9) for each in request.outflows.values() if not each.over]
        return next((limit for limit in limits if self._now - request.active >= limit), None)

    def _is_idle(self, request: _Request, event: m.EngineIdle) -> None:
        if event.fed == request.fed:
            request.asked = 0
            request.active = max(request.active, event.since_ns)
            if self._silent_beyond(request) is not None:
                self._end_with_error(request, self._own("input_timeout", retriable=True))
                return
        if request.engine_runs:
            others_wait = any(each.queued for each in self.requests.values())
            request.yielded = event.fed == request.fed and request.hungry and others_wait
            request.unasked = not request.yielded
            self._settle(request)

    def _peer_said(self, request: _Request, event: m.PeerSent) -> None:
        frame, peer = event.frame, (event.replica, event.incarnation)
        if isinstance(frame, wire.EdgeCredit | wire.EdgeClosed):
            outflow = request.outflows.get(frame.target)
            if outflow is None or outflow.relay or (outflow.target.replica, outflow.target.incarnation) != peer:
                self.late += 1
                return
            if isinstance(frame, wire.EdgeClosed):
                outflow.over = True
                self.ring.leave(self._names(request), peer)
            else:
                outflow.taken = max(outflow.taken, min(frame.consumed, outflow.out))
            self._settle(request)
            return
        inflow = request.inflows.get(frame.source)  # type: ignore[union-attr]
        if (
            inflow is None
            or (inflow.source.replica, inflow.source.incarnation) != peer
            or not inflow.listening
            or inflow.source.mode == "relay"
        ):
            self.late += 1
        else:
            self._producer_said(request, inflow, frame, event.data)

    def _producer_said(self, request: _Request, inflow: _Inflow, frame: object, data: object) -> None:
        arrived, source = len(inflow.came), inflow.source
        match frame:
            case wire.ChunkFrame() | wire.RingChunk() if frame.seq <= arrived:
                self.late += 1
            case wire.RingChunk() if frame.seq == arrived + 1 and not isinstance(data, np.ndarray):
                gone = isinstance(data, SegmentGoneError)
                mine = not (gone or data is None or isinstance(data, RingError))
                stage, replica = self._me[:2] if mine else (source.stage, source.replica)
                error = wire.ErrorInfo("replica_lost" if gone else "stage_error", "", stage, replica, gone)
                self._end_with_error(request, error)
            case wire.ChunkFrame() | wire.RingChunk() if frame.seq == arrived + 1:
                waiting_for_another = not self._needs(
                    [each.counts_as_input or each is inflow for each in request.inflows.values()]
                )
                by_ring = isinstance(frame, wire.RingChunk)
                arrays = {"rows": data} if by_ring else {}
                waiting = waiting_for_another and not request.input_ready
                own = by_ring and (source.mode == "payload" or waiting)
                inflow.came.append(described(Chunk(frame.meta, arrays), own=own))  # type: ignore[arg-type]
                if source.mode == "chunk" and waiting_for_another and not request.input_ready:
                    inflow.advance += 1
                self._settle(request)
            case wire.EdgeEnd() if frame.total == arrived:
                inflow.whole = True
                self._settle(request)
            case wire.EdgeFailed():
                inflow.shut = True
                self._end_with_error(request, frame.error)
            case _:
                self._end_with_error(
                    request, wire.ErrorInfo("incomplete_input", "", source.stage, source.replica, True)
                )

    def _engine_said(self, event: m.GateEvent) -> None:
        engine_id = event.output.request_id if isinstance(event, m.EngineMade) else event.engine_id  # type: ignore[union-attr]
        request = self._request_of(engine_id)
        if request is None:
            self.late += not isinstance(event, m.EngineAborted)
        elif isinstance(event, m.EngineAborted):
            if request.aborting:
                for output in event.outputs:
                    self._deliver_rest(request, output)
                self._report(request, "abort", None)
        elif isinstance(event, m.EngineMade):
            self._made(request, event)
        elif request.aborting:
            self.late += 1
        elif isinstance(event, m.EngineTook):
            request.inflows[event.source].taken += event.chunks
            self._settle(request)
        elif isinstance(event, m.EngineRan):
            self._tell_fact(request, "running", event.at_ns)
        elif isinstance(event, m.EngineIdle):
            self._is_idle(request, event)
        else:
            assert isinstance(event, m.EngineFailed)
            self._end_with_error(request, self._own(event.error.code, retriable=event.error.retriable))

    def _request_of(self, engine_id: str) -> _Request | None:
        return next((each for each in self.requests.values() if each.submit.engine_id == engine_id), None)

    def _made(self, request: _Request, event: m.EngineMade) -> None:
        output = event.output
        substance = output.content is not None or any(output.chunks.values())
        if request.reason is not None:
            self.late += 1
        elif set(output.chunks) - self._targets or (request.output_over and substance):
            if not request.aborting:
                self._end_with_error(request, self._own("stage_error", retriable=False))
        elif request.aborting:
            self._deliver_rest(request, output)
            request.active = self._now
        elif output.error is not None:
            self._end_with_error(request, self._own(output.error.code, retriable=output.error.retriable))
        else:
            request.active = self._now
            if substance and request.first_at is None:
                request.first_at = self._now
                self._tell_fact(request, "first_output", event.at_ns)
            self._take_over(request, output)
            self._settle(request)

    def _take_over(self, request: _Request, output: StageOutput) -> None:
        over = output.ended or output.finish_reason is not None
        self._say(request, output, last=over and not request.output_over)
        for stage, outflow in request.outflows.items():
            if not (outflow.over or request.output_over):
                outflow.made += output.chunks.get(stage, ())
        request.output_over = request.output_over or over
        request.usage.update(output.usage)
        request.note = output.note or request.note
        request.reason = output.finish_reason

    def _peer_gone(self, peer: tuple[str, int], *, dead: bool) -> None:
        if not dead and peer in self.ring.met:
            self.ring.cut.add(peer)
        for request in list(self.requests.values()):
            ins = [each for each in request.inflows.values() if each.listening and each.source.mode != "relay"]
            ins = [each for each in ins if (each.source.replica, each.source.incarnation) == peer]
            outs = [each for each in request.outflows.values() if not each.over and not each.relay]
            outs = [each for each in outs if (each.target.replica, each.target.incarnation) == peer]
            for inflow in ins:
                inflow.shut = True
            for outflow in outs:
                outflow.over = True
            if request.aborting:
                continue
            if ins or (outs and not dead):
                stage = ins[0].source.stage if ins else outs[0].target.stage
                self._end_with_error(request, wire.ErrorInfo("replica_lost", "", stage, peer[0], True))
            elif outs:
                self._settle(request)

    # --- What follows ----------------------------------------------------------------------------------------------

    def _settle(self, request: _Request) -> None:
        """Make up the difference between how things stand and how they ought to."""
        self._deliver(request)
        for stage, inflow in request.inflows.items():
            self._feed(request, stage, inflow)
        if request.reason is not None:
            self._shut_inflows(request)
        for stage, outflow in request.outflows.items():
            if outflow.relay:
                self._relay(request, stage, outflow)
            else:
                self._send(request, outflow)
                self._block(request, outflow)
        reader = request.reader
        if reader is not None and reader.behind != reader.told:
            reader.told, reader.since = reader.behind, self._now
            paused = wire.StagePaused(*self._names(request), self._me[2], reader.told, self._now)
            self._said["router"].append(paused)
        delivered = reader is None or reader.over
        if request.reason is not None and delivered and all(outflow.over for outflow in request.outflows.values()):
            self._report(request, request.reason, None)
            return
        if not request.input_ready and (not request.inflows or self._needs(self._inputs(request))):
            request.ready_at = self._now
            self._tell_fact(request, "input_ready", self._now)
        if not self._is_able(request):
            if request.engine_runs:
                self._said["engine"].append(m.HoldEngine(request.submit.engine_id))
            self._stands_back(request)
        elif not request.engine_runs and request.queued is None:
            self._queued += 1
            request.queued = (self._now, self._queued)

    def _is_able(self, request: _Request) -> bool:
        blocked = any(self._is_blocked(request, outflow) for outflow in request.outflows.values())
        behind = request.reader is not None and request.reader.behind
        over = request.reason is not None or request.yielded
        return request.input_ready and not (blocked or behind or over)

    def _stands_back(self, request: _Request) -> None:
        request.engine_runs = request.unasked = False
        request.queued = None

    def _share_slots(self) -> None:
        """To those that count most now; where that leaves some waiting, the others are asked if they need theirs."""
        free = self.slots - sum(request.engine_runs for request in self.requests.values())
        waiting = [request for request in self.requests.values() if request.queued is not None]
        waiting.sort(key=self._counts, reverse=True)
        for request in waiting[:free]:
            request.engine_runs = request.unasked = True
            request.queued = None
            request.active = self._now
            self._said["engine"].append(m.RunEngine(request.submit.engine_id))
        if waiting[free:]:
            for request in self.requests.values():
                if request.unasked and request.hungry:
                    self._probe(request)
                request.unasked = False

    def _counts(self, request: _Request) -> tuple[int, int]:
        assert request.queued is not None
        since, number = request.queued
        return request.submit.priority * self._age + (self._now - since), -number

    def _probe(self, request: _Request) -> None:
        self._said["probes"] = sorted([*self._said["probes"], request.submit.engine_id])

    def _inputs(self, request: _Request) -> list[bool]:
        return [each.counts_as_input for each in request.inflows.values()]

    def _feed(self, request: _Request, stage: str, inflow: _Inflow) -> None:
        for chunk in inflow.came[inflow.fed : inflow.should_be_fed]:
            request.yielded, request.active = False, self._now
            self._said["engine"].append((request.submit.engine_id, stage, chunk))
        inflow.fed = max(inflow.fed, inflow.should_be_fed)
        if inflow.whole and not inflow.fed_end:
            inflow.fed_end = True
            request.yielded, request.active = False, self._now
            self._said["engine"].append(m.EndEngineInput(request.submit.engine_id, stage))
        due = inflow.should_be_credited
        if due > inflow.credited and not inflow.shut and inflow.source.mode != "relay":
            inflow.credited = due
            frame = wire.EdgeCredit(*self._names(request), self._me[2], self._me[0], due)
            self._said[f"producer {inflow.source.replica}"].append(frame)

    def _block(self, request: _Request, outflow: _Outflow) -> None:
        """Since when it is blocked, and the first time for each cause."""
        if not self._is_blocked(request, outflow):
            outflow.blocked_for += 0 if outflow.blocked_at is None else self._now - outflow.blocked_at
            outflow.blocked_at = None
            return
        outflow.blocked_at = self._now if outflow.blocked_at is None else outflow.blocked_at
        key, peer = self._names(request), outflow.peer
        why = "credit"
        if self.ring.waits(key, peer):
            why = "ring" if self.ring.lines[peer][0] == key else "line"
        if why in outflow.told:
            return
        outflow.told.add(why)
        detail = {"to": outflow.target.stage, "replica": peer[0], "why": why, "sent": outflow.out}
        detail["unconsumed"] = outflow.out - outflow.taken
        if why != "credit":
            detail |= {"held_bytes": self.ring.total(peer), "quota_bytes": self.ring.quota(peer)}
        self._tell_fact(request, "parked", self._now, detail)

    def _is_blocked(self, request: _Request, outflow: _Outflow) -> bool:
        return not outflow.over and (outflow.spent or self.ring.waits(self._names(request), outflow.peer))

    def _send(self, request: _Request, outflow: _Outflow) -> None:
        """Whatever may go on this edge, and with it what other edges can take of the very same chunk."""
        while (chunk := outflow.next) is not None:
            nbytes = _slot_bytes(chunk)
            if nbytes <= INLINE or not self.ring.reads(outflow.peer):
                frame = wire.ChunkFrame(
                    *self._from(request), self._count(outflow, chunk), dict(chunk.meta), pack_arrays(chunk)
                )
                self._said[f"consumer {outflow.target.replica}"].append(frame)
            elif not self._write(request, outflow, chunk, nbytes):
                break
        if request.output_over and not outflow.over and outflow.out == len(outflow.made):
            outflow.over = True
            end = wire.EdgeEnd(*self._from(request), outflow.out)
            self._said[f"consumer {outflow.target.replica}"].append(end)

    def _write(self, request: _Request, outflow: _Outflow, chunk: Chunk, nbytes: int) -> bool:
        key = self._names(request)
        able = [each for each in request.outflows.values() if each.next is chunk and self.ring.reads(each.peer)]
        going = [each for each in able if self.ring.may_write(key, each.peer, nbytes)]
        if going:
            slot = self.ring.take(key, [each.peer for each in going], nbytes)
            shapes = [wire.ArrayShape(name, each.dtype.str, list(each.shape)) for name, each in chunk.arrays.items()]
            for each in going:
                seq = self._count(each, chunk)
                place = (slot.seq, slot.offset, slot.nbytes, None)
                frame = wire.RingChunk(*self._from(request), seq, dict(chunk.meta), shapes, *place)
                written = (request.submit.engine_id, slot, _whose(chunk), frame)
                self._said[f"consumer {each.target.replica}"].append(written)
        return outflow in going

    def _count(self, outflow: _Outflow, chunk: Chunk) -> int:
        outflow.out += 1
        outflow.bytes += chunk.nbytes
        outflow.times.append(self._now)
        return outflow.out

    def _relay(self, request: _Request, stage: str, outflow: _Outflow) -> None:
        if outflow.over or not request.output_over:
            return
        frames = [
            wire.ChunkFrame(*self._from(request), self._count(outflow, chunk), dict(chunk.meta), pack_arrays(chunk))
            for chunk in outflow.made
        ]
        outflow.over = True
        content = wire.RelayContent(*self._names(request), self._me[2], stage, wire.encode_relay(frames))
        self._said["router"].append(content)

    def _say(self, request: _Request, output: StageOutput, *, last: bool) -> None:
        if request.reader is None or (output.content is None and not last):
            return
        assert output.content is None or isinstance(output.content, str)
        content = None if output.content is None else wire.Text(output.content)
        request.reader.said.append((content, last))
        self._deliver(request)

    def _deliver(self, request: _Request) -> None:
        reader = request.reader
        while reader is not None and not reader.behind and reader.out < len(reader.said):
            content, last = reader.said[reader.out]
            reader.out += 1
            frame = wire.Output(*self._names(request), self._me[2], reader.out, content, last, self._now)
            self._said["router"].append(frame)

    def _deliver_rest(self, request: _Request, output: StageOutput) -> None:
        request.usage.update(output.usage)
        if not request.output_over:
            self._say(request, output, last=False)

    def _shut_to_nobody(self, frame: wire.ChunkFrame | wire.RingChunk, event: m.PeerSent) -> None:
        closed = wire.EdgeClosed(frame.request_id, frame.attempt, self._me[2], self._me[0])
        self._said[f"producer {event.replica}"].append(closed)

    def _shut_inflows(self, request: _Request) -> None:
        for inflow in request.inflows.values():
            if inflow.listening and inflow.source.mode != "relay":
                inflow.shut = True
                frame = wire.EdgeClosed(*self._names(request), self._me[2], self._me[0])
                self._said[f"producer {inflow.source.replica}"].append(frame)

    def _end_with_error(self, request: _Request, error: wire.ErrorInfo) -> None:
        error = msgspec.structs.replace(error, message="")
        for outflow in request.outflows.values():
            if not outflow.over and not outflow.relay:
                failed = wire.EdgeFailed(*self._from(request), error)
                self._said[f"consumer {outflow.target.replica}"].append(failed)
        self._shut_inflows(request)
        self._said["engine"].append(m.AbortEngine(request.submit.engine_id))
        self._report(request, None, error)

    def _report(self, request: _Request, reason: str | None, error: wire.ErrorInfo | None) -> None:
        edges = [outflow.count(self._now) for outflow in request.outflows.values()]
        reader = request.reader
        if reader is not None:
            self.discarded += len(reader.said) - reader.out
        report = wire.StageFinished(
            *self._names(request),
            self._me[2],
            reason,
            error,
            self._times(request) | request.usage,
            request.note,
            0 if reader is None else reader.out,
            edges,
            self._now,
        )
        self._said["router"].append(report)
        del self.requests[self._names(request)]
        self._leave_lines(request)

    def _times(self, request: _Request) -> dict[str, int | float]:
        times: dict[str, int | float] = {"stage_s": _seconds(self._now - request.submitted_at)}
        if request.ready_at is not None:
            times["input_wait_s"] = _seconds(request.ready_at - request.submitted_at)
            if request.first_at is not None:
                times["first_output_s"] = _seconds(request.first_at - request.ready_at)
        return times

    def _leave_lines(self, request: _Request) -> None:
        for outflow in request.outflows.values():
            self.ring.leave(self._names(request), outflow.peer)

    def _tell_fact(self, request: _Request, fact: str, at_ns: int, detail: dict[str, Any] | None = None) -> None:
        self._said["router"].append(wire.StageFact(*self._names(request), self._me[2], fact, at_ns, detail or {}))

    def _own(self, code: str, *, retriable: bool) -> wire.ErrorInfo:
        return wire.ErrorInfo(code, "", self._me[0], self._me[1], retriable)

    def _names(self, request: _Request) -> Key:
        return request.submit.request_id, request.submit.attempt

    def _from(self, request: _Request) -> tuple[str, int, int, str]:
        return (*self._names(request), self._me[2], self._me[0])


def _seconds(ns: int) -> float:
    return round(ns / 1e9, 6)


def _slot_bytes(chunk: Chunk) -> int:
    """The arrays one after the other, each from a multiple of 64 on."""
    end = 0
    for array in chunk.arrays.values():
        end = (end + 63) // 64 * 64 + array.nbytes
    return end
