"""The router's rules: frames and time in, effects out (I2, P2-P4, S1-S4, A1, A5-A7, F1-F4, B1-B3).

It holds the requests, the pools, the queue of those waiting for replicas, the timers, and an operator's orders. It
decides; it does no I/O: no sockets, no clock (`now` is an argument: CLOCK_MONOTONIC in seconds), no randomness.

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
from omnizmq.router import door, health
from omnizmq.router import lifecycle as life
from omnizmq.router.messages import (
    ClientGone,
    ClientSent,
    DrainAsked,
    Drained,
    Effect,
    FrameUnsendable,
    HandlingFailed,
    Input,
    KillReplica,
    Record,
    ReplicaExited,
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
from omnizmq.router.operating import Operations
from omnizmq.router.pools import Binding, Pools, Replica
from omnizmq.router.queue import Queue
from omnizmq.router.request import Attempt, Request
from omnizmq.router.status import replica_counts, ring_rows
from omnizmq.router.table import Table
from omnizmq.router.timers import Timer, Timers
from omnizmq.trace.facts import Fact

FACTS = ("registered", "input_ready", "running", "first_output")

STARVING = 4
"""A request that has waited so many times `priority_age_s` keeps the places that it needs from all behind it."""


class RouterCore:
    """One deployment."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.pipeline = Pipeline(config)
        self.pools = Pools(self.pipeline.stages)
        self.requests = Table()
        self.queue = Queue(config.router.priority_age_s)
        self.operations = Operations(self.pools)
        self.counters = Counters()
        self.draining = False
        self._drained = False
        self._timers = Timers()
        self._ticked = 0.0
        self._beaten = 0.0
        self._effects: list[Effect] = []
        self._now = 0.0
        self._may_admit = False
        self._paused: set[str] = set()
        self._kept: set[str] = set()  # stages whose places a starving request keeps

    # --- The way in ------------------------------------------------------------------------------------------------

    def handle(self, event: Input, now: float) -> list[Effect]:
        """`now` never goes back. What is ordered is to be done in this order."""
        self._effects = []
        self._now = now
        self._may_admit = False
        try:
            self._dispatch(event)
            if self.operations:
                self._effects += self.operations.look(now)
                self._may_admit = True
            if self._may_admit and (self.queue or self._kept):
                self._admit_waiting()
        except Exception as error:  # noqa: BLE001 (F1: what has been decided is done all the same)
            self.counters.router_errors += 1
            self._effects.append(HandlingFailed(error))
        if self.draining and not self.requests and not self._drained:
            self._drained = True
            self._effects.append(Drained())
        return self._effects

    def next_timer(self) -> float | None:
        """When the first timer of a request is due."""
        return self._timers.next()

    def next_tick(self) -> float:
        """When `Ticked` is wanted at the latest: for a heartbeat, to know that time goes on, or for a request's timer.

        Time must be looked at several times within a heartbeat's timeout: a longer pause is the router's own sleep.
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
            "paused": len(self._paused),
            **replica_counts(self.pools, now),
            "rings": ring_rows(self.pools),
            "counters": self.counters.document(self.requests),
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
                self.draining = self._may_admit = True
                self._effects += self.operations.stop("the deployment is stopping")
            case StopAsked():
                self.draining = True
                self._effects += self.operations.stop(event.why)
                stopping = wire.ErrorInfo.of(UnavailableError(event.why))
                for request in self.requests:
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
                self._operate(event.client, frame)
            case wire.AskStatus() as frame:
                document = wire.encode_json(self.status(self._now))
                self._effects.append(ToClient(event.client, wire.Status(frame.call, document)))
            case wire.Bye():
                self._client_gone(ClientGone(event.client, "said goodbye"))
            case _:
                assert_never(event.frame)

    def _operate(self, client: bytes, frame: wire.Operate) -> None:
        self._may_admit = True
        if self.draining:
            error = wire.ErrorInfo.of(UnavailableError("the deployment is stopping"))
            self._effects.append(ToClient(client, wire.Operated(frame.call, error)))
        else:
            self._effects += self.operations.ask(client, frame, self._now)

    def _consumed(self, request: Request, frame: wire.Consumed) -> None:
        """B1: the credit goes on to who makes the outputs; whoever else is paused learns that the caller reads."""
        delivered = request.delivered.get(frame.stage)
        if delivered is not None and delivered.consume(frame.outputs):
            for stage in sorted({frame.stage, *request.attempt.paused}):
                self._credit(request, stage)

    def _credit(self, request: Request, stage: str) -> None:
        if stage in request.attempt.lifecycle.unfinished:
            delivered = request.delivered[stage]
            credit = wire.OutputCredit(*request.attempt.key, delivered.credit, delivered.skipped)
            self._to_stage(request.attempt, stage, credit)

    def _submit(self, client: bytes, frame: wire.Submit) -> None:
        try:
            self._check_id(frame)
        except OmnizmqError as error:
            self._refuse(client, frame, error)  # without a fact: the trace under this id may be another's
            return
        self._record_before(frame, "asked", owner="client", at_ns=frame.at_ns)
        try:
            request = self._accept(client, frame)
            bound = self._bind_new(request)
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
        self._wait(request)

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
        self.requests.add(request)
        self._record(request, "received", detail=request.planned(self.pipeline))
        if request.submit.deadline_s is not None:
            self._timers.add(self._now + request.submit.deadline_s, request.id, "deadline", 1)

    def _abort(self, client: bytes, frame: wire.Abort) -> None:
        """I2: an external id means exactly its bearers. A5: an unknown id is a success that does nothing."""
        live = [request for request in self.requests.bearers(frame.id) if not request.ended]
        for request in live:
            self._abort_request(request, "caller")
        self._effects.append(ToClient(client, wire.AbortAck(frame.call, len(live))))

    def _abort_request(self, request: Request, why: str) -> None:
        self._record(request, "abort_asked", detail={"why": why})
        self._advance(request, life.AbortAsked())

    def _client_gone(self, event: ClientGone) -> None:
        self.counters.clients_gone += 1
        for request in [request for request in self.requests if request.client == event.client]:
            request.client = None
            if not request.ended:
                self._abort_request(request, f"disconnect: {event.why}")

    # --- Admission (B1, B2) ----------------------------------------------------------------------------------------

    def _bind(self, request: Request) -> dict[str, Binding] | None:
        """A replica for every stage, or None: no room now. Raises `UnavailableError` (F4)."""
        plan = request.plan
        idle = [name for name in plan.names if plan.incoming[name]]
        key, affinity = request.attempt.key, request.submit.affinity
        return self.pools.bind(key, plan.names, affinity, idle=idle, shunned=request.shunned)

    def _bind_new(self, request: Request) -> dict[str, Binding] | None:
        """As `_bind`, behind those that wait already for the same places."""
        self.pools.check(request.plan.names, request.shunned)
        if request.line in self.queue.lines or not self._kept.isdisjoint(request.plan.names):
            return None
        return self._bind(request)

    def _wait(self, request: Request) -> None:
        self._may_admit = True  # it may be before those for whose sake it waits
        self.queue.add(request.id, request.line, priority=request.submit.priority, since=self._now)
        self._record(request, "queued")

    def _admit_waiting(self) -> None:
        """In the order of the queue, all that find a replica for every stage. Who starves for want of room keeps
        places; who waits for a replica to come back keeps none."""
        kept = self._kept = set[str]()
        patience = STARVING * self.config.router.priority_age_s
        for line, waiting in self.queue.heads():
            request = self.requests.get(waiting.request_id)
            assert request is not None
            if not kept.isdisjoint(line.stages):
                continue
            try:
                bound = self._bind(request)
            except UnavailableError as error:
                if request.lost is None or self.config.router.redrive != "wait":
                    self._advance(request, life.Failed(request.lost or wire.ErrorInfo.of(error)))
                continue
            if bound is not None:
                self.queue.remove(request.id)
                self._start(request, bound)
                continue
            if self._now - waiting.since > patience and self.pools.serves(line.stages, line.shunned):
                kept.update(line.stages)

    def _start(self, request: Request, bound: dict[str, Binding]) -> None:
        request.attempt.bindings = bound
        for stage, binding in bound.items():
            self._record(request, "bound", stage=stage, detail={"replica": binding.replica})
        self._advance(request, life.Bound())

    def _recount(self, request: Request) -> None:
        """Who waits for input, or for its caller to read, takes no place (B1)."""
        attempt = request.attempt
        for stage, binding in attempt.bindings.items():
            self.pools.count(attempt.key, binding, active=attempt.computes(stage, request.plan))
        self._may_admit = True

    # --- Re-drive (F2) ---------------------------------------------------------------------------------------------

    def _may_redrive(self, request: Request, lost: wire.ErrorInfo) -> bool:
        limits = self.config.router
        if limits.redrive == "never" or request.attempt.number >= limits.max_attempts:
            return False
        return limits.redrive == "wait" or self.pools.can_serve(request.plan.names, request.would_shun(lost))

    def _drive_again(self, request: Request, lost: wire.ErrorInfo) -> None:
        """The next attempt: at once where there is room, else from the queue, however long that is."""
        self.counters.redriven += 1
        self._paused.discard(request.id)
        request.begin_again(lost)
        self._record(request, "redriven", detail={"why": lost.message, "code": lost.code})
        if self.config.router.redrive == "wait":
            until = self._now + self.config.router.redrive_wait_s
            self._timers.add(until, request.id, "redrive", request.attempt.number)
        self._wait(request)

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
            effect = health.heard(replica, frame, self._now)
            if effect is not None:
                self._may_admit = True
                self._effects.append(effect)
        else:
            self._stage_reported(replica, frame)

    def _stage_reported(
        self,
        replica: Replica,
        frame: wire.StageFact | wire.StagePaused | wire.Output | wire.RelayContent | wire.StageFinished,
    ) -> None:
        request = self.requests.get(frame.request_id)
        attempt = None if request is None else request.attempts.get(frame.attempt)
        if request is None or attempt is None or not attempt.binds(replica):
            self.counters.late_frames += 1
            if isinstance(frame, wire.StageFinished):
                self._may_admit = True
                self.pools.release((frame.request_id, frame.attempt), Binding(replica.id, replica.incarnation))
            return
        stage = replica.stage
        match frame:
            case wire.Output():
                if frame.last:
                    self._record(
                        request, "output_ended", attempt=attempt, stage=stage, owner=replica.id, at_ns=frame.at_ns
                    )
                self._advance(request, life.OutputArrived(stage, frame.seq, frame.content, frame.last), attempt)
            case wire.StageFact():
                self._stage_fact(request, attempt, replica, frame)
            case wire.StagePaused():
                self._stage_paused(request, attempt, replica, frame)
            case wire.RelayContent():
                self._relay(request, attempt, replica, frame)
            case wire.StageFinished():
                self._stage_finished(request, attempt, replica, frame)
            case _:
                assert_never(frame)

    def _stage_fact(self, request: Request, attempt: Attempt, replica: Replica, frame: wire.StageFact) -> None:
        if frame.fact not in FACTS:
            self.counters.bad_frames += 1
            return
        stage = replica.stage
        self._record(request, frame.fact, attempt=attempt, stage=stage, owner=replica.id, at_ns=frame.at_ns)
        if frame.fact == "registered":
            self._advance(request, life.Registered(stage), attempt)
        elif frame.fact == "input_ready" and attempt is request.attempt:
            attempt.ready.add(stage)
            self._recount(request)

    def _stage_paused(self, request: Request, attempt: Attempt, replica: Replica, frame: wire.StagePaused) -> None:
        """The caller has to read before the stage goes on, or has read. The first pause is a fact of the trace."""
        if attempt is not request.attempt or request.ended:
            self.counters.late_frames += 1
            return
        stage = replica.stage
        if stage not in request.delivered:  # nobody reads from it
            self.counters.bad_frames += 1
            return
        if frame.paused and stage not in attempt.ever_paused:
            attempt.ever_paused.add(stage)
            self._record(request, "paused", stage=stage, owner=replica.id, at_ns=frame.at_ns)
        (attempt.paused.add if frame.paused else attempt.paused.discard)(stage)
        (self._paused.add if attempt.paused else self._paused.discard)(request.id)
        self._recount(request)

    def _relay(self, request: Request, attempt: Attempt, replica: Replica, frame: wire.RelayContent) -> None:
        limit = self.config.router.relay_max_bytes
        if len(frame.data) <= limit:
            self._advance(request, life.RelayArrived(replica.stage, frame.target, frame.data), attempt)
            return
        text = f"{len(frame.data)} bytes for {frame.target} are over router.relay_max_bytes ({limit})"
        error = wire.ErrorInfo("stage_error", text, replica.stage, replica.id, False)
        self._advance(request, life.Failed(error), attempt)

    def _stage_finished(self, request: Request, attempt: Attempt, replica: Replica, frame: wire.StageFinished) -> None:
        stage, at_ns = replica.stage, frame.at_ns
        for edge in frame.edges:
            sent = msgspec.structs.asdict(edge)
            sent["to"] = sent.pop("target")
            self._record(request, "edge", attempt=attempt, stage=stage, owner=replica.id, at_ns=at_ns, detail=sent)
        detail: dict[str, wire.Value] = {"finish_reason": frame.finish_reason, "outputs": frame.outputs}
        if frame.error is not None:
            detail |= {"error_code": frame.error.code, "error_message": frame.error.message}
        self._record(request, "finished", attempt=attempt, stage=stage, owner=replica.id, at_ns=at_ns, detail=detail)
        usage = {**frame.usage, **_edge_totals(frame.edges)}
        report = life.StageFinished(stage, frame.finish_reason, frame.error, usage, frame.note, frame.outputs)
        self._advance(request, report, attempt)

    def _worker_unreachable(self, event: WorkerUnreachable) -> None:
        """What else was lost on the way to that incarnation nobody knows, so it does not go on."""
        request, attempt = self._bound(event)
        replica = self.pools.replicas[event.replica]
        if request is not None:
            text = f"{event.replica} cannot be reached: {event.why}"
            lost = ReplicaLostError(text, stage=replica.stage, replica=event.replica)
            self._advance(request, life.SubmissionFailed(replica.stage, wire.ErrorInfo.of(lost)), attempt)
        if replica.incarnation == event.incarnation:
            self._give_up(replica, f"unreachable: {event.why}")

    def _frame_unsendable(self, event: FrameUnsendable) -> None:
        """S3: a submission that cannot be sent fails the attempt; so does content that its receiver waits for."""
        request, attempt = self._bound(event)
        if request is not None:
            stage = self.pools.replicas[event.replica].stage
            error = wire.ErrorInfo.of(ProtocolError(event.why, stage=stage, replica=event.replica))
            failed = life.SubmissionFailed(stage, error) if event.submission else life.Failed(error)
            self._advance(request, failed, attempt)

    def _bound(self, event: WorkerUnreachable | FrameUnsendable) -> tuple[Request | None, Attempt | None]:
        """The request and the attempt that the frame was about, if it is bound to that incarnation."""
        request = self.requests.get(event.request_id)
        attempt = None if request is None else request.attempts.get(event.attempt)
        stage = self.pools.replicas[event.replica].stage
        bound = attempt is not None and attempt.bindings.get(stage) == (event.replica, event.incarnation)
        return (request, attempt) if bound else (None, None)

    def _give_up(self, replica: Replica, why: str) -> None:
        """Nothing more is bound to it; `ReplicaExited` follows, and ends what is."""
        if replica.state not in ("dead", "stuck"):
            replica.state = "stuck"
            self._may_admit = True
            self._effects.append(KillReplica(replica.id, replica.incarnation, why))

    def _replica_exited(self, event: ReplicaExited) -> None:
        replica = self.pools.replicas[event.replica]
        on_purpose = replica.ordered == event.incarnation
        bound = self.pools.lost(event.replica, event.incarnation)
        if bound is None:
            return
        self._may_admit = True
        self.counters.replicas_lost += not on_purpose
        lost = wire.PeerLost(event.replica, event.incarnation)
        for other in self.pools.replicas.values():
            if other.state in ("ready", "draining", "stuck"):
                self._effects.append(ToWorker(other.id, other.incarnation, lost))
        for request_id, number in bound:
            request = self.requests.get(request_id)
            attempt = None if request is None else request.attempts.get(number)
            if request is not None and attempt is not None:
                why: dict[str, wire.Value] = {"replica": replica.id, "reason": event.reason}
                self._record(request, "replica_lost", attempt=attempt, stage=replica.stage, detail=why)
                self._advance(request, life.ReplicaLost(replica.stage, replica.id, event.reason), attempt)

    # --- Time ------------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        before, self._ticked = self._ticked, self._now
        beat = self._now - self._beaten >= self.config.router.heartbeat_interval_s
        if beat:
            self._beaten = self._now
        if before and self._now - before > self.config.router.heartbeat_timeout_s / 2:
            health.forgive(self.pools, self._now)
        for timer in self._timers.due(self._now):
            request = self.requests.get(timer.request_id)
            if request is not None:
                self._timer_fired(request, timer)
        if beat:
            self._may_admit = True  # who starves keeps places from now on
            self._beat()

    def _timer_fired(self, request: Request, timer: Timer) -> None:
        attempt = request.attempts.get(timer.attempt)
        if timer.kind == "abort" and attempt is not None:
            self._advance(request, life.AbortTimedOut(), attempt)
        elif timer.kind == "grace" and attempt is not None:
            self._advance(request, life.GraceExpired(), attempt)
        elif timer.kind == "redrive" and attempt is request.attempt and request.id in self.queue:
            assert request.lost is not None
            self._advance(request, life.Failed(request.lost))
        elif timer.kind == "deadline":
            text = f"the request's deadline of {request.submit.deadline_s} s has passed"
            self._advance(request, life.Failed(wire.ErrorInfo("deadline_exceeded", text, None, None, False)))

    def _beat(self) -> None:
        for replica in self.pools.replicas.values():
            if replica.state in ("dead", "stuck"):
                continue
            why = health.what_ails(replica, self.pipeline.by_name[replica.stage], self.config.router, self._now)
            if why is not None:
                self._give_up(replica, why)
            elif replica.endpoint:
                self._effects.append(ToWorker(replica.id, replica.incarnation, wire.Ping()))

    # --- Requests --------------------------------------------------------------------------------------------------

    def _advance(self, request: Request, event: life.Event, attempt: Attempt | None = None) -> None:
        """Feed an attempt's lifecycle (by default the present one's) and carry out its commands. Whatever goes wrong is
        this request's alone (F1)."""
        attempt = attempt or request.attempt
        late = attempt.lifecycle.late
        following: list[life.Event] = []
        self._obey(request, attempt, self._commands(attempt, event), following)
        while following:
            self._obey(request, attempt, self._commands(attempt, following.pop(0)), following)
        self.counters.late_frames += attempt.lifecycle.late - late
        if attempt.lifecycle.settled:
            request.attempts.pop(attempt.number, None)
            if not request.attempts:
                self._forget(request)

    def _obey(
        self, request: Request, attempt: Attempt, commands: list[life.Command], following: list[life.Event]
    ) -> None:
        """Carry them out; what it means that one could not be is among what follows."""
        for command in commands:
            try:
                self._carry_out(request, attempt, command, following)
            except Exception as error:  # noqa: BLE001 (F1: the boundary between one request and all the others)
                following.append(self._failure(command, error))

    def _commands(self, attempt: Attempt, event: life.Event) -> list[life.Command]:
        """What the lifecycle orders. An event that cannot be fails the request: its stage does what it should not."""
        try:
            return attempt.lifecycle.handle(event)
        except Exception as error:  # noqa: BLE001 (the same boundary)
            return attempt.lifecycle.handle(life.Failed(self._blame(error)))

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

    def _carry_out(
        self, request: Request, attempt: Attempt, command: life.Command, following: list[life.Event]
    ) -> None:
        match command:
            case life.Deliver():  # first, because nearly all are
                self.counters.outputs += 1
                self._to_caller(request, request.delivery(command))
            case life.SubmitStage():
                submission = request.submission(command.stage, self.pools)
                self._record(request, "submitted", stage=command.stage)
                self._to_stage(attempt, command.stage, submission)
            case life.FeedStage():
                self._to_stage(attempt, command.stage, wire.FeedStage(*attempt.key, command.source, command.data))
            case life.PassOver():
                self._credit(request, command.stage)
            case life.AbortStage():
                self._to_stage(attempt, command.stage, wire.AbortStage(*attempt.key))
            case life.SendTerminal():
                self._terminal(request, command)
            case life.Redrive():
                if self._may_redrive(request, command.error):
                    following.append(life.Superseded())
                    self._drive_again(request, command.error)
                else:
                    following.append(life.Failed(command.error))
            case life.ReleaseStage():
                self._may_admit = True
                if command.stage in attempt.bindings:
                    self.pools.release(attempt.key, attempt.bindings[command.stage])
            case life.LeaveBehind():
                binding = attempt.bindings[command.stage]
                where: dict[str, wire.Value] = {"replica": binding.replica}
                self._record(request, "left_behind", attempt=attempt, stage=command.stage, detail=where)
                self.pools.leave_behind(attempt.key, binding)
            case life.StartAbortTimer():
                until = self._now + self.config.router.abort_timeout_s
                self._timers.add(until, request.id, "abort", attempt.number)
            case life.StartGrace():
                self._record(request, "withheld", detail={"stages": ",".join(command.waiting_for)})
                until = self._now + self.config.router.terminal_grace_s
                self._timers.add(until, request.id, "grace", attempt.number)
            case _:
                assert_never(command)

    def _terminal(self, request: Request, command: life.SendTerminal) -> None:
        if command.finish_reason == "error":
            self.counters.failed += 1
        elif command.finish_reason == "abort":
            self.counters.aborted += 1
        else:
            self.counters.finished += 1
        self.queue.remove(request.id)
        self._paused.discard(request.id)
        self._record(request, "terminal", stage=command.stage, detail=request.terminal_facts(command))
        self._to_caller(request, request.terminal(command))

    def _to_stage(self, attempt: Attempt, stage: str, frame: wire.RouterToWorker) -> None:
        binding = attempt.bindings[stage]
        self._effects.append(ToWorker(binding.replica, binding.incarnation, frame))

    def _to_caller(self, request: Request, frame: wire.RouterToClient) -> None:
        if request.client is not None:
            self._effects.append(ToClient(request.client, frame))

    def _forget(self, request: Request) -> None:
        self.requests.remove(request)
        self._timers.cancel(request.id)

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
        attempt: Attempt | None = None,
        stage: str | None = None,
        owner: str = "router",
        at_ns: int | None = None,
        detail: dict[str, wire.Value] | None = None,
    ) -> None:
        """A fact of the present attempt, or of another one."""
        at_ns = int(self._now * 1e9) if at_ns is None else at_ns
        attempt = attempt or request.attempt
        fact = request.fact(event, attempt=attempt, stage=stage, owner=owner, at_ns=at_ns, detail=detail or {})
        self._effects.append(Record(fact))


def _edge_totals(edges: list[wire.EdgeCount]) -> dict[str, int | float]:
    """Chunks and bytes that a stage sent over all its edges, and over each (C6)."""
    totals: dict[str, int | float] = {}
    if edges:
        totals = {"chunks_out": sum(edge.chunks for edge in edges), "bytes_out": sum(edge.bytes for edge in edges)}
    for edge in edges:
        totals |= {f"chunks_to.{edge.target}": edge.chunks, f"bytes_to.{edge.target}": edge.bytes}
    return totals
