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
from omnizmq.errors import (
    InvalidRequestError,
    OmnizmqError,
    OverloadedError,
    ProtocolError,
    ReplicaLostError,
    UnavailableError,
)
from omnizmq.pipeline import Pipeline
from omnizmq.router import door
from omnizmq.router import lifecycle as life
from omnizmq.router.messages import (
    ClientGone,
    ClientSent,
    DrainAsked,
    Drained,
    Effect,
    FrameUnsendable,
    Input,
    KillReplica,
    Record,
    ReplicaExited,
    ReplicaFailed,
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
from omnizmq.router.pools import Binding, Pools, Replica
from omnizmq.router.request import Request
from omnizmq.router.status import replica_counts, ring_rows
from omnizmq.router.timers import Timers
from omnizmq.trace.facts import Fact

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
        self._may_admit = True

    # --- The way in ------------------------------------------------------------------------------------------------

    def handle(self, event: Input, now: float) -> list[Effect]:
        """`now` never goes back. What is ordered is to be done in this order."""
        self._effects = []
        self._now = now
        self._may_admit = True
        self._dispatch(event)
        if self.queue and self._may_admit:
            self._admit_waiting()
        if self.draining and not self.requests and not self._drained:
            self._drained = True
            self._effects.append(Drained())
        return self._effects

    def next_timer(self) -> float | None:
        """When the first timer of a request is due."""
        return self._timers.next()

    def next_tick(self) -> float:
        """When `Ticked` is wanted at the latest: for a heartbeat, to know that time goes on, or for a request's timer.

        Time must be looked at several times within a heartbeat's timeout: see `_forgive_own_sleep`.
        """
        limits = self.config.router
        regular = min(self._beaten + limits.heartbeat_interval_s, self._ticked + limits.heartbeat_timeout_s / 4)
        timer = self._timers.next()
        return regular if timer is None else min(regular, timer)

    def status(self, now: float) -> dict[str, object]:
        """The document of `omnizmq status --json`."""
        return {
            "name": self.config.name,
            "state": "draining" if self.draining else "running",
            "ready": self.pools.all_ready() and not self.draining,
            "live_requests": len(self.requests),
            "queued": len(self.queue),
            **replica_counts(self.pools, now),
            "rings": ring_rows(self.pools),
            "counters": self.counters.document(self.requests.values()),
        }

    def _dispatch(self, event: Input) -> None:
        match event:
            case WorkerSent():  # first, because nearly all are
                self._worker_sent(event)
            case ClientSent():
                self._client_sent(event)
            case ClientGone():
                self._client_gone(event)
            case ReplicaStarting():
                self.pools.starting(event.replica, event.incarnation, event.pid, self._now)
            case WorkerJoined():
                self._worker_joined(event)
            case WorkerUnreachable():
                self._worker_unreachable(event)
            case FrameUnsendable():
                self._frame_unsendable(event)
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
                    self._consumed(request, frame)
            case wire.Operate() as frame:
                error = wire.ErrorInfo.of(UnavailableError(f"{frame.action} is not possible here"))
                self._effects.append(ToClient(event.client, wire.Operated(frame.call, error)))
            case wire.AskStatus() as frame:
                document = wire.encode_json(self.status(self._now))
                self._effects.append(ToClient(event.client, wire.Status(frame.call, document)))
            case wire.Bye():
                self._client_gone(ClientGone(event.client, "said goodbye"))
            case _:
                assert_never(event.frame)

    def _consumed(self, request: Request, frame: wire.Consumed) -> None:
        if frame.stage in request.plan.final_stages:
            request.consumed[frame.stage] = max(request.consumed.get(frame.stage, 0), frame.outputs)

    def _submit(self, client: bytes, frame: wire.Submit) -> None:
        try:
            self._check_id(frame)
        except OmnizmqError as error:
            self._refuse(client, frame, error)  # without a fact: the trace under this id may be another's
            return
        self._record_before(frame, "asked", owner="client", at_ns=frame.at_ns)
        try:
            request = self._accept(client, frame)
            bound = self.pools.bind(request.key, request.plan.names, frame.affinity)
            if bound is None and len(self.queue) >= self.config.router.max_queued:
                raise OverloadedError(
                    f"the queue is full: {len(self.queue)} wait already (router.max_queued); try again shortly"
                )
        except OmnizmqError as error:
            self._record_before(frame, "refused", detail={"code": error.code, "message": error.message})
            self._refuse(client, frame, error)
            return
        self._take_in(request)
        if bound is not None:
            self._start(request, bound)
            return
        self.queue.append(request.id)
        self._record(request, "queued")

    def _check_id(self, frame: wire.Submit) -> None:
        """A leftover's id still means its earlier bearer to the replica that has it."""
        wire.check_request_id(frame.request_id, frame.external_id)
        if frame.request_id in self.requests or self.pools.has_leftover(frame.request_id):
            raise InvalidRequestError(f"request id {frame.request_id} is in use")

    def _accept(self, client: bytes, frame: wire.Submit) -> Request:
        """The request, or the error that refuses it: no request exists then."""
        if self.draining:
            raise UnavailableError("the deployment is stopping and takes no new requests")
        return Request(client, frame, door.check(frame, self.pipeline, self.config.router), self.config.router)

    def _refuse(self, client: bytes, frame: wire.Submit, error: OmnizmqError) -> None:
        self.counters.refused += 1
        request_id = frame.request_id[: door.REQUEST_ID_CHARS]
        self._effects.append(ToClient(client, wire.Refused(request_id, wire.ErrorInfo.of(error))))

    def _take_in(self, request: Request) -> None:
        self.counters.requests += 1
        self.requests[request.id] = request
        self._by_external.setdefault(request.submit.external_id, set()).add(request.id)
        self._record(request, "received", detail=request.planned(self.pipeline))
        if request.submit.deadline_s is not None:
            self._timers.add(self._now + request.submit.deadline_s, request.id, "deadline")

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
        full: set[tuple[str, ...]] = set()
        for request_id in list(self.queue):
            request = self.requests[request_id]
            stages = request.plan.names
            if stages in full:
                continue
            try:
                bound = self.pools.bind(request.key, stages, request.submit.affinity)
            except UnavailableError as error:
                self._advance(request, life.Failed(wire.ErrorInfo.of(error)))
                continue
            if bound is not None:
                self.queue.remove(request_id)
                self._start(request, bound)
            elif request.submit.affinity is None:
                full.add(stages)

    def _start(self, request: Request, bound: dict[str, Binding]) -> None:
        request.bindings = bound
        for stage, binding in bound.items():
            self._record(request, "bound", stage=stage, detail={"replica": binding.replica})
        self._advance(request, life.Bound())

    # --- Workers ---------------------------------------------------------------------------------------------------

    def _worker_joined(self, event: WorkerJoined) -> None:
        replica = self.pools.seen(event.replica, event.incarnation, self._now)
        if replica is not None:
            replica.endpoint = event.endpoint

    def _worker_sent(self, event: WorkerSent) -> None:
        replica = self.pools.seen(event.replica, event.incarnation, self._now)
        frame = event.frame
        if replica is None or frame.incarnation != event.incarnation:
            self.counters.late_frames += 1
        elif isinstance(frame, wire.Heartbeat):
            self._heartbeat(replica, frame)
        else:
            self._stage_reported(replica, frame)

    def _heartbeat(self, replica: Replica, frame: wire.Heartbeat) -> None:
        replica.engine_state, replica.engine_text = frame.state, frame.text
        replica.engine_since, replica.engine_told = frame.since_ns / 1e9, self._now
        replica.rings, replica.late_frames, replica.bad_frames = frame.rings, frame.late_frames, frame.bad_frames
        if replica.state != "starting":
            return
        if frame.state in ("idle", "stepping"):
            replica.state = "ready"
            self._effects.append(ReplicaReady(replica.id))
        elif frame.state == "failed":
            self._effects.append(ReplicaFailed(replica.id, frame.text))
        else:
            self._effects.append(ReplicaLoading(replica.id, frame.text))

    def _stage_reported(
        self,
        replica: Replica,
        frame: wire.StageFact | wire.StagePaused | wire.Output | wire.RelayContent | wire.StageFinished,
    ) -> None:
        request = self.requests.get(frame.request_id)
        if request is None or not request.is_bound(replica, frame.attempt):
            self.counters.late_frames += 1
            if isinstance(frame, wire.StageFinished):
                left = (frame.request_id, frame.attempt)
                self.pools.release(left, Binding(replica.id, replica.incarnation))
            return
        stage = replica.stage
        match frame:
            case wire.Output():
                self._may_admit = False  # by itself, an output makes no room
                if frame.last:
                    self._record(request, "output_ended", stage=stage, owner=replica.id, at_ns=frame.at_ns)
                self._advance(request, life.OutputArrived(stage, frame.seq, frame.content, frame.last))
            case wire.StagePaused():
                pass
            case wire.StageFact():
                self._stage_fact(request, replica, frame)
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
        """What else was lost on the way to that incarnation nobody knows, so it does not go on."""
        request = self._bound_request(event)
        replica = self.pools.replicas[event.replica]
        if request is not None:
            text = f"{event.replica} cannot be reached: {event.why}"
            lost = ReplicaLostError(text, stage=replica.stage, replica=event.replica)
            self._advance(request, life.SubmissionFailed(replica.stage, wire.ErrorInfo.of(lost)))
        if replica.incarnation == event.incarnation:
            self._give_up(replica, f"unreachable: {event.why}")

    def _frame_unsendable(self, event: FrameUnsendable) -> None:
        """S3: a submission that cannot be sent fails the attempt; so does content that its receiver waits for."""
        request = self._bound_request(event)
        if request is not None:
            stage = self.pools.replicas[event.replica].stage
            error = wire.ErrorInfo.of(ProtocolError(event.why, stage=stage, replica=event.replica))
            self._advance(request, life.SubmissionFailed(stage, error) if event.submission else life.Failed(error))

    def _bound_request(self, event: WorkerUnreachable | FrameUnsendable) -> Request | None:
        """The request that the frame was about, if it is bound to that incarnation."""
        request = self.requests.get(event.request_id)
        stage = self.pools.replicas[event.replica].stage
        bound = request is not None and request.bindings.get(stage) == (event.replica, event.incarnation)
        return request if bound else None

    def _give_up(self, replica: Replica, why: str) -> None:
        """Nothing more is bound to it; `ReplicaExited` follows, and ends what is."""
        if replica.state not in ("dead", "stuck"):
            replica.state = "stuck"
            self._effects.append(KillReplica(replica.id, replica.incarnation, why))

    def _replica_exited(self, event: ReplicaExited) -> None:
        bound = self.pools.lost(event.replica, event.incarnation)
        if bound is None:
            return
        self.counters.replicas_lost += 1
        replica = self.pools.replicas[event.replica]
        lost = wire.PeerLost(event.replica, event.incarnation)
        for other in self.pools.replicas.values():
            if other.state in ("ready", "stuck"):
                self._effects.append(ToWorker(other.id, other.incarnation, lost))
        for request_id, attempt in bound:
            request = self.requests.get(request_id)
            if request is not None and request.attempt == attempt:
                why: dict[str, wire.Value] = {"replica": replica.id, "reason": event.reason}
                self._record(request, "replica_lost", stage=replica.stage, detail=why)
                self._advance(request, life.ReplicaLost(replica.stage, replica.id, event.reason))

    # --- Time ------------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        before, self._ticked = self._ticked, self._now
        beat = self._now - self._beaten >= self.config.router.heartbeat_interval_s
        if beat:
            self._beaten = self._now
        self._forgive_own_sleep(before)
        for request_id, kind in self._timers.due(self._now):
            request = self.requests.get(request_id)
            if request is not None:
                self._timer_fired(request, kind)
        if beat:
            self._beat()

    def _forgive_own_sleep(self, ticked: float) -> None:
        """After the router itself was stopped, nobody else is silent: everybody has a whole timeout again."""
        if ticked and self._now - ticked > self.config.router.heartbeat_timeout_s / 2:
            for replica in self.pools.replicas.values():
                replica.last_seen = self._now
                replica.engine_since = self._now  # until its next heartbeat says better

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
                self._give_up(replica, why)
            elif replica.endpoint:
                self._effects.append(ToWorker(replica.id, replica.incarnation, wire.Ping()))

    def _what_ails(self, replica: Replica) -> str | None:
        """F2: silent, stuck in a step, or too slow to load; each with a limit of its own."""
        stage = self.pipeline.by_name[replica.stage]
        silent = self._now - replica.last_seen
        if replica.state == "starting":
            loading = self._now - replica.engine_since
            return f"not ready after {loading:.0f} s" if loading > stage.start_timeout_s else None
        if silent > self.config.router.heartbeat_timeout_s:
            return f"silent for {silent:.1f} s"
        stepping = replica.engine_told - replica.engine_since  # it may have ended since: the next heartbeat says
        if replica.engine_state == "stepping" and stepping > stage.step_timeout_s:
            return f"stuck in a step for {stepping:.1f} s"
        return None

    # --- Requests --------------------------------------------------------------------------------------------------

    def _advance(self, request: Request, event: life.Event) -> None:
        """Feed the lifecycle and carry out its commands. Whatever goes wrong is this request's alone (F1)."""
        lifecycle = request.lifecycle
        late = lifecycle.late
        failures: list[life.Event] = []
        self._obey(request, self._commands(request, event), failures)
        while failures:
            self._obey(request, self._commands(request, failures.pop(0)), failures)
        if lifecycle.late != late:
            self.counters.late_frames += lifecycle.late - late
        if lifecycle.settled:
            self._forget(request)

    def _obey(self, request: Request, commands: list[life.Command], failures: list[life.Event]) -> None:
        """Carry them out; what it means that one could not be goes to the failures."""
        for command in commands:
            try:
                self._carry_out(request, command)
            except Exception as error:  # noqa: BLE001 (F1: the boundary between one request and all the others)
                failures.append(self._failure(command, error))

    def _commands(self, request: Request, event: life.Event) -> list[life.Command]:
        """What the lifecycle orders. An event that cannot be fails the request: its stage does what it should not."""
        try:
            return request.lifecycle.handle(event)
        except Exception as error:  # noqa: BLE001 (the same boundary)
            return request.lifecycle.handle(life.Failed(self._blame(error)))

    def _failure(self, command: life.Command, error: Exception) -> life.Event:
        """What it means for a request that one of its commands could not be carried out."""
        blamed = self._blame(error)
        if isinstance(command, life.SubmitStage):
            return life.SubmissionFailed(command.stage, blamed)
        return life.Failed(blamed)

    def _blame(self, error: Exception) -> wire.ErrorInfo:
        if isinstance(error, ProtocolError):
            self.counters.bad_frames += 1
            return wire.ErrorInfo.of(error)
        self.counters.router_errors += 1
        return wire.ErrorInfo.of(OmnizmqError(f"the router failed on this request: {type(error).__name__}: {error}"))

    def _carry_out(self, request: Request, command: life.Command) -> None:
        match command:
            case life.Deliver():  # first, because nearly all are
                self.counters.outputs += 1
                self._to_caller(request, request.delivery(command))
            case life.SubmitStage():
                submission = request.submission(command.stage, self.pools)
                self._record(request, "submitted", stage=command.stage)
                self._to_stage(request, command.stage, submission)
            case life.FeedStage():
                feed = wire.FeedStage(request.id, request.attempt, command.source, command.data)
                self._to_stage(request, command.stage, feed)
            case life.AbortStage():
                self._to_stage(request, command.stage, wire.AbortStage(request.id, request.attempt))
            case life.SendTerminal():
                self._terminal(request, command)
            case life.ReleaseStage():
                self._may_admit = True
                if command.stage in request.bindings:
                    self.pools.release(request.key, request.bindings[command.stage])
            case life.LeaveBehind():
                binding = request.bindings[command.stage]
                self._record(request, "left_behind", stage=command.stage, detail={"replica": binding.replica})
                self.pools.leave_behind(request.key, binding)
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
        del self.requests[request.id]
        self._timers.cancel(request.id)
        bearers = self._by_external[request.submit.external_id]
        bearers.remove(request.id)
        if not bearers:
            del self._by_external[request.submit.external_id]

    def _record_before(
        self,
        frame: wire.Submit,
        event: str,
        *,
        owner: str = "router",
        at_ns: int | None = None,
        detail: dict[str, wire.Value] | None = None,
    ) -> None:
        """A fact of a submission that is not a request yet."""
        at_ns = int(self._now * 1e9) if at_ns is None else at_ns
        fact = Fact(frame.request_id, frame.external_id, 1, at_ns, owner, event, detail=detail or {})
        self._effects.append(Record(fact))

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
