"""What a gate must do, said another way: totals that follow from what has happened, and commands that make up the
difference.

The gate in the package reacts to events one by one. This model keeps, for each request, the history of its edges and
of its engine, and after each event works out where everything ought to stand: how many chunks should be out, how many
credits back, whether the engine should be running, whether the stage should have reported. What is missing is the
prediction, for each destination in order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from omnizmq import protocol as wire
from omnizmq.workers import messages as m
from omnizmq.workers.engine import Chunk, EngineRequest, StageOutput

Commands = dict[str, list[object]]
Key = tuple[str, int]


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
            case m.DropPeer():
                sorted_out["sockets"].append(command)
            case _:
                sorted_out["engine"].append(command)
    return dict(sorted_out)


def _plain(frame: msgspec.Struct) -> msgspec.Struct:
    error = getattr(frame, "error", None)
    if error is None:
        return frame
    return msgspec.structs.replace(frame, error=msgspec.structs.replace(error, message=""))


@dataclass
class _Inflow:
    """An edge in: what came, what was fed, what was credited."""

    source: wire.Source
    came: list[Chunk] = field(default_factory=list)
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
    def blocked(self) -> bool:
        return not self.over and not self.relay and self.out - self.taken >= self.target.window

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

    def __init__(self, stage: str, replica: str, incarnation: int, ready: str, targets: Sequence[str]) -> None:
        self.late = 0
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
                self._said["sockets"].append(m.DropPeer(frame.replica, frame.incarnation))
            case m.PeerUnreachable():
                self._peer_gone((event.replica, event.incarnation), dead=False)
            case m.RouterSent(frame) | m.PeerSent(frame=frame):
                request = self.requests.get((frame.request_id, frame.attempt))
                if request is None or request.aborting:
                    self.late += 1
                elif isinstance(event, m.PeerSent):
                    self._peer_said(request, event)
                else:
                    self._router_said(request, frame)
            case _:
                self._engine_said(event)
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
        self._tell_fact(request, "registered", self._now)
        names = ("prompt", "params", "original_prompt", "external_id", "priority")
        fields = {name: getattr(frame, name) for name in names}
        self._said["engine"].append(m.AddToEngine(EngineRequest(request_id=frame.engine_id, **fields)))
        self._settle(request)

    def _router_said(self, request: _Request, frame: object) -> None:
        if isinstance(frame, wire.AbortStage):
            request.aborting, request.engine_runs = True, False
            self._said["engine"].append(m.AbortEngine(request.submit.engine_id))
            return
        assert isinstance(frame, wire.FeedStage)
        inflow = request.inflows.get(frame.source)
        if inflow is None or inflow.source.mode != "relay" or not inflow.listening:
            self.late += 1
            return
        inflow.came = [Chunk(each.meta) for each in wire.decode_relay(frame.data)]
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
            else:
                outflow.taken = max(outflow.taken, min(frame.consumed, outflow.out))
            self._settle(request)
            return
        inflow = request.inflows.get(frame.source)
        if (
            inflow is None
            or (inflow.source.replica, inflow.source.incarnation) != peer
            or not inflow.listening
            or inflow.source.mode == "relay"
        ):
            self.late += 1
        else:
            self._producer_said(request, inflow, frame)

    def _producer_said(self, request: _Request, inflow: _Inflow, frame: object) -> None:
        arrived, source = len(inflow.came), inflow.source
        match frame:
            case wire.ChunkFrame() if frame.seq <= arrived:
                self.late += 1
            case wire.ChunkFrame() if frame.seq == arrived + 1:
                waiting_for_another = not self._needs(
                    [each.counts_as_input or each is inflow for each in request.inflows.values()]
                )
                inflow.came.append(Chunk(frame.meta))
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
        request = next((each for each in self.requests.values() if each.submit.engine_id == engine_id), None)
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
            self._send(request, stage, outflow)
        if request.reason is not None and all(outflow.over for outflow in request.outflows.values()):
            self._report(request, request.reason, None)
            return
        blocked = any(outflow.blocked for outflow in request.outflows.values())
        should_run = request.input_ready and not blocked and request.reason is None
        if should_run != request.engine_runs:
            request.engine_runs = should_run
            order = m.RunEngine if should_run else m.HoldEngine
            self._said["engine"].append(order(request.submit.engine_id))

    def _inputs(self, request: _Request) -> list[bool]:
        return [each.counts_as_input for each in request.inflows.values()]

    def _feed(self, request: _Request, stage: str, inflow: _Inflow) -> None:
        for chunk in inflow.came[inflow.fed : inflow.should_be_fed]:
            self._said["engine"].append(m.FeedEngine(request.submit.engine_id, stage, chunk))
        inflow.fed = max(inflow.fed, inflow.should_be_fed)
        if inflow.whole and not inflow.fed_end:
            inflow.fed_end = True
            self._said["engine"].append(m.EndEngineInput(request.submit.engine_id, stage))
        due = inflow.should_be_credited
        if due > inflow.credited and not inflow.shut and inflow.source.mode != "relay":
            inflow.credited = due
            frame = wire.EdgeCredit(*self._names(request), self._me[2], self._me[0], due)
            self._said[f"producer {inflow.source.replica}"].append(frame)

    def _send(self, request: _Request, stage: str, outflow: _Outflow) -> None:
        if outflow.over or (outflow.relay and not request.output_over):
            return
        allowed = len(outflow.made) if outflow.relay else outflow.taken + outflow.target.window
        frames = []
        for chunk in outflow.made[outflow.out : allowed]:
            outflow.out += 1
            outflow.bytes += chunk.nbytes
            outflow.times.append(self._now)
            frames.append(wire.ChunkFrame(*self._from(request), outflow.out, dict(chunk.meta), []))
        if outflow.relay:
            outflow.over = True
            content = wire.RelayContent(*self._names(request), self._me[2], stage, wire.encode_relay(frames))
            self._said["router"].append(content)
            return
        channel = self._said[f"consumer {outflow.target.replica}"]
        channel += frames
        if request.output_over and outflow.out == len(outflow.made):
            outflow.over = True
            channel.append(wire.EdgeEnd(*self._from(request), outflow.out))
        if not channel:
            del self._said[f"consumer {outflow.target.replica}"]

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

    def _tell_fact(self, request: _Request, fact: str, at_ns: int) -> None:
        self._said["router"].append(wire.StageFact(*self._names(request), self._me[2], fact, at_ns))

    def _own(self, code: str, *, retriable: bool) -> wire.ErrorInfo:
        return wire.ErrorInfo(code, "", self._me[0], self._me[1], retriable)

    def _names(self, request: _Request) -> Key:
        return request.submit.request_id, request.submit.attempt

    def _from(self, request: _Request) -> tuple[str, int, int, str]:
        return (*self._names(request), self._me[2], self._me[0])
