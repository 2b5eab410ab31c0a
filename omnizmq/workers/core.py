"""A worker's gate: which requests its engine may compute, and what goes where (S1, R1-R5, A1, A3, B1, P4, P5).

For each request that the router submitted here: its edges in and out, whether it has input, whether it is parked
because a consumer gave no credit, its caller has not read or the ring is full, and how it ended. The engine computes
only what the gate lets run; a placeholder is never computed on.

What goes out is `outgoing`'s matter, who may run `running`'s, what has waited too long `deadlines`'. What a request
that waits for another input holds is copied out of the ring (B4).

Pure: no sockets, no threads, no clock (`now_ns` is an argument). `handle` is the only way in, commands the only way
out. Frames for requests that are not here (they have ended) are counted in `late` and dropped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import assert_never

from omnizmq import protocol as wire
from omnizmq.errors import OmnizmqError, ReplicaLostError, StageError
from omnizmq.workers.answer import Answers
from omnizmq.workers.arrivals import opened, own
from omnizmq.workers.caller import CallerEdge
from omnizmq.workers.chunks import unpack_chunk
from omnizmq.workers.deadlines import Deadlines
from omnizmq.workers.edges import InEdge, OutEdge
from omnizmq.workers.engine import EngineRequest, FinishReason, StageOutput
from omnizmq.workers.messages import (
    AbortEngine,
    AddToEngine,
    DropPeer,
    EndEngineInput,
    EngineAborted,
    EngineEvent,
    EngineFailed,
    EngineIdle,
    EngineMade,
    EngineRan,
    EngineTook,
    FeedEngine,
    FreeSlot,
    FromRouter,
    GateCommand,
    GateEvent,
    MeetConsumer,
    PeerSent,
    PeerUnreachable,
    ProbeEngine,
    RouterSent,
    SlotData,
    SlotUnwritten,
    StageAsked,
    Ticked,
    ToProducer,
    ToRouter,
)
from omnizmq.workers.outgoing import Outgoing
from omnizmq.workers.outputs import checked, wire_content
from omnizmq.workers.ring import Peer, Ring, Share
from omnizmq.workers.running import Running
from omnizmq.workers.work import Times, Work, WorkState


class Gate:
    """One worker incarnation's table. `targets` are the consumers that the pipeline knows, planned or not; `shares`
    what each may hold of this worker's ring; `slots` how many requests the engine computes at once. A request ends when
    its caller has kept it paused for `reader_grace_s`, when it cannot be fed for the time of an edge in, of which
    `input_timeouts_s` has the source stage, or when nothing is made of it for `output_timeout_s`. `Ticked` tells of
    time. `trace_chunks`: the trace gets each chunk of each edge.

    `late` counts frames and events for nobody, `discarded` outputs that the caller's window did not let go before their
    request ended."""

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
        input_timeouts_s: Mapping[str, float] | None = None,
        output_timeout_s: float | None = None,
        trace_chunks: bool = False,
    ) -> None:
        self.stage = stage
        self.replica = replica
        self.incarnation = incarnation
        self.late = 0
        self.discarded = 0
        self._ready = ready
        self._targets = frozenset(targets)
        self._ring = Ring(shares or {})
        self._outgoing = Outgoing(stage, incarnation, self._ring, self._order, each_chunk=trace_chunks)
        self._each_chunk = trace_chunks
        self._running = Running(slots, priority_age_s, self._order)
        self._answers = Answers(incarnation, self._ring, self._outgoing, self._running)
        self._deadlines = Deadlines(stage, replica, reader_grace_s, input_timeouts_s or {}, output_timeout_s)
        self._work: dict[tuple[str, int], Work] = {}
        self._by_engine_id: dict[str, Work] = {}
        self._commands: list[GateCommand] = []
        self._now_ns = 0

    @property
    def live(self) -> int:
        """Requests that have not ended here."""
        return len(self._work)

    def rings(self) -> list[wire.RingUse]:
        """For each edge out of here, what it may hold of the ring and holds."""
        return self._ring.uses()

    def state_of(self, request_id: str, attempt: int) -> WorkState | None:
        """What that attempt waits for here, or does. None: it is not here."""
        work = self._work.get((request_id, attempt))
        return None if work is None else work.state

    # --- The way in ------------------------------------------------------------------------------------------------

    def handle(self, event: GateEvent, now_ns: int) -> list[GateCommand]:
        self._now_ns = now_ns
        match event:
            case RouterSent():
                self._router_sent(event.frame)
            case Ticked():
                self._ticked(deaf=event.deaf)
            case PeerSent():
                self._peer_sent(event)
            case PeerUnreachable():
                self._peer_lost((event.replica, event.incarnation), event.why, dead=False)
            case SlotUnwritten():
                self._slot_unwritten(event)
            case StageAsked():
                self._asked(event)
            case _:
                self._engine_said(event)
        self._move_lines()
        self._running.grant(now_ns)
        commands, self._commands = self._commands, []  # nothing of a chunk stays here
        return commands

    def _asked(self, event: StageAsked) -> None:
        """T1: how an attempt stands here, or that it is not here."""
        work = self._work.get((event.frame.request_id, event.frame.attempt))
        self._order(ToRouter(self._answers.of(event, work, self._now_ns)))

    def _order(self, command: GateCommand) -> None:
        self._commands.append(command)

    def _router_sent(self, frame: FromRouter) -> None:
        if isinstance(frame, wire.SubmitStage):
            self._submitted(frame)
            return
        if isinstance(frame, wire.PeerLost):
            peer = (frame.replica, frame.incarnation)
            self._peer_lost(peer, "it died", dead=True)
            self._commands += [FreeSlot(slot) for slot in self._ring.drop(peer)]
            self._commands.append(DropPeer(*peer))
            return
        work = self._work.get((frame.request_id, frame.attempt))
        if work is None or work.aborting:
            self.late += 1
        elif isinstance(frame, wire.FeedStage):
            self._relayed(work, frame)
        elif isinstance(frame, wire.OutputCredit):
            self._caller_read(work, frame)
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
            caller=CallerEdge.of(frame),
            times=Times(self._now_ns),
        )
        self._work[key] = self._by_engine_id[frame.engine_id] = work
        for edge in work.targets.values():
            quota = None if edge.relayed else self._ring.meet(edge.peer, edge.target.stage)
            if quota is not None:
                self._commands.append(MeetConsumer(edge.target, quota))
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
                    traceparent=frame.traceparent,
                )
            )
        )
        self._flush(work)

    def _look(self, work: Work) -> None:
        """Note that input has come, and that the request may run, or may no longer."""
        if not work.input_ready and work.has_input:
            work.input_ready = True
            work.times.ready_ns = self._now_ns
            self._fact(work, "input_ready")
        self._running.look(work, self._now_ns)

    def _fact(self, work: Work, fact: str, at_ns: int | None = None) -> None:
        self._outgoing.tell(work, fact, self._now_ns if at_ns is None else at_ns)

    # --- Edges in (R2, R3, R5) -------------------------------------------------------------------------------------

    def _peer_sent(self, event: PeerSent) -> None:
        frame = event.frame
        peer = (event.replica, event.incarnation)
        if isinstance(frame, wire.RingAnswer | wire.SlotsFreed):
            self._reader_said(peer, frame)
            return
        work = self._work.get((frame.request_id, frame.attempt))
        if frame.incarnation != event.incarnation:  # not what this connection may speak of (F3)
            self.late += 1
        elif work is None or work.aborting:
            self.late += 1
            if isinstance(frame, wire.ChunkFrame | wire.RingChunk):
                self._close_again(peer, frame)
        elif isinstance(frame, wire.EdgeCredit | wire.EdgeClosed):
            out = work.targets.get(frame.target)
            if out is None or out.peer != peer or out.relayed:
                self.late += 1
            else:
                self._consumer_said(work, out, frame)
        else:
            edge = work.sources.get(frame.source)
            if edge is None or edge.peer != peer or not edge.open or edge.source.mode == "relay":
                self.late += 1
            else:
                self._producer_said(work, edge, frame, event.data)

    def _close_again(self, peer: Peer, frame: wire.ChunkFrame | wire.RingChunk) -> None:
        """R5: it may have been submitted only after the edge was closed, and would wait for a credit for ever."""
        closed = wire.EdgeClosed(frame.request_id, frame.attempt, self.incarnation, self.stage)
        self._commands.append(ToProducer(wire.Source(frame.source, *peer, "chunk"), closed))

    def _producer_said(self, work: Work, edge: InEdge, frame: wire.OnEdge, data: SlotData) -> None:
        try:
            match frame:
                case wire.ChunkFrame() | wire.RingChunk():
                    self._chunk_came(work, edge, frame, data)
                case wire.EdgeEnd():
                    edge.end(frame.total)
                    self._input_whole(work, edge)
                case wire.EdgeFailed():
                    edge.close()
                    self._fail(work, frame.error)
                case _:
                    assert_never(frame)
        except OmnizmqError as error:
            self._fail_with(work, error)

    def _chunk_came(self, work: Work, edge: InEdge, frame: wire.ChunkFrame | wire.RingChunk, data: SlotData) -> None:
        if not edge.take(frame.seq):
            self.late += 1
            return
        edge.came_ns = self._now_ns
        if self._each_chunk:
            detail: dict[str, wire.Value] = {"from": frame.source, "seq": frame.seq}
            self._outgoing.tell(work, "chunk_came", self._now_ns, detail)
        chunk = opened(edge, frame, data)
        if edge.source.mode != "chunk":
            edge.hold(own(chunk, frame))  # a payload edge is fed once, whole
            self._credit(work, edge, 1)
            return
        # Another edge is waited for: this one's producer may be what it waits for, so it must not be parked (B4).
        waits = not (work.input_ready or work.has_input)
        prepaid = waits and edge.prepay(chunk)
        chunk = own(chunk, frame) if prepaid else chunk
        self._feed(work, FeedEngine(work.engine_id, frame.source, chunk))
        self._look(work)
        if prepaid:
            self._credit(work, edge, 1)

    def _input_whole(self, work: Work, edge: InEdge) -> None:
        for chunk in edge.held:
            self._feed(work, FeedEngine(work.engine_id, edge.source.stage, chunk))
        edge.held.clear()
        self._feed(work, EndEngineInput(work.engine_id, edge.source.stage))
        self._look(work)

    def _feed(self, work: Work, command: FeedEngine | EndEngineInput) -> None:
        work.fed += 1
        work.idle = False
        work.moved_ns = self._now_ns
        self._commands.append(command)

    def _relayed(self, work: Work, frame: wire.FeedStage) -> None:
        edge = work.sources.get(frame.source)
        if edge is None or edge.source.mode != "relay" or not edge.open:
            self.late += 1
            return
        try:
            edge.held = [unpack_chunk(chunk) for chunk in wire.decode_relay(frame.data)]
        except OmnizmqError as error:
            self._fail_with(work, error)
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

    def _consumer_said(self, work: Work, edge: OutEdge, frame: wire.BackOnEdge) -> None:
        if isinstance(frame, wire.EdgeClosed):
            edge.close()
            self._ring.leave(work.key, edge.peer)
        else:
            edge.credit(frame.consumed)
        self._flush(work)

    def _caller_read(self, work: Work, frame: wire.OutputCredit) -> None:
        if work.caller is None:
            self.late += 1
            return
        work.caller.credit(frame.consumed, self._now_ns, frame.skipped)
        self._flush(work)

    def _flush(self, work: Work) -> None:
        """Send what credits allow; tell consumers of the end; report when all is out."""
        try:
            self._outgoing.flush(work, self._now_ns)
        except StageError as error:
            self._fail_with(work, error)
            return
        if work.all_out:
            self._report(work, work.finish_reason, None)
        else:
            self._look(work)

    # --- The ring (B1, B4) -----------------------------------------------------------------------------------------

    def _reader_said(self, peer: Peer, frame: wire.RingAnswer | wire.SlotsFreed) -> None:
        if isinstance(frame, wire.SlotsFreed):
            self._commands += [FreeSlot(slot) for slot in self._ring.release(peer, frame.slots)]
        elif frame.refused is None:
            self._ring.admit(peer)

    def _slot_unwritten(self, event: SlotUnwritten) -> None:
        self._ring.cancel(event.slot)
        work = self._by_engine_id.get(event.engine_id)
        if work is not None and not work.aborting:
            self._fail_with(work, event.error)

    def _move_lines(self) -> None:
        """Let those go on who waited for room that there may be now."""
        for key, peer in self._ring.next_turns():
            work = self._work.get(key)
            if work is None or not any(edge.ring_full and edge.peer == peer for edge in work.targets.values()):
                self._ring.leave(key, peer)
            else:
                self._flush(work)

    # --- The engine ------------------------------------------------------------------------------------------------

    def _engine_said(self, event: EngineEvent) -> None:
        engine_id = event.output.request_id if isinstance(event, EngineMade) else event.engine_id
        work = self._by_engine_id.get(engine_id)
        if work is None:
            self.late += not isinstance(event, EngineAborted)
            return
        match event:
            case EngineAborted():
                self._aborted(work, event.outputs)
            case EngineMade():
                self._made(work, event.output, event.at_ns)
            case _ if work.aborting:
                self.late += 1
            case EngineTook():
                self._taken(work, work.sources[event.source], event.chunks)
            case EngineRan():
                self._fact(work, "running", event.at_ns)
            case EngineIdle():
                self._engine_idle(work, event)
            case EngineFailed():
                self._fail_with(work, event.error)
            case _:
                assert_never(event)

    def _taken(self, work: Work, edge: InEdge, chunks: int) -> None:
        due = edge.took(chunks)
        due = due if edge.source.mode == "chunk" else 0
        if due and not edge.closed:
            self._credit(work, edge, due)

    def _made(self, work: Work, output: StageOutput, at_ns: int) -> None:
        if work.finish_reason is not None:
            self.late += 1
            return
        try:
            output = checked(output)
            self._check_order(work, output)
        except StageError as error:
            if not work.aborting:
                self._fail_with(work, error)
            return
        work.moved_ns = self._now_ns
        if work.aborting:
            self._deliver_rest(work, output)
        elif output.error is not None:
            self._fail_with(work, output.error)
        else:
            if work.times.first_ns is None and (output.content is not None or any(output.chunks.values())):
                work.times.first_ns = self._now_ns
                self._fact(work, "first_output", at_ns)
            self._pass_on(work, output)

    def _check_order(self, work: Work, output: StageOutput) -> None:
        """Raises `StageError` for what a well-behaved engine does not make: nothing is skipped in silence (R2)."""
        unknown = output.chunks.keys() - self._targets
        if unknown:
            raise StageError(f"the engine made chunks for {min(unknown)!r}, which does not follow {self.stage}")
        if work.ended and (output.content is not None or any(output.chunks.values())):
            raise StageError("the engine made output after it had said that its output has ended")

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
                    self._outgoing.relay(work, edge, self._now_ns)
        except StageError as error:
            self._fail_with(work, error)
            return
        self._flush(work)

    def _deliver(self, work: Work, output: StageOutput, *, last: bool) -> None:
        """Content of a final stage, as soon as it is known (C3) and its caller can take it (B1); of no other (P4)."""
        if work.caller is not None and (output.content is not None or last):
            work.caller.put(wire_content(output), last=last)
            self._outgoing.deliver(work, self._now_ns)

    def _deliver_rest(self, work: Work, output: StageOutput) -> None:
        """Of an aborted request: what exists is delivered as far as its caller can take it, nothing of it goes on to
        other stages (A3)."""
        work.usage |= output.usage
        if not work.ended:
            self._deliver(work, output, last=False)

    # --- Time ------------------------------------------------------------------------------------------------------

    def _ticked(self, *, deaf: bool) -> None:
        for work in [work for work in self._work.values() if not work.aborting]:
            if deaf and work.caller is not None:
                work.caller.since_ns = self._now_ns  # it may have read: nobody could say so
            error = self._deadlines.passed(work, self._now_ns)
            if error is not None:
                self._fail_with(work, error)
            elif self._deadlines.probes(work, self._now_ns):
                self._commands.append(ProbeEngine(work.engine_id))
        self._running.tick(list(self._work.values()), self._now_ns)

    def _engine_idle(self, work: Work, event: EngineIdle) -> None:
        if event.fed == work.fed:
            work.probed_ns = 0
            work.moved_ns = max(work.moved_ns, event.since_ns)
            error = self._deadlines.silence(work, self._now_ns)
            if error is not None:
                self._fail_with(work, error)
                return
        self._running.idle(work, event, self._now_ns)

    # --- Ends ------------------------------------------------------------------------------------------------------

    def _abort_asked(self, work: Work) -> None:
        """Confirmed when the engine has forgotten the request (A3: what exists goes out first)."""
        work.aborting, work.aborting_ns = True, self._now_ns
        self._running.leave(work)
        for edge in work.targets.values():
            self._ring.leave(work.key, edge.peer)
        self._commands.append(AbortEngine(work.engine_id))

    def _aborted(self, work: Work, outputs: Sequence[StageOutput]) -> None:
        if not work.aborting:
            return
        for output in outputs:
            with suppress(StageError):  # of an abort: that stands, whatever its engine hands over
                self._deliver_rest(work, checked(output))
        self._report(work, "abort", None)

    def _fail_with(self, work: Work, error: OmnizmqError) -> None:
        self._fail(work, wire.ErrorInfo.of(error, stage=self.stage, replica=self.replica))

    def _fail(self, work: Work, error: wire.ErrorInfo) -> None:
        """Consumers hear of it on their edges, the router by its own way; both get the same error (R3)."""
        self._outgoing.fail(work, error)
        self._close_inputs(work)
        self._commands.append(AbortEngine(work.engine_id))
        self._report(work, None, error)

    def _report(self, work: Work, reason: FinishReason | None, error: wire.ErrorInfo | None) -> None:
        """The one way out of the table."""
        submit, caller = work.submit, work.caller
        self.discarded += 0 if caller is None else caller.discard()
        self._commands.append(
            ToRouter(
                wire.StageFinished(
                    request_id=submit.request_id,
                    attempt=submit.attempt,
                    incarnation=self.incarnation,
                    finish_reason=reason,
                    error=error,
                    usage={**work.times.usage(self._now_ns), **work.usage},
                    note=work.note,
                    outputs=0 if caller is None else caller.sent,
                    edges=[edge.count(self._now_ns) for edge in work.targets.values()],
                    at_ns=self._now_ns,
                )
            )
        )
        del self._work[work.key]
        del self._by_engine_id[submit.engine_id]
        self._running.leave(work)
        for edge in work.targets.values():
            self._ring.leave(work.key, edge.peer)

    def _close_inputs(self, work: Work) -> None:
        """R5: what still comes is dropped here; the producer goes on unharmed."""
        request_id, attempt = work.submit.request_id, work.submit.attempt
        for edge in work.sources.values():
            if edge.open and edge.source.mode != "relay":
                edge.close()
                closed = wire.EdgeClosed(request_id, attempt, self.incarnation, self.stage)
                self._commands.append(ToProducer(edge.source, closed))

    def _peer_lost(self, peer: tuple[str, int], why: str, *, dead: bool) -> None:
        """A producer's open edge fails its consumer here. A dead consumer closes its edges; the router knows of it.

        A consumer that lives and cannot be reached would wait for ever, and nobody else knows: that fails the request.
        What goes over a relay edge is the router's.
        """
        if not dead:
            self._ring.exclude(peer)
        for work in list(self._work.values()):
            lost = [edge for edge in work.sources.values() if edge.open and edge.peer == peer]
            lost = [edge for edge in lost if edge.source.mode != "relay"]
            unread = [edge for edge in work.targets.values() if edge.open and edge.peer == peer and not edge.relayed]
            for source in lost:
                source.close()
            for target in unread:
                target.close()
            if work.aborting:
                continue
            if lost:
                text = f"{peer[0]} is gone before its edge to {self.stage} had ended: {why}"
                self._fail_with(work, ReplicaLostError(text, stage=lost[0].source.stage, replica=peer[0]))
            elif unread and not dead:
                text = f"{peer[0]} cannot be reached on its edge from {self.stage}: {why}"
                self._fail_with(work, ReplicaLostError(text, stage=unread[0].target.stage, replica=peer[0]))
            elif unread:
                self._flush(work)
