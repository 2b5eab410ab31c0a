"""A worker's gate: which requests its engine may compute, and what goes where (S1, R1-R3, R5, A1, A3, P4, P5).

For each request that the router submitted here: its edges in and out, whether it has input, whether it is parked
because a consumer gave no credit, and how it ended. The engine computes only what the gate lets run; a placeholder is
never computed on.

Pure: no sockets, no threads, no clock (`now_ns` is an argument). `handle` is the only way in, commands the only way
out. Frames for requests that are not here (they have ended) are counted in `late` and dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import assert_never

import numpy as np

from omnizmq import protocol as wire
from omnizmq.errors import OmnizmqError, ProtocolError, ReplicaLostError, StageError
from omnizmq.workers.chunks import pack_arrays, unpack_chunk
from omnizmq.workers.edges import InEdge, OutEdge
from omnizmq.workers.engine import Audio, Chunk, EngineRequest, FinishReason, StageOutput
from omnizmq.workers.messages import (
    AbortEngine,
    AddToEngine,
    DropPeer,
    EndEngineInput,
    EngineAborted,
    EngineFailed,
    EngineMade,
    EngineRan,
    EngineTook,
    FeedEngine,
    GateCommand,
    GateEvent,
    HoldEngine,
    PeerSent,
    PeerUnreachable,
    RouterSent,
    RunEngine,
    ToConsumer,
    ToProducer,
    ToRouter,
)


@dataclass
class Work:
    """One attempt of one request in this worker."""

    submit: wire.SubmitStage
    ready: str
    sources: dict[str, InEdge]
    targets: dict[str, OutEdge]
    input_ready: bool = False
    running: bool = False  # the engine has been told that it may
    aborting: bool = False
    made: bool = False  # the first output is there
    ended: bool = False  # the engine's output has ended
    outputs: int = 0
    finish_reason: FinishReason | None = None
    usage: dict[str, int | float] = field(default_factory=dict)
    note: str | None = None

    @property
    def engine_id(self) -> str:
        return self.submit.engine_id

    @property
    def has_input(self) -> bool:
        edges = [edge.has_input for edge in self.sources.values()]
        return not edges or (all(edges) if self.ready == "all" else any(edges))

    @property
    def may_run(self) -> bool:
        parked = any(edge.full for edge in self.targets.values())
        return self.input_ready and not (parked or self.aborting or self.finish_reason)


class Gate:
    """One worker incarnation's table. `targets` are the consumers that the pipeline knows, planned or not."""

    def __init__(self, stage: str, replica: str, incarnation: int, ready: str, targets: Sequence[str]) -> None:
        self.stage = stage
        self.replica = replica
        self.incarnation = incarnation
        self.late = 0
        self._ready = ready
        self._targets = frozenset(targets)
        self._work: dict[tuple[str, int], Work] = {}
        self._by_engine_id: dict[str, Work] = {}
        self._commands: list[GateCommand] = []
        self._now_ns = 0

    @property
    def live(self) -> int:
        """Requests that have not ended here."""
        return len(self._work)

    # --- The way in ------------------------------------------------------------------------------------------------

    def handle(self, event: GateEvent, now_ns: int) -> list[GateCommand]:
        self._commands = []
        self._now_ns = now_ns
        match event:
            case RouterSent():
                self._router_sent(event.frame)
            case PeerSent():
                self._peer_sent(event)
            case PeerUnreachable():
                self._peer_lost(event.replica, event.incarnation, event.why)
            case _:
                self._engine_said(event)
        return self._commands

    def _router_sent(self, frame: wire.SubmitStage | wire.FeedStage | wire.AbortStage | wire.PeerLost) -> None:
        if isinstance(frame, wire.SubmitStage):
            self._submitted(frame)
            return
        if isinstance(frame, wire.PeerLost):
            self._peer_lost(frame.replica, frame.incarnation, "it died")
            self._commands.append(DropPeer(frame.replica, frame.incarnation))
            return
        work = self._work.get((frame.request_id, frame.attempt))
        if work is None:
            self.late += 1
        elif isinstance(frame, wire.FeedStage):
            self._relayed(work, frame)
        else:
            self._abort_asked(work)

    # --- Submission (S1, R1) ---------------------------------------------------------------------------------------

    def _submitted(self, frame: wire.SubmitStage) -> None:
        key = (frame.request_id, frame.attempt)
        if key in self._work:
            self.late += 1
            return
        work = Work(
            submit=frame,
            ready=self._ready,
            sources={source.stage: InEdge(source) for source in frame.sources},
            targets={target.stage: OutEdge(target) for target in frame.targets},
        )
        self._work[key] = self._by_engine_id[frame.engine_id] = work
        self._fact(work, "registered")
        self._commands.append(
            AddToEngine(
                EngineRequest(
                    request_id=frame.engine_id,
                    prompt=frame.prompt,
                    params=frame.params,
                    original_prompt=frame.original_prompt,
                    external_id=frame.external_id,
                    priority=frame.priority,
                )
            )
        )
        self._look(work)

    def _look(self, work: Work) -> None:
        """Note that input has come, and tell the engine when the request may run, or may no longer."""
        if not work.input_ready and work.has_input:
            work.input_ready = True
            self._fact(work, "input_ready")
        if work.may_run != work.running:
            work.running = work.may_run
            order = RunEngine if work.running else HoldEngine
            self._commands.append(order(work.engine_id))

    def _fact(self, work: Work, fact: str, at_ns: int | None = None) -> None:
        at_ns = self._now_ns if at_ns is None else at_ns
        request_id, attempt = work.submit.request_id, work.submit.attempt
        self._commands.append(ToRouter(wire.StageFact(request_id, attempt, self.incarnation, fact, at_ns)))

    # --- Edges in (R2, R3, R5) -------------------------------------------------------------------------------------

    def _peer_sent(self, event: PeerSent) -> None:
        frame = event.frame
        work = self._work.get((frame.request_id, frame.attempt))
        peer = (event.replica, event.incarnation)
        if work is None:
            self.late += 1
        elif isinstance(frame, wire.EdgeCredit | wire.EdgeClosed):
            out = work.targets.get(frame.target)
            if out is None or (out.target.replica, out.target.incarnation) != peer:
                self.late += 1
            else:
                self._consumer_said(work, out, frame)
        else:
            edge = work.sources.get(frame.source)
            if edge is None or (edge.source.replica, edge.source.incarnation) != peer or not edge.open:
                self.late += 1
            else:
                self._producer_said(work, edge, frame)

    def _producer_said(self, work: Work, edge: InEdge, frame: wire.ProducerToConsumer) -> None:
        try:
            match frame:
                case wire.ChunkFrame():
                    self._chunk_came(work, edge, frame)
                case wire.EdgeEnd():
                    edge.end(frame.total)
                    self._input_whole(work, edge)
                case wire.EdgeFailed():
                    self._fail(work, frame.error)
                case _:
                    assert_never(frame)
        except OmnizmqError as error:
            self._fail(work, wire.ErrorInfo.of(error, stage=self.stage, replica=self.replica))

    def _chunk_came(self, work: Work, edge: InEdge, frame: wire.ChunkFrame) -> None:
        if not edge.take(frame.seq):
            self.late += 1
            return
        chunk = unpack_chunk(frame)
        if edge.source.mode == "chunk":
            self._commands.append(FeedEngine(work.engine_id, frame.source, chunk))
        else:
            self._hold(work, edge, chunk)
        self._look(work)

    def _hold(self, work: Work, edge: InEdge, chunk: Chunk) -> None:
        """A payload edge is fed once, whole: its chunks wait here, and their credits go back at once."""
        edge.held.append(chunk)
        if sum(chunk.nbytes for chunk in edge.held) > wire.MESSAGE_BYTES:
            raise StageError(f"payload from {edge.source.stage} is over {wire.MESSAGE_BYTES} bytes")
        self._credit(work, edge, 1)

    def _input_whole(self, work: Work, edge: InEdge) -> None:
        for chunk in edge.held:
            self._commands.append(FeedEngine(work.engine_id, edge.source.stage, chunk))
        edge.held.clear()
        self._commands.append(EndEngineInput(work.engine_id, edge.source.stage))
        self._look(work)

    def _relayed(self, work: Work, frame: wire.FeedStage) -> None:
        edge = work.sources.get(frame.source)
        if edge is None or edge.source.mode != "relay" or not edge.open:
            self.late += 1
            return
        try:
            edge.held = [unpack_chunk(chunk) for chunk in wire.decode_relay(frame.data)]
        except ProtocolError as error:
            self._fail(work, wire.ErrorInfo.of(error, stage=self.stage, replica=self.replica))
            return
        edge.received = len(edge.held)
        edge.ended = True
        self._input_whole(work, edge)

    def _credit(self, work: Work, edge: InEdge, chunks: int) -> None:
        edge.consumed += chunks
        request_id, attempt = work.submit.request_id, work.submit.attempt
        credit = wire.EdgeCredit(request_id, attempt, self.incarnation, self.stage, edge.consumed)
        self._commands.append(ToProducer(edge.source, credit))

    # --- Edges out -------------------------------------------------------------------------------------------------

    def _consumer_said(self, work: Work, edge: OutEdge, frame: wire.ConsumerToProducer) -> None:
        if isinstance(frame, wire.EdgeClosed):
            edge.close()
        else:
            edge.credit(frame.consumed)
        self._flush(work)

    def _flush(self, work: Work) -> None:
        """Send what credits allow; tell consumers of the end; report when all is out."""
        for edge in work.targets.values():
            if not edge.relayed:
                self._flush_edge(work, edge)
        if work.finish_reason is not None and not any(edge.open for edge in work.targets.values()):
            self._report(work, work.finish_reason, None)
        elif not work.aborting:
            self._look(work)

    def _flush_edge(self, work: Work, edge: OutEdge) -> None:
        request_id, attempt = work.submit.request_id, work.submit.attempt
        while (chunk := edge.next(self._now_ns)) is not None:
            self._commands.append(ToConsumer(edge.target, self._chunk_frame(work, edge, chunk)))
        if edge.ending and edge.open and not edge.waiting:
            edge.ended = True
            end = wire.EdgeEnd(request_id, attempt, self.incarnation, self.stage, edge.sent)
            self._commands.append(ToConsumer(edge.target, end))

    def _chunk_frame(self, work: Work, edge: OutEdge, chunk: Chunk) -> wire.ChunkFrame:
        request_id, attempt = work.submit.request_id, work.submit.attempt
        arrays = pack_arrays(chunk)
        return wire.ChunkFrame(request_id, attempt, self.incarnation, self.stage, edge.sent, dict(chunk.meta), arrays)

    def _relay(self, work: Work, edge: OutEdge) -> None:
        """All of a relay edge's chunks, to the router, in one piece."""
        frames = []
        while (chunk := edge.next(self._now_ns)) is not None:
            frames.append(self._chunk_frame(work, edge, chunk))
        edge.ended = True
        request_id, attempt = work.submit.request_id, work.submit.attempt
        data = wire.encode_relay(frames)
        self._commands.append(
            ToRouter(wire.RelayContent(request_id, attempt, self.incarnation, edge.target.stage, data))
        )

    # --- The engine ------------------------------------------------------------------------------------------------

    def _engine_said(self, event: EngineTook | EngineRan | EngineMade | EngineFailed | EngineAborted) -> None:
        engine_id = event.output.request_id if isinstance(event, EngineMade) else event.engine_id
        work = self._by_engine_id.get(engine_id)
        if work is None:
            self.late += not isinstance(event, EngineAborted)
            return
        match event:
            case EngineTook():
                edge = work.sources[event.source]
                if edge.source.mode == "chunk":
                    self._credit(work, edge, event.chunks)
            case EngineRan():
                self._fact(work, "running", event.at_ns)
            case EngineMade():
                self._made(work, event.output, event.at_ns)
            case EngineFailed():
                self._fail(work, wire.ErrorInfo.of(event.error, stage=self.stage, replica=self.replica))
            case EngineAborted():
                self._aborted(work, event.outputs)
            case _:
                assert_never(event)

    def _made(self, work: Work, output: StageOutput, at_ns: int) -> None:
        if work.aborting:
            self._deliver(work, output, last=False)
            return
        if output.error is not None:
            self._fail(work, wire.ErrorInfo.of(output.error, stage=self.stage, replica=self.replica))
            return
        unknown = output.chunks.keys() - self._targets
        if unknown:
            error = StageError(f"the engine made chunks for {min(unknown)!r}, which does not follow {self.stage}")
            self._fail(work, wire.ErrorInfo.of(error, stage=self.stage, replica=self.replica))
            return
        if not work.made and (output.content is not None or output.chunks):
            work.made = True
            self._fact(work, "first_output", at_ns)
        self._pass_on(work, output)

    def _pass_on(self, work: Work, output: StageOutput) -> None:
        last = not work.ended and (output.ended or output.finish_reason is not None)
        self._deliver(work, output, last=last)
        work.ended = work.ended or last
        work.usage |= output.usage
        work.note = output.note or work.note
        if output.finish_reason is not None:
            work.finish_reason = output.finish_reason
            self._close_inputs(work)
        try:
            for name, edge in work.targets.items():
                for chunk in output.chunks.get(name, ()):
                    edge.put(chunk)
                edge.ending = work.ended
                if edge.relayed and last:
                    self._relay(work, edge)
            self._flush(work)
        except ProtocolError as error:
            self._fail(work, wire.ErrorInfo.of(error, stage=self.stage, replica=self.replica))

    def _deliver(self, work: Work, output: StageOutput, *, last: bool) -> None:
        """Content of a final stage, as soon as it is known (C3); of no other (P4)."""
        if not work.submit.final or (output.content is None and not last):
            return
        work.outputs += 1
        request_id, attempt = work.submit.request_id, work.submit.attempt
        content = _wire_content(output.content)
        self._commands.append(
            ToRouter(wire.Output(request_id, attempt, self.incarnation, work.outputs, content, last, self._now_ns))
        )

    # --- Ends ------------------------------------------------------------------------------------------------------

    def _abort_asked(self, work: Work) -> None:
        """Confirmed when the engine has forgotten the request (A3: what exists goes out first)."""
        if not work.aborting:
            work.aborting = True
            work.running = False
            self._commands.append(AbortEngine(work.engine_id))

    def _aborted(self, work: Work, outputs: Sequence[StageOutput]) -> None:
        if not work.aborting:
            return
        for output in outputs:
            work.usage |= output.usage
            self._deliver(work, output, last=False)
        self._report(work, "abort", None)

    def _fail(self, work: Work, error: wire.ErrorInfo) -> None:
        """Consumers hear of it on their edges, the router by its own way; both get the same error (R3)."""
        request_id, attempt = work.submit.request_id, work.submit.attempt
        for edge in work.targets.values():
            if edge.open and not edge.relayed:
                failed = wire.EdgeFailed(request_id, attempt, self.incarnation, self.stage, error)
                self._commands.append(ToConsumer(edge.target, failed))
        self._commands.append(AbortEngine(work.engine_id))
        self._report(work, None, error)

    def _report(self, work: Work, reason: FinishReason | None, error: wire.ErrorInfo | None) -> None:
        """The one way out of the table."""
        submit = work.submit
        self._commands.append(
            ToRouter(
                wire.StageFinished(
                    request_id=submit.request_id,
                    attempt=submit.attempt,
                    incarnation=self.incarnation,
                    finish_reason=reason,
                    error=error,
                    usage=work.usage,
                    note=work.note,
                    outputs=work.outputs,
                    edges=[edge.count() for edge in work.targets.values()],
                    at_ns=self._now_ns,
                )
            )
        )
        del self._work[(submit.request_id, submit.attempt)]
        del self._by_engine_id[submit.engine_id]

    def _close_inputs(self, work: Work) -> None:
        """R5: what still comes is dropped here; the producer goes on unharmed."""
        request_id, attempt = work.submit.request_id, work.submit.attempt
        for edge in work.sources.values():
            if edge.open and edge.source.mode != "relay":
                edge.closed = True
                closed = wire.EdgeClosed(request_id, attempt, self.incarnation, self.stage)
                self._commands.append(ToProducer(edge.source, closed))

    def _peer_lost(self, replica: str, incarnation: int, why: str) -> None:
        """A dead producer whose edge has not ended fails its consumers; a dead consumer closes its edges."""
        for work in list(self._work.values()):
            for out in work.targets.values():
                if (out.target.replica, out.target.incarnation) == (replica, incarnation):
                    out.close()
            lost = [
                edge.source.stage
                for edge in work.sources.values()
                if edge.open and (edge.source.replica, edge.source.incarnation) == (replica, incarnation)
            ]
            if work.aborting:
                continue
            if lost:
                text = f"{replica} is gone before its edge to {self.stage} had ended: {why}"
                self._fail(work, wire.ErrorInfo.of(ReplicaLostError(text, stage=lost[0], replica=replica)))
            else:
                self._flush(work)


def _wire_content(content: str | Audio | None) -> wire.Content | None:
    if content is None:
        return None
    if isinstance(content, str):
        return wire.Text(content)
    samples = np.ascontiguousarray(content.samples, dtype="<f4")
    return wire.Audio(samples.tobytes(), content.sample_rate)
