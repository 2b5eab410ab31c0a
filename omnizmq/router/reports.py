"""What workers say of requests, and what could not be said to them (P5, C2, C6, F1, F3, B1). Pure."""

from __future__ import annotations

from typing import assert_never

from omnizmq import protocol as wire
from omnizmq.errors import ProtocolError, ReplicaLostError
from omnizmq.router import lifecycle as life
from omnizmq.router.driver import Driver
from omnizmq.router.messages import FrameUnsendable, WorkerUnreachable
from omnizmq.router.pools import Binding, Replica
from omnizmq.router.request import Attempt, Request
from omnizmq.router.state import RouterState
from omnizmq.trace.events import REPORTED

_TIMES = frozenset({"input_wait_s", "first_output_s", "stage_s"})
"""Of a stage's usage, what a trace has as facts already; the rest is what its engine counted."""

Report = wire.StageFact | wire.StagePaused | wire.Output | wire.RelayContent | wire.StageFinished


class Reports:
    """From all workers of one deployment."""

    def __init__(self, state: RouterState, driver: Driver) -> None:
        self._state = state
        self._driver = driver
        self._record = state.record_of

    def came(self, replica: Replica, frame: Report) -> None:
        """From its present incarnation."""
        request = self._state.requests.get(frame.request_id)
        attempt = None if request is None else request.attempts.get(frame.attempt)
        if request is None or attempt is None or not attempt.binds(replica):
            self._late(replica, frame)
            return
        stage = replica.stage
        match frame:
            case wire.Output():
                if frame.last:
                    self._record(replica, request, attempt, "output_ended", frame.at_ns)
                arrived = life.OutputArrived(stage, frame.seq, frame.content, frame.last)
                self._driver.advance(request, arrived, attempt)
            case wire.StageFact():
                self._fact(request, attempt, replica, frame)
            case wire.StagePaused():
                self._paused(request, attempt, replica, frame)
            case wire.RelayContent():
                self._relay(request, attempt, replica, frame)
            case wire.StageFinished():
                self._finished(request, attempt, replica, frame)
            case _:
                assert_never(frame)

    def unreachable(self, event: WorkerUnreachable) -> None:
        """A frame could not be sent: what it was about is lost with the replica."""
        request, attempt = self._meant(event)
        if request is not None:
            stage = self._state.pools.replicas[event.replica].stage
            text = f"{event.replica} cannot be reached: {event.why}"
            lost = ReplicaLostError(text, stage=stage, replica=event.replica)
            self._driver.advance(request, life.SubmissionFailed(stage, wire.ErrorInfo.of(lost)), attempt)

    def unsendable(self, event: FrameUnsendable) -> None:
        """S3: a submission that cannot be sent fails the attempt; so does content that its receiver waits for."""
        request, attempt = self._meant(event)
        if request is not None:
            stage = self._state.pools.replicas[event.replica].stage
            error = wire.ErrorInfo.of(ProtocolError(event.why, stage=stage, replica=event.replica))
            failed = life.SubmissionFailed(stage, error) if event.submission else life.Failed(error)
            self._driver.advance(request, failed, attempt)

    def _meant(self, event: WorkerUnreachable | FrameUnsendable) -> tuple[Request | None, Attempt | None]:
        """The request and the attempt that the frame was about, if it is bound to that incarnation."""
        request = self._state.requests.get(event.request_id)
        attempt = None if request is None else request.attempts.get(event.attempt)
        stage = self._state.pools.replicas[event.replica].stage
        bound = attempt is not None and attempt.bindings.get(stage) == (event.replica, event.incarnation)
        return (request, attempt) if bound else (None, None)

    def _late(self, replica: Replica, frame: Report) -> None:
        """Of nothing that is known any more (C4, F3). A leftover's end frees its place (A6)."""
        self._state.counters.late_frames += 1
        if isinstance(frame, wire.StageFinished):
            self._state.may_admit = True
            key, binding = (frame.request_id, frame.attempt), Binding(replica.id, replica.incarnation)
            self._state.pools.release(key, binding)

    def _fact(self, request: Request, attempt: Attempt, replica: Replica, frame: wire.StageFact) -> None:
        if frame.fact not in REPORTED:
            self._state.counters.bad_frames += 1
            return
        self._record(replica, request, attempt, frame.fact, frame.at_ns, frame.detail)
        if frame.fact == "registered":
            self._driver.advance(request, life.Registered(replica.stage), attempt)
        elif frame.fact == "input_ready" and attempt is request.attempt:
            attempt.ready.add(replica.stage)
            self._recount(request)

    def _paused(self, request: Request, attempt: Attempt, replica: Replica, frame: wire.StagePaused) -> None:
        """The caller has to read before the stage goes on, or has read. The first pause and its end are facts of the
        trace."""
        state, stage = self._state, replica.stage
        if attempt is not request.attempt or request.ended:
            state.counters.late_frames += 1
            return
        if stage not in request.delivered:  # nobody reads from it
            state.counters.bad_frames += 1
            return
        if frame.paused and stage not in attempt.ever_paused:
            attempt.ever_paused.add(stage)
            self._record(replica, request, attempt, "paused", frame.at_ns)
        elif not frame.paused and stage not in attempt.ever_resumed:
            attempt.ever_resumed.add(stage)
            self._record(replica, request, attempt, "resumed", frame.at_ns)
        (attempt.paused.add if frame.paused else attempt.paused.discard)(stage)
        (state.paused.add if attempt.paused else state.paused.discard)(request.id)
        self._recount(request)

    def _recount(self, request: Request) -> None:
        """Who waits for input, or for its caller to read, takes no place (B1)."""
        attempt = request.attempt
        for stage, binding in attempt.bindings.items():
            self._state.pools.count(attempt.key, binding, active=attempt.computes(stage, request.plan))
        self._state.may_admit = True

    def _relay(self, request: Request, attempt: Attempt, replica: Replica, frame: wire.RelayContent) -> None:
        limit = self._state.limits.relay_max_bytes
        if len(frame.data) <= limit:
            self._driver.advance(request, life.RelayArrived(replica.stage, frame.target, frame.data), attempt)
            return
        text = f"{len(frame.data)} bytes for {frame.target} are over router.relay_max_bytes ({limit})"
        error = wire.ErrorInfo("stage_error", text, replica.stage, replica.id, False)
        self._driver.advance(request, life.Failed(error), attempt)

    def _finished(self, request: Request, attempt: Attempt, replica: Replica, frame: wire.StageFinished) -> None:
        if self._state.limits.trace:
            for edge in frame.edges:
                self._record(replica, request, attempt, "edge", frame.at_ns, _sent(edge))
            self._record(replica, request, attempt, "finished", frame.at_ns, _reported(frame))
        usage = {**frame.usage, **_edge_totals(frame.edges)}
        report = life.StageFinished(replica.stage, frame.finish_reason, frame.error, usage, frame.note, frame.outputs)
        self._driver.advance(request, report, attempt)


def _sent(edge: wire.EdgeCount) -> dict[str, wire.Value]:
    return {
        "to": edge.target,
        "chunks": edge.chunks,
        "bytes": edge.bytes,
        "first_ns": edge.first_ns,
        "last_ns": edge.last_ns,
        "parked_ns": edge.parked_ns,
    }


def _reported(frame: wire.StageFinished) -> dict[str, wire.Value]:
    detail: dict[str, wire.Value] = {"finish_reason": frame.finish_reason, "outputs": frame.outputs}
    for name, count in frame.usage.items():
        if name not in _TIMES:
            detail[f"usage_{name}"] = count
    if frame.note:
        detail["note"] = frame.note
    if frame.error is not None:
        detail |= {"error_code": frame.error.code, "error_message": frame.error.message}
        detail["error_stage"] = frame.error.stage
    return detail


def _edge_totals(edges: list[wire.EdgeCount]) -> dict[str, int | float]:
    """Chunks and bytes that a stage sent over all its edges, and over each (C6)."""
    totals: dict[str, int | float] = {}
    if edges:
        totals = {"chunks_out": sum(edge.chunks for edge in edges), "bytes_out": sum(edge.bytes for edge in edges)}
    for edge in edges:
        totals |= {f"chunks_to.{edge.target}": edge.chunks, f"bytes_to.{edge.target}": edge.bytes}
    return totals
