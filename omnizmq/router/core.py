"""The router's rules: frames and time in, effects out (I2, P2-P4, S1-S4, A1, A5-A7, F1-F4, B1-B3).

It holds the requests, the pools, the queue of those waiting for a replica, and the timers. It decides; it does no I/O:
no sockets, no clock (`now` is an argument: CLOCK_MONOTONIC in seconds), no randomness.

An exception about one request fails that request and is counted; nothing about one request ends the router (F1).
"""

from __future__ import annotations

from typing import assert_never

import msgspec

from omnizmq import protocol as wire
from omnizmq.config import Config
from omnizmq.errors import InvalidRequestError, OmnizmqError, OverloadedError, ProtocolError, UnavailableError
from omnizmq.pipeline import Pipeline
from omnizmq.router import lifecycle as life
from omnizmq.router.messages import (
    ClientGone,
    ClientSent,
    DrainAsked,
    Drained,
    Effect,
    Input,
    KillReplica,
    Record,
    ReplicaExited,
    ReplicaLoading,
    ReplicaReady,
    ReplicaStarting,
    StopAsked,
    Ticked,
    ToClient,
    ToWorker,
    WorkerJoined,
    WorkerSent,
    WorkerUnreachable,
)
from omnizmq.router.metrics import Counters
from omnizmq.router.pools import Pools, Replica
from omnizmq.router.request import Request
from omnizmq.router.status import replica_counts
from omnizmq.router.timers import Timers

FACTS = ("registered", "input_ready", "running", "first_output")


class RouterCore:
    """One deployment."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.pipeline = Pipeline(config)
        self.pools = Pools(self.pipeline.stages)
        self.requests: dict[str, Request] = {}
        self.queue: list[str] = []
        self.counters = Counters()
        self.draining = False
        self._drained = False
        self._by_external: dict[str, set[str]] = {}
        self._timers = Timers()
        self._ticked = 0.0
        self._beaten = 0.0
        self._effects: list[Effect] = []
        self._now = 0.0

    # --- The way in ------------------------------------------------------------------------------------------------

    def handle(self, event: Input, now: float) -> list[Effect]:
        self._effects = []
        self._now = now
        self._dispatch(event)
        self._admit_waiting()
        if self.draining and not self.requests and not self._drained:
            self._drained = True
            self._effects.append(Drained())
        return self._effects

    def next_timer(self) -> float | None:
        """When `Ticked` is wanted at the latest, besides the regular one each heartbeat interval."""
        return self._timers.next()

    def status(self, now: float) -> dict[str, object]:
        """The document of `omnizmq status --json`."""
        return {
            "name": self.config.name,
            "state": "draining" if self.draining else "running",
            "ready": self.pools.all_ready() and not self.draining,
            "live_requests": len(self.requests),
            "queued": len(self.queue),
            **replica_counts(self.pools, now),
            "rings": [],
            "counters": self.counters.document(self.requests.values()),
        }

    def _dispatch(self, event: Input) -> None:
        match event:
            case ClientSent():
                self._client_sent(event)
            case ClientGone():
                self._client_gone(event)
            case ReplicaStarting():
                self.pools.starting(event.replica, event.incarnation, event.pid, self._now)
            case WorkerJoined():
                self._worker_joined(event)
            case WorkerSent():
                self._worker_sent(event)
            case WorkerUnreachable():
                self._worker_unreachable(event)
            case ReplicaExited():
                self._replica_exited(event)
            case Ticked():
                self._tick()
            case DrainAsked():
                self.draining = True
            case StopAsked():
                self.draining = True
                stopping = wire.ErrorInfo.of(UnavailableError(event.why))
                for request in list(self.requests.values()):
                    self._advance(request, life.Failed(stopping))
            case _:
                assert_never(event)

    # --- Clients ---------------------------------------------------------------------------------------------------

    def _client_sent(self, event: ClientSent) -> None:
        match event.frame:
            case wire.Submit() as frame:
                self._submit(event.client, frame)
            case wire.Abort() as frame:
                self._abort(event.client, frame)
            case wire.Consumed() as frame:
                request = self.requests.get(frame.request_id)
                if request is not None and request.client == event.client:
                    request.consumed = max(request.consumed, min(frame.outputs, request.lifecycle.delivered))
            case wire.AskStatus() as frame:
                document = wire.encode_json(self.status(self._now))
                self._effects.append(ToClient(event.client, wire.Status(frame.call, document)))
            case wire.Bye():
                self._client_gone(ClientGone(event.client, "said goodbye"))
            case _:
                assert_never(event.frame)

    def _submit(self, client: bytes, frame: wire.Submit) -> None:
        try:
            request = self._accept(client, frame)
        except OmnizmqError as error:
            self.counters.refused += 1
            self._effects.append(ToClient(client, wire.Refused(frame.request_id, wire.ErrorInfo.of(error))))
            return
        self.counters.requests += 1
        self.requests[frame.request_id] = request
        self._by_external.setdefault(frame.external_id, set()).add(frame.request_id)
        self._record(request, "asked", owner="client", at_ns=frame.at_ns)
        self._record(request, "received", detail=request.planned(self.pipeline))
        if frame.deadline_s is not None:
            self._timers.add(self._now + max(0.0, frame.deadline_s), frame.request_id, "deadline")
        self.queue.append(frame.request_id)
        self._admit_waiting()
        if frame.request_id in self.queue:
            self._record(request, "queued")

    def _accept(self, client: bytes, frame: wire.Submit) -> Request:
        """The request, or the error that refuses it: no request exists then."""
        wire.check_request_id(frame.request_id, frame.external_id)
        if frame.request_id in self.requests:
            raise InvalidRequestError(f"request id {frame.request_id} is in use")
        if self.draining:
            raise UnavailableError("the deployment is stopping and takes no new requests")
        if frame.prompt.size() > self.config.router.max_prompt_bytes:
            raise InvalidRequestError(
                f"the prompt has {frame.prompt.size()} bytes; this deployment takes at most "
                f"{self.config.router.max_prompt_bytes} (router.max_prompt_bytes)"
            )
        for stage in frame.params:
            if stage not in self.pipeline.by_name:
                raise InvalidRequestError(
                    f"params name an unknown stage {stage!r}: this deployment has {', '.join(self.pipeline.by_name)}"
                )
        plan = self.pipeline.plan(frame.modalities)
        self.pools.require_live(plan.names)
        if len(self.queue) >= self.config.router.max_queued:
            raise OverloadedError(f"{len(self.queue)} requests are waiting already (router.max_queued)")
        return Request(client, frame, plan)

    def _abort(self, client: bytes, frame: wire.Abort) -> None:
        """I2: an external id means exactly its bearers. A5: an unknown id is a success that does nothing."""
        matched = sorted(self._by_external.get(frame.id, ()))
        if frame.id in self.requests and frame.id not in matched:
            matched.append(frame.id)
        live = [self.requests[rid] for rid in matched if self.requests[rid].lifecycle.phase is not life.Phase.ENDED]
        for request in live:
            self._abort_request(request, "caller")
        self._effects.append(ToClient(client, wire.AbortAck(frame.call, len(live))))

    def _abort_request(self, request: Request, why: str) -> None:
        self._record(request, "abort_asked", detail={"why": why})
        self._advance(request, life.AbortAsked())

    def _client_gone(self, event: ClientGone) -> None:
        self.counters.clients_gone += 1
        for request in [request for request in self.requests.values() if request.client == event.client]:
            request.client = None
            if request.lifecycle.phase is not life.Phase.ENDED:
                self._abort_request(request, f"disconnect: {event.why}")

    # --- Admission -------------------------------------------------------------------------------------------------

    def _admit_waiting(self) -> None:
        """In order of arrival, all that find a replica for every stage."""
        for request_id in list(self.queue):
            request = self.requests[request_id]
            try:
                bound = self.pools.bind(request_id, request.plan.names, request.submit.affinity)
            except UnavailableError as error:
                self.queue.remove(request_id)
                self._advance(request, life.Failed(wire.ErrorInfo.of(error)))
                continue
            if bound is not None:
                self.queue.remove(request_id)
                self._start(request, bound)

    def _start(self, request: Request, bound: dict[str, Replica]) -> None:
        request.bind(bound)
        for stage, replica in bound.items():
            self._record(request, "bound", stage=stage, detail={"replica": replica.id})
        self._advance(request, life.Bound())

    # --- Workers ---------------------------------------------------------------------------------------------------

    def _worker_joined(self, event: WorkerJoined) -> None:
        replica = self.pools.seen(event.replica, event.incarnation, self._now)
        if replica is not None:
            replica.endpoint = event.endpoint

    def _worker_sent(self, event: WorkerSent) -> None:
        replica = self.pools.seen(event.replica, event.incarnation, self._now)
        frame = event.frame
        if isinstance(frame, wire.Bye):
            return
        if replica is None or frame.incarnation != event.incarnation:
            self.counters.late_frames += 1
        elif isinstance(frame, wire.Heartbeat):
            self._heartbeat(replica, frame)
        else:
            self._stage_reported(replica, frame)

    def _heartbeat(self, replica: Replica, frame: wire.Heartbeat) -> None:
        replica.engine_state, replica.engine_text = frame.state, frame.text
        replica.engine_since = frame.since_ns / 1e9
        if replica.state != "starting":
            return
        if frame.state in ("loading", "failed"):
            self._effects.append(ReplicaLoading(replica.id, frame.text))
        else:
            replica.state = "ready"
            self._effects.append(ReplicaReady(replica.id))

    def _stage_reported(
        self, replica: Replica, frame: wire.StageFact | wire.Output | wire.RelayContent | wire.StageFinished
    ) -> None:
        request = self.requests.get(frame.request_id)
        if request is None or not request.is_bound(replica, frame.attempt):
            self.counters.late_frames += 1
            if isinstance(frame, wire.StageFinished):
                self.pools.release(frame.request_id, replica.id)
            return
        stage = replica.stage
        match frame:
            case wire.StageFact():
                self._stage_fact(request, replica, frame)
            case wire.Output():
                if frame.last:
                    self._record(request, "output_ended", stage=stage, owner=replica.id, at_ns=frame.at_ns)
                self._advance(request, life.OutputArrived(stage, frame.seq, frame.content, frame.last))
            case wire.RelayContent():
                self._relay(request, replica, frame)
            case wire.StageFinished():
                self._stage_finished(request, replica, frame)
            case _:
                assert_never(frame)

    def _stage_fact(self, request: Request, replica: Replica, frame: wire.StageFact) -> None:
        if frame.fact not in FACTS:
            self.counters.bad_frames += 1
            return
        self._record(request, frame.fact, stage=replica.stage, owner=replica.id, at_ns=frame.at_ns)
        if frame.fact == "registered":
            self._advance(request, life.Registered(replica.stage))

    def _relay(self, request: Request, replica: Replica, frame: wire.RelayContent) -> None:
        limit = self.config.router.relay_max_bytes
        if len(frame.data) <= limit:
            self._advance(request, life.RelayArrived(replica.stage, frame.target, frame.data))
            return
        text = f"{len(frame.data)} bytes for {frame.target} are over router.relay_max_bytes ({limit})"
        error = wire.ErrorInfo("stage_error", text, replica.stage, replica.id, False)
        self._advance(request, life.Failed(error))

    def _stage_finished(self, request: Request, replica: Replica, frame: wire.StageFinished) -> None:
        stage, at_ns = replica.stage, frame.at_ns
        for edge in frame.edges:
            sent = msgspec.structs.asdict(edge)
            sent["to"] = sent.pop("target")
            self._record(request, "edge", stage=stage, owner=replica.id, at_ns=at_ns, detail=sent)
        detail: dict[str, wire.Value] = {"finish_reason": frame.finish_reason, "outputs": frame.outputs}
        if frame.error is not None:
            detail |= {"error_code": frame.error.code, "error_message": frame.error.message}
        self._record(request, "finished", stage=stage, owner=replica.id, at_ns=at_ns, detail=detail)
        usage = {**frame.usage, **_edge_totals(frame.edges)}
        report = life.StageFinished(stage, frame.finish_reason, frame.error, usage, frame.note, frame.outputs)
        self._advance(request, report)

    def _worker_unreachable(self, event: WorkerUnreachable) -> None:
        """S3: a submission that cannot be sent fails the attempt. The process itself is the launcher's to judge."""
        request = self.requests.get(event.request_id)
        replica = self.pools.replicas[event.replica]
        if request is None or not request.is_bound(replica, request.attempt):
            return
        text = f"{event.replica} cannot be reached: {event.why}"
        error = wire.ErrorInfo("replica_lost", text, replica.stage, replica.id, True)
        self._advance(request, life.SubmissionFailed(replica.stage, error))

    def _replica_exited(self, event: ReplicaExited) -> None:
        replica = self.pools.replicas[event.replica]
        if replica.incarnation != event.incarnation:
            return
        self.counters.replicas_lost += 1
        lost = wire.PeerLost(event.replica, event.incarnation)
        bound = self.pools.lost(event.replica, event.incarnation)
        for other in self.pools.replicas.values():
            if other.state in ("ready", "stuck"):
                self._effects.append(ToWorker(other.id, other.incarnation, lost))
        for request_id in bound:
            request = self.requests.get(request_id)
            if request is not None:
                self._advance(request, life.ReplicaLost(replica.stage, replica.id, event.reason))

    # --- Time ------------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        self._forgive_own_sleep()
        for request_id, kind in self._timers.due(self._now):
            request = self.requests.get(request_id)
            if request is not None:
                self._timer_fired(request, kind)
        if self._now - self._beaten >= self.config.router.heartbeat_interval_s:
            self._beaten = self._now
            self._beat()

    def _forgive_own_sleep(self) -> None:
        """After the router itself was stopped, nobody else is silent: everybody has a whole timeout again."""
        if self._ticked and self._now - self._ticked > self.config.router.heartbeat_timeout_s / 2:
            for replica in self.pools.replicas.values():
                replica.last_seen = self._now
        self._ticked = self._now

    def _timer_fired(self, request: Request, kind: str) -> None:
        if kind == "abort":
            self._advance(request, life.AbortTimedOut())
        elif kind == "grace":
            self._advance(request, life.GraceExpired())
        elif kind == "deadline":
            text = f"the request's deadline of {request.submit.deadline_s} s has passed"
            self._advance(request, life.Failed(wire.ErrorInfo("deadline_exceeded", text, None, None, False)))

    def _beat(self) -> None:
        for replica in self.pools.replicas.values():
            if replica.state in ("dead", "stuck"):
                continue
            why = self._what_ails(replica)
            if why is not None:
                replica.state = "stuck"
                self._effects.append(KillReplica(replica.id, replica.incarnation, why))
            elif replica.endpoint:
                beat = wire.Heartbeat(replica.incarnation, "router", int(self._now * 1e9), "", len(self.requests))
                self._effects.append(ToWorker(replica.id, replica.incarnation, beat))

    def _what_ails(self, replica: Replica) -> str | None:
        """F2: silent, stuck in a step, or too slow to load; each with a limit of its own."""
        stage = self.pipeline.by_name[replica.stage]
        silent, busy = self._now - replica.last_seen, self._now - replica.engine_since
        if replica.state == "starting":
            return f"not ready after {busy:.0f} s" if busy > stage.start_timeout_s else None
        if silent > self.config.router.heartbeat_timeout_s:
            return f"silent for {silent:.1f} s"
        if replica.engine_state == "stepping" and busy > stage.step_timeout_s:
            return f"stuck in a step for {busy:.1f} s"
        return None

    # --- Requests --------------------------------------------------------------------------------------------------

    def _advance(self, request: Request, event: life.Event) -> None:
        """Feed the lifecycle and carry out its commands. Whatever goes wrong is this request's alone (F1)."""
        try:
            self._perform(request, event)
        except ProtocolError as error:
            self.counters.bad_frames += 1
            self._perform(request, life.Failed(wire.ErrorInfo.of(error)))
        except Exception as error:  # noqa: BLE001 (F1: the boundary between one request and all the others)
            self.counters.router_errors += 1
            text = f"the router failed on this request: {type(error).__name__}: {error}"
            self._perform(request, life.Failed(wire.ErrorInfo("internal_error", text, None, None, False)))

    def _perform(self, request: Request, event: life.Event) -> None:
        late = request.lifecycle.late
        for command in request.lifecycle.handle(event):
            self._carry_out(request, command)
        self.counters.late_frames += request.lifecycle.late - late
        if request.lifecycle.settled:
            self._forget(request)

    def _carry_out(self, request: Request, command: life.Command) -> None:
        match command:
            case life.SubmitStage():
                self._record(request, "submitted", stage=command.stage)
                self._to_stage(request, command.stage, request.submission(command.stage, self.pools))
            case life.FeedStage():
                feed = wire.FeedStage(request.id, request.attempt, command.source, command.data)
                self._to_stage(request, command.stage, feed)
            case life.AbortStage():
                self._to_stage(request, command.stage, wire.AbortStage(request.id, request.attempt))
            case life.Deliver():
                self.counters.outputs += 1
                self._to_caller(request, request.delivery(command))
            case life.SendTerminal():
                self._terminal(request, command)
            case life.ReleaseStage():
                if command.stage in request.bindings:
                    self.pools.release(request.id, request.bindings[command.stage].replica)
            case life.LeaveBehind():
                replica = request.bindings[command.stage].replica
                self._record(request, "left_behind", stage=command.stage, detail={"replica": replica})
                self.pools.leave_behind(request.id, replica)
            case life.StartAbortTimer():
                self._timers.add(self._now + self.config.router.abort_timeout_s, request.id, "abort")
            case life.StartGrace():
                self._record(request, "withheld", detail={"stages": ",".join(command.waiting_for)})
                self._timers.add(self._now + self.config.router.terminal_grace_s, request.id, "grace")
            case _:
                assert_never(command)

    def _terminal(self, request: Request, command: life.SendTerminal) -> None:
        if command.finish_reason == "error":
            self.counters.failed += 1
        elif command.finish_reason == "abort":
            self.counters.aborted += 1
        else:
            self.counters.finished += 1
        if request.id in self.queue:
            self.queue.remove(request.id)
        self._record(request, "terminal", stage=command.stage, detail=request.terminal_facts(command))
        self._to_caller(request, request.terminal(command))

    def _to_stage(self, request: Request, stage: str, frame: wire.RouterToWorker) -> None:
        binding = request.bindings[stage]
        self._effects.append(ToWorker(binding.replica, binding.incarnation, frame))

    def _to_caller(self, request: Request, frame: wire.RouterToClient) -> None:
        if request.client is not None:
            self._effects.append(ToClient(request.client, frame))

    def _forget(self, request: Request) -> None:
        self.requests.pop(request.id, None)
        bearers = self._by_external.get(request.submit.external_id, set())
        bearers.discard(request.id)
        if not bearers:
            self._by_external.pop(request.submit.external_id, None)

    def _record(
        self,
        request: Request,
        event: str,
        *,
        stage: str | None = None,
        owner: str = "router",
        at_ns: int | None = None,
        detail: dict[str, wire.Value] | None = None,
    ) -> None:
        at_ns = int(self._now * 1e9) if at_ns is None else at_ns
        self._effects.append(Record(request.fact(event, stage=stage, owner=owner, at_ns=at_ns, detail=detail or {})))


def _edge_totals(edges: list[wire.EdgeCount]) -> dict[str, int | float]:
    """Chunks and bytes that a stage sent over all its edges (C6)."""
    if not edges:
        return {}
    return {"chunks_out": sum(edge.chunks for edge in edges), "bytes_out": sum(edge.bytes for edge in edges)}
