"""What a gate must do, said another way: totals that follow from what has happened, and commands that make up the
difference.

The gate in the package reacts to events one by one. This model keeps, for each request, the history of its edges and
of its engine, and after each event works out where everything ought to stand: how many chunks should be out, how many
credits back, whether the engine should be running, whether the stage should have reported. What is missing is the
prediction, for each destination in order.

Of the ring it keeps totals: what each reader holds, and who stands in which line. Where in memory a slot lies is the
ledger's matter: a real one is driven by what the model decides.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

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

Commands = dict[str, list[object]]
Key = tuple[str, int]
Peer = tuple[str, int]

INLINE = 65_536


def by_destination(commands: Iterable[object]) -> Commands:
    """Errors lose their messages: those are for people, and the transcripts' matter."""
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
        self.holds: dict[Peer, dict[int, Slot]] = defaultdict(dict)
        self.lines: dict[Peer, list[Key]] = {}
        self.moved: list[Peer] = []  # of several lines that moved, the last one goes on first

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

    def count(self) -> wire.EdgeCount:
        first, last = (self.times[0], self.times[-1]) if self.times else (0, 0)
        return wire.EdgeCount(self.target.stage, self.out, self.bytes, first, last)


@dataclass
class _Request:
    submit: wire.SubmitStage
    inflows: dict[str, _Inflow]
    outflows: dict[str, _Outflow]
    input_ready: bool = False
    engine_runs: bool = False
    aborting: bool = False
    first: bool = False
    output_over: bool = False
    outputs: int = 0
    reason: str | None = None
    usage: dict[str, int | float] = field(default_factory=dict)
    note: str | None = None


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
    ) -> None:
        self.late = 0
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
                if request is None or request.aborting:
                    self.late += 1
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
        )
        self.requests[(frame.request_id, frame.attempt)] = request
        for target in frame.targets:
            peer = (target.replica, target.incarnation)
            if target.mode != "relay" and target.stage in self.ring.shares and peer not in self.ring.met:
                self.ring.met[peer] = target.stage
                self._said[f"consumer {target.replica}"].append(m.MeetConsumer(target, self.ring.quota(peer)))
        self._tell_fact(request, "registered", self._now)
        names = ("prompt", "params", "original_prompt", "external_id", "priority")
        fields = {name: getattr(frame, name) for name in names}
        self._said["engine"].append(m.AddToEngine(EngineRequest(request_id=frame.engine_id, **fields)))
        self._settle(request)

    def _router_said(self, request: _Request, frame: object) -> None:
        if isinstance(frame, wire.AbortStage):
            request.aborting, request.engine_runs = True, False
            self._leave_lines(request)
            self._said["engine"].append(m.AbortEngine(request.submit.engine_id))
            return
        assert isinstance(frame, wire.FeedStage)
        inflow = request.inflows.get(frame.source)
        if inflow is None or inflow.source.mode != "relay" or not inflow.listening:
            self.late += 1
            return
        inflow.came = [described(Chunk(each.meta)) for each in wire.decode_relay(frame.data)]
        inflow.whole = True
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
        elif output.error is not None:
            self._end_with_error(request, self._own(output.error.code, retriable=output.error.retriable))
        else:
            if substance and not request.first:
                request.first = True
                self._tell_fact(request, "first_output", event.at_ns)
            self._take_over(request, output)
            self._settle(request)

    def _take_over(self, request: _Request, output: StageOutput) -> None:
        over = output.ended or output.finish_reason is not None
        self._deliver(request, output, last=over and not request.output_over)
        for stage, outflow in request.outflows.items():
            if not (outflow.over or request.output_over):
                outflow.made += output.chunks.get(stage, ())
        request.output_over = request.output_over or over
        request.usage.update(output.usage)
        request.note = output.note or request.note
        request.reason = output.finish_reason

    def _peer_gone(self, peer: tuple[str, int], *, dead: bool) -> None:
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
        for stage, inflow in request.inflows.items():
            self._feed(request, stage, inflow)
        if request.reason is not None:
            self._shut_inflows(request)
        if not request.input_ready and (not request.inflows or self._needs(self._inputs(request))):
            request.input_ready = True
            self._tell_fact(request, "input_ready", self._now)
        for stage, outflow in request.outflows.items():
            if outflow.relay:
                self._relay(request, stage, outflow)
            else:
                self._send(request, outflow)
        if request.reason is not None and all(outflow.over for outflow in request.outflows.values()):
            self._report(request, request.reason, None)
            return
        blocked = any(self._is_blocked(request, outflow) for outflow in request.outflows.values())
        should_run = request.input_ready and not blocked and request.reason is None
        if should_run != request.engine_runs:
            request.engine_runs = should_run
            order = m.RunEngine if should_run else m.HoldEngine
            self._said["engine"].append(order(request.submit.engine_id))

    def _inputs(self, request: _Request) -> list[bool]:
        return [each.counts_as_input for each in request.inflows.values()]

    def _feed(self, request: _Request, stage: str, inflow: _Inflow) -> None:
        for chunk in inflow.came[inflow.fed : inflow.should_be_fed]:
            self._said["engine"].append((request.submit.engine_id, stage, chunk))
        inflow.fed = max(inflow.fed, inflow.should_be_fed)
        if inflow.whole and not inflow.fed_end:
            inflow.fed_end = True
            self._said["engine"].append(m.EndEngineInput(request.submit.engine_id, stage))
        due = inflow.should_be_credited
        if due > inflow.credited and not inflow.shut and inflow.source.mode != "relay":
            inflow.credited = due
            frame = wire.EdgeCredit(*self._names(request), self._me[2], self._me[0], due)
            self._said[f"producer {inflow.source.replica}"].append(frame)

    def _is_blocked(self, request: _Request, outflow: _Outflow) -> bool:
        return not outflow.over and (outflow.spent or self.ring.waits(self._names(request), outflow.peer))

    def _send(self, request: _Request, outflow: _Outflow) -> None:
        """Whatever may go on this edge, and with it what other edges can take of the very same chunk."""
        while (chunk := outflow.next) is not None:
            nbytes = _slot_bytes(chunk)
            if nbytes <= INLINE or outflow.peer not in self.ring.readers:
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
        able = [each for each in request.outflows.values() if each.next is chunk and each.peer in self.ring.readers]
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

    def _deliver(self, request: _Request, output: StageOutput, *, last: bool) -> None:
        if not request.submit.final or (output.content is None and not last):
            return
        assert output.content is None or isinstance(output.content, str)
        request.outputs += 1
        content = None if output.content is None else wire.Text(output.content)
        self._said["router"].append(
            wire.Output(*self._names(request), self._me[2], request.outputs, content, last, self._now)
        )

    def _deliver_rest(self, request: _Request, output: StageOutput) -> None:
        request.usage.update(output.usage)
        if not request.output_over:
            self._deliver(request, output, last=False)

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
        edges = [outflow.count() for outflow in request.outflows.values()]
        report = wire.StageFinished(
            *self._names(request),
            self._me[2],
            reason,
            error,
            request.usage,
            request.note,
            request.outputs,
            edges,
            self._now,
        )
        self._said["router"].append(report)
        del self.requests[self._names(request)]
        self._leave_lines(request)

    def _leave_lines(self, request: _Request) -> None:
        for outflow in request.outflows.values():
            self.ring.leave(self._names(request), outflow.peer)

    def _tell_fact(self, request: _Request, fact: str, at_ns: int) -> None:
        self._said["router"].append(wire.StageFact(*self._names(request), self._me[2], fact, at_ns))

    def _own(self, code: str, *, retriable: bool) -> wire.ErrorInfo:
        return wire.ErrorInfo(code, "", self._me[0], self._me[1], retriable)

    def _names(self, request: _Request) -> Key:
        return request.submit.request_id, request.submit.attempt

    def _from(self, request: _Request) -> tuple[str, int, int, str]:
        return (*self._names(request), self._me[2], self._me[0])


def _slot_bytes(chunk: Chunk) -> int:
    """The arrays one after the other, each from a multiple of 64 on."""
    end = 0
    for array in chunk.arrays.values():
        end = (end + 63) // 64 * 64 + array.nbytes
    return end
