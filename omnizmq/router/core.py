"""The router's rules: frames and time in, effects out (I2, P2-P4, S1-S4, A1, A5-A7, F1-F4, B1-B3).

It holds the requests, the pools, the queue of those waiting for replicas, the timers, and an operator's orders. It
decides; it does no I/O: no sockets, no clock (`now` is an argument: CLOCK_MONOTONIC in seconds), no randomness.

Here are clients, replicas and time; what a request's stages say is in `reports`, what follows for it in `driver`.
"""

from __future__ import annotations

from typing import assert_never

from omnizmq import protocol as wire
from omnizmq.config import Config
from omnizmq.errors import InvalidRequestError, OmnizmqError, UnavailableError
from omnizmq.router import contents, door, health
from omnizmq.router import lifecycle as life
from omnizmq.router.driver import Driver
from omnizmq.router.inquiries import Inquiries
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
from omnizmq.router.operating import Operations
from omnizmq.router.pools import Replica
from omnizmq.router.reports import Reports
from omnizmq.router.request import Request
from omnizmq.router.state import RouterState
from omnizmq.router.status import replica_counts, ring_rows, slowest
from omnizmq.router.timers import Timer


class RouterCore:
    """One deployment."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.state = state = RouterState(config)
        self.pipeline = state.pipeline
        self.pools = state.pools
        self.requests = state.requests
        self.queue = state.admission.queue
        self.counters = state.counters
        self.operations = Operations(state.pools)
        self.draining = False
        self._drained = False
        self._driver = Driver(state)
        self._reports = Reports(state, self._driver)
        self._inquiries = Inquiries(state)
        self._ticked = 0.0
        self._beaten = 0.0

    # --- The way in ------------------------------------------------------------------------------------------------

    def handle(self, event: Input, now: float) -> list[Effect]:
        """`now` never goes back. What is ordered is to be done in this order."""
        state = self.state
        state.begin(now)
        try:
            self._dispatch(event)
            if self.operations:
                state.effects += self.operations.look(now)
                state.may_admit = True
            if (state.may_admit and state.admission.concerned) or state.admission.due(now):
                self._admit()
            if self._inquiries:
                state.effects += self._inquiries.due()
        except Exception as error:  # noqa: BLE001 (F1: what has been decided is done all the same)
            self.counters.router_errors += 1
            state.effects.append(HandlingFailed(type(event).__name__, error))
        if self.draining and not self.requests and not self._drained:
            self._drained = True
            state.effects.append(Drained())
        return state.effects

    def next_tick(self) -> float:
        """When `Ticked` is wanted at the latest: for a heartbeat, to know that time goes on, or because a wait ends.

        Time must be looked at several times within a heartbeat's timeout: a longer pause is the router's own sleep.
        """
        limits = self.config.router
        wanted = min(self._beaten + limits.heartbeat_interval_s, self._ticked + limits.heartbeat_timeout_s / 4)
        for at in (self.state.timers.next(), self.state.admission.next(), self._inquiries.next()):
            if at is not None and at < wanted:
                wanted = at
        return wanted

    def status(self, now: float) -> dict[str, object]:
        """The document of `omnizmq status --json`."""
        return {
            "name": self.config.name,
            "state": "draining" if self.draining else "running",
            "ready": self.pools.all_ready() and not self.draining,
            "live_requests": len(self.requests),
            "queued": len(self.queue),
            "paused": len(self.state.paused),
            **replica_counts(self.pools, self.config.router, now),
            "rings": ring_rows(self.pools),
            "slowest": slowest(self.requests, now),
            "counters": self.counters.document(self.requests),
        }

    def says_another(self, event: Input) -> bool:
        """Whether the output of this event, which has been handled, is not what its caller has (F2). A recording, which
        holds no outputs, could not tell."""
        if not (isinstance(event, WorkerSent) and isinstance(event.frame, wire.Output) and event.frame.attempt > 1):
            return False
        request = self.requests.get(event.frame.request_id)
        delivered = None if request is None else request.delivered.get(event.replica.rpartition("/")[0])
        return delivered is not None and delivered.another

    def _dispatch(self, event: Input) -> None:
        match event:
            case WorkerSent():  # first, because nearly all are
                self._worker_sent(event)
            case ClientSent():
                self._client_sent(event)
            case ClientGone():
                self._client_gone(event)
            case ReplicaStarting():
                self.pools.starting(event.replica, event.incarnation, event.pid, self.state.now)
            case WorkerJoined():
                self._worker_joined(event)
            case WorkerUnreachable():
                self._worker_unreachable(event)
            case FrameUnsendable():
                self._reports.unsendable(event)
            case ReplicaExited():
                self._replica_exited(event)
            case Ticked():
                self._tick()
            case DrainAsked():
                self.draining = self.state.may_admit = True
                self.state.effects += self.operations.stop("the deployment is stopping")
            case StopAsked():
                self.draining = True
                self.state.effects += self.operations.stop(event.why)
                stopping = wire.ErrorInfo.of(UnavailableError(event.why))
                for request in self.requests:
                    self._driver.advance(request, life.Failed(stopping))
            case _:
                assert_never(event)

    def _admit(self) -> None:
        for request, outcome in self.state.admission.decide(self.state.now):
            if isinstance(outcome, UnavailableError):
                self._driver.advance(request, life.Failed(request.lost or wire.ErrorInfo.of(outcome)))
            else:
                self._driver.start(request, outcome)

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
                document = wire.encode_json(self.status(self.state.now))
                self._to_client(event.client, wire.Status(frame.call, document))
            case wire.AskTrace() as frame:
                self.state.effects += self._inquiries.ask(event.client, frame)
            case wire.Bye():
                self._client_gone(ClientGone(event.client, "said goodbye"))
            case _:
                assert_never(event.frame)

    def _to_client(self, client: bytes, frame: wire.RouterToClient) -> None:
        self.state.effects.append(ToClient(client, frame))

    def _operate(self, client: bytes, frame: wire.Operate) -> None:
        self.state.may_admit = True
        if self.draining:
            error = wire.ErrorInfo.of(UnavailableError("the deployment is stopping"))
            self._to_client(client, wire.Operated(frame.call, error))
        else:
            self.state.effects += self.operations.ask(client, frame, self.state.now)

    def _consumed(self, request: Request, frame: wire.Consumed) -> None:
        """B1: the credit goes on to who makes the outputs; whoever else is paused learns that the caller reads."""
        delivered = request.delivered.get(frame.stage)
        if delivered is not None and delivered.consume(frame.outputs):
            if frame.stage not in request.ever_read:
                request.ever_read.add(frame.stage)
                self.state.record(request, "consumed", frame.stage, {"outputs": delivered.consumed})
            for stage in sorted({frame.stage, *request.attempt.paused}):
                self.state.credit(request, stage)

    def _submit(self, client: bytes, frame: wire.Submit) -> None:
        state = self.state
        try:
            self._check_id(frame)
        except OmnizmqError as error:
            self._refuse(client, frame, error)  # without a fact: the trace under this id may be another's
            return
        state.record_before(frame, "asked", owner="client", at_ns=frame.at_ns)
        try:
            request = self._accept(client, frame)
            bound = state.admission.bind_new(request)
        except OmnizmqError as error:
            state.record_before(frame, "refused", detail={"code": error.code, "message": error.message})
            self._refuse(client, frame, error)
            return
        self._take_in(request)
        if bound is not None:
            self._driver.start(request, bound)
        else:
            state.wait(request)

    def _check_id(self, frame: wire.Submit) -> None:
        """A leftover's id still means its earlier bearer to the replica that has it."""
        wire.check_request_id(frame.request_id, frame.external_id)
        if frame.request_id in self.requests or self.pools.has_leftover(frame.request_id):
            raise InvalidRequestError(f"request id {frame.request_id} is in use")

    def _accept(self, client: bytes, frame: wire.Submit) -> Request:
        """The request, or the error that refuses it: no request exists then."""
        if self.draining:
            raise UnavailableError("the deployment is stopping and takes no new requests")
        plan = door.check(frame, self.pipeline, self.config.router)
        return Request(client, frame, plan, self.config.router, arrived=self.state.now)

    def _refuse(self, client: bytes, frame: wire.Submit, error: OmnizmqError) -> None:
        self.counters.refused += 1
        request_id = frame.request_id[: door.REQUEST_ID_CHARS]
        self._to_client(client, wire.Refused(request_id, wire.ErrorInfo.of(error)))

    def _take_in(self, request: Request) -> None:
        self.counters.requests += 1
        self.requests.add(request)
        self.state.record(request, "received", detail=request.planned(self.pipeline))
        if self.state.limits.trace_contents:
            self.state.record(request, "prompt", detail=contents.of_prompt(request.submit.prompt))
        if request.submit.deadline_s is not None:
            self.state.timers.add(self.state.now + request.submit.deadline_s, request.id, "deadline", 1)

    def _abort(self, client: bytes, frame: wire.Abort) -> None:
        """I2: an external id means exactly its bearers. A5: an unknown id is a success that does nothing."""
        live = [request for request in self.requests.bearers(frame.id) if not request.ended]
        for request in live:
            self._abort_request(request, "caller" if request.client == client else "operator")
        self._to_client(client, wire.AbortAck(frame.call, len(live)))

    def _abort_request(self, request: Request, why: str) -> None:
        self.state.record(request, "abort_asked", detail={"why": why})
        self._driver.advance(request, life.AbortAsked())

    def _client_gone(self, event: ClientGone) -> None:
        self.counters.clients_gone += not event.operator
        for request in [request for request in self.requests if request.client == event.client]:
            request.client = None
            if not request.ended:
                self._abort_request(request, f"disconnect: {event.why}")

    # --- Replicas --------------------------------------------------------------------------------------------------

    def _worker_joined(self, event: WorkerJoined) -> None:
        replica = self.pools.seen(event.replica, event.incarnation, self.state.now)
        if replica is not None:
            replica.endpoint = event.endpoint

    def _worker_sent(self, event: WorkerSent) -> None:
        replica = self.pools.seen(event.replica, event.incarnation, self.state.now)
        frame = event.frame
        if replica is None or frame.incarnation != event.incarnation:
            self.counters.late_frames += 1
        elif isinstance(frame, wire.Heartbeat):
            effect = health.heard(replica, frame, self.state.now)
            if effect is not None:
                self.state.may_admit = True
                self.state.effects.append(effect)
            elif frame.state == "failed":
                self._give_up(replica, f"broken: {frame.text}")
        elif isinstance(frame, wire.StageAnswer):
            self.state.effects += self._inquiries.came(replica, frame)
        else:
            self._reports.came(replica, frame)

    def _worker_unreachable(self, event: WorkerUnreachable) -> None:
        """What else was lost on the way to that incarnation nobody knows, so it does not go on."""
        self._reports.unreachable(event)
        replica = self.pools.replicas[event.replica]
        if replica.incarnation == event.incarnation:
            self._give_up(replica, f"unreachable: {event.why}")

    def _give_up(self, replica: Replica, why: str) -> None:
        """Nothing more is bound to it; `ReplicaExited` follows, and ends what is."""
        if replica.state not in ("dead", "stuck"):
            replica.state = "stuck"
            self.state.may_admit = True
            self.state.effects.append(KillReplica(replica.id, replica.incarnation, why))

    def _replica_exited(self, event: ReplicaExited) -> None:
        replica = self.pools.replicas[event.replica]
        on_purpose = replica.ordered == event.incarnation
        bound = self.pools.lost(event.replica, event.incarnation)
        if bound is None:
            return
        self.state.may_admit = True
        self.counters.replicas_lost += not on_purpose
        lost = wire.PeerLost(event.replica, event.incarnation)
        for other in self.pools.replicas.values():
            if other.state in ("ready", "draining", "stuck"):
                self.state.effects.append(ToWorker(other.id, other.incarnation, lost))
        for request_id, number in bound:
            request = self.requests.get(request_id)
            attempt = None if request is None else request.attempts.get(number)
            if request is not None and attempt is not None:
                why: dict[str, wire.Value] = {"replica": replica.id, "reason": event.reason}
                self.state.record(request, "replica_lost", replica.stage, why, attempt=attempt)
                self._driver.advance(request, life.ReplicaLost(replica.stage, replica.id, event.reason), attempt)

    # --- Time ------------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        now = self.state.now
        before, self._ticked = self._ticked, now
        beat = now - self._beaten >= self.config.router.heartbeat_interval_s
        if beat:
            self._beaten = now
        if before and now - before > self.config.router.heartbeat_timeout_s / 2:
            self._forgive(now - before)
        for timer in self.state.timers.due(now):
            request = self.requests.get(timer.request_id)
            if request is not None:
                self._timer_fired(request, timer)
        if beat:
            self.state.may_admit = True  # who starves keeps places from now on
            self._beat()

    def _forgive(self, slept_s: float) -> None:
        """The router itself was stopped: nobody had the time that passed. A caller's deadline stands."""
        health.forgive(self.pools, self.state.now)
        self.operations.forgive(slept_s)
        self.state.admission.forgive(slept_s)
        self.state.timers.postpone(("abort", "grace"), slept_s)

    def _timer_fired(self, request: Request, timer: Timer) -> None:
        attempt = request.attempts.get(timer.attempt)
        if timer.kind == "abort" and attempt is not None:
            self._driver.advance(request, life.AbortTimedOut(), attempt)
        elif timer.kind == "grace" and attempt is not None:
            self._driver.advance(request, life.GraceExpired(), attempt)
        elif timer.kind == "deadline":
            text = f"the request's deadline of {request.submit.deadline_s} s has passed"
            self._driver.advance(request, life.Failed(wire.ErrorInfo("deadline_exceeded", text, None, None, False)))

    def _beat(self) -> None:
        for replica in self.pools.replicas.values():
            if replica.state in ("dead", "stuck"):
                continue
            stage = self.pipeline.by_name[replica.stage]
            why = health.what_ails(replica, stage, self.config.router, self.state.now)
            if why is not None:
                self._give_up(replica, why)
            elif replica.endpoint:
                self.state.effects.append(ToWorker(replica.id, replica.incarnation, wire.Ping()))
