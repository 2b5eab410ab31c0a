"""What the contract says of the whole router: an independent prediction of every frame and every kill.

Each attempt's life is predicted by `lifecycle_model`; this adds the door, the queue, the replicas, the timers, the
operators' orders and who is told what. `predict` gives, for each peer and request, the frames in order. Heartbeats and
facts are left out, and an error's text where it only tells what went wrong inside.

It looks at everything after every event; the router knows when it need not.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec

from omnizmq import protocol as wire
from omnizmq.config import Config
from omnizmq.pipeline import Pipeline, Plan
from omnizmq.router import lifecycle as life
from omnizmq.router import messages as msg
from omnizmq.trace.context import stage_traceparent
from omnizmq.trace.facts import Fact
from support.delivered_model import Told
from support.lifecycle_model import ILLEGAL, Model
from support.operations_model import ModelOrders

Key = tuple[str, str]
"""A peer (`client`, `talker/0#1`, `launcher`), and the request or replica that it is about, or nothing."""
Prediction = dict[Key, list[object]]
Place = tuple[str, int]
"""A replica and its incarnation, or a request and its attempt."""

STARVING_AGES = 4
FACTS = ("registered", "input_ready", "running", "first_output")


@dataclass
class ModelReplica:
    name: str
    stage: str
    capacity: int
    most: int
    incarnation: int = 0
    state: str = "dead"
    bound: set[Place] = field(default_factory=set)
    left: set[Place] = field(default_factory=set)
    seen: float = 0.0
    engine: str = "loading"
    since: float = 0.0
    told: float = 0.0
    unread: int = 0  # bytes in its ring, at its last heartbeat
    endpoint: str = ""
    returning: bool = False
    drained: bool = False
    ordered: int = 0

    @property
    def serves(self) -> bool:
        return self.state in ("ready", "draining")


@dataclass
class ModelAttempt:
    number: int
    life: Model
    bindings: dict[str, Place] = field(default_factory=dict)
    fed: set[str] = field(default_factory=set)
    paused: set[str] = field(default_factory=set)

    def computes(self, stage: str) -> bool:
        """B1: it has what it needs, and its caller reads."""
        has_input = stage in self.fed or not self.life.plan.incoming[stage]
        return has_input and not any(self._leads_to(stage, other) for other in self.paused)

    def _leads_to(self, stage: str, other: str) -> bool:
        """Whether what it makes goes to the other one, or it is that one."""
        onward = [edge.target for edge in self.life.plan.outgoing[stage]]
        return stage == other or any(self._leads_to(target, other) for target in onward)


@dataclass
class ModelRequest:
    submit: wire.Submit
    client: str | None
    plan: Plan
    caller: dict[str, Told]
    attempts: dict[int, ModelAttempt]
    present: ModelAttempt
    came: float
    shunned: frozenset[Place] = frozenset()
    lost: wire.ErrorInfo | None = None

    @property
    def name(self) -> str:
        return self.submit.request_id

    @property
    def over(self) -> bool:
        return self.present.life.over


class ModelTimer(NamedTuple):
    at: float
    number: int
    request: str
    attempt: int
    kind: str


class ModelWaiting(NamedTuple):
    request: str
    since: float
    number: int


class RouterModel:
    """`late` and `bad` are what the counters of late and bad frames must be."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.limits = config.router
        self.pipeline = Pipeline(config)
        self.replicas = {
            f"{stage.name}/{n}": ModelReplica(
                f"{stage.name}/{n}", stage.name, stage.max_inflight, max(stage.max_registered, stage.max_inflight)
            )
            for stage in config.stage
            for n in range(stage.replicas)
        }
        self.requests: dict[str, ModelRequest] = {}
        self.queue: list[ModelWaiting] = []
        self.kept: set[str] = set()
        self.unserved: dict[tuple[object, ...], float] = {}  # since when nobody serves those in a line
        self.timers: list[ModelTimer] = []
        self.orders = ModelOrders(self.replicas)
        self.turns: dict[str, int] = defaultdict(int)
        self.numbers = 0
        self.draining = self.drained = False
        self.late = self.bad = self.redriven = self.replicas_lost = 0
        self.now = 0.0
        self.ticked = self.judged = 0.0
        self.out: Prediction = {}

    # --- In and out ------------------------------------------------------------------------------------------------

    def predict(self, event: msg.Input, now: float) -> Prediction:
        self.now, self.out = now, defaultdict(list)
        self._happened(event)
        self.orders.look(now)
        for peer, about, frame in self.orders.said():
            self._say(peer, about, frame)
        self._admit()
        if self.draining and not self.requests and not self.drained:
            self.drained = True
            self._say("launcher", "", msg.Drained())
        return {key: [without_text(frame) for frame in frames] for key, frames in self.out.items() if frames}

    def _happened(self, event: msg.Input) -> None:
        match event:
            case msg.ClientSent(client, frame):
                self._client(client.decode(), frame)
            case msg.ClientGone(client, _):
                self._gone(client.decode())
            case msg.ReplicaStarting(name, incarnation, _):
                replica = self.replicas[name]
                replica.incarnation, replica.state, replica.endpoint = incarnation, "starting", ""
                replica.seen = replica.since = self.now
                replica.engine, replica.unread = "loading", 0
            case msg.WorkerJoined(name, incarnation, endpoint):
                if self._present(name, incarnation):
                    self.replicas[name].endpoint = endpoint
            case msg.WorkerSent(name, incarnation, frame):
                self._worker(name, incarnation, frame)
            case msg.WorkerUnreachable() | msg.FrameUnsendable():
                self._unsent(event)
            case msg.ReplicaExited():
                self._exited(event)
            case msg.Ticked():
                self._tick()
            case msg.DrainAsked():
                self.draining = True
                self.orders.stop()
            case msg.StopAsked(why):
                self.draining = True
                self.orders.stop()
                for request in list(self.requests.values()):
                    self._advance(request, life.Failed(wire.ErrorInfo("unavailable", why, None, None, True)))

    def _say(self, peer: str, about: str, frame: object) -> None:
        self.out[peer, about].append(frame)

    # --- Clients ---------------------------------------------------------------------------------------------------

    def _client(self, client: str, frame: wire.ClientToRouter) -> None:
        match frame:
            case wire.Submit():
                self._submit(client, frame)
            case wire.Abort():
                live = [
                    request
                    for request in self.requests.values()
                    if frame.id in (request.submit.external_id, request.name) and not request.over
                ]
                for request in live:
                    self._advance(request, life.AbortAsked())
                self._say(client, "", wire.AbortAck(frame.call, len(live)))
            case wire.Consumed(name, stage, outputs):
                request = self.requests.get(name)
                mine = request is not None and request.client == client and stage in request.caller
                if request is not None and mine and request.caller[stage].reads(outputs):
                    for other in {stage, *request.present.paused & {*request.caller}}:  # they learn that it reads
                        self._credit(request, other)
            case wire.Operate():
                self.orders.asked(client, frame, self.now, draining=self.draining)
            case wire.Bye():
                self._gone(client)

    def _submit(self, client: str, frame: wire.Submit) -> None:
        code = self._refusal(frame)
        if code is not None:
            retriable = code in ("unavailable", "overloaded")
            error = wire.ErrorInfo(code, "", None, None, retriable)
            self._say(client, frame.request_id, wire.Refused(frame.request_id, error))
            return
        plan = self.pipeline.plan(frame.modalities)
        caller = {name: Told() for name in plan.final_stages}
        attempt = ModelAttempt(1, Model(plan, caller))
        request = ModelRequest(frame, client, plan, caller, {1: attempt}, attempt, self.now)
        self.requests[frame.request_id] = request
        if frame.deadline_s is not None:
            self._set_timer(request, frame.deadline_s, "deadline")
        self._wait(request)

    def _refusal(self, frame: wire.Submit) -> str | None:
        left = {name for replica in self.replicas.values() for name, _ in replica.left}
        if frame.request_id in self.requests or frame.request_id in left:
            return "invalid_request"
        if self.draining:
            return "unavailable"
        if any(one not in self.pipeline.modalities for one in frame.modalities or []) or abs(frame.priority) > 100:
            return "invalid_request"
        plan = self.pipeline.plan(frame.modalities)
        chosen = self._choose(plan, frame.affinity, frozenset())
        if chosen == "nobody":
            return "unavailable"
        lines = [self._line(self.requests[one.request]) for one in self.queue]
        waits = (
            chosen == "full"
            or self.kept & set(plan.names)
            or (plan.names, self._key(plan, frame), frozenset()) in lines
        )
        return "overloaded" if waits and len(self.queue) >= self.limits.max_queued else None

    def _gone(self, client: str) -> None:
        for request in [request for request in self.requests.values() if request.client == client]:
            request.client = None
            self._advance(request, life.AbortAsked())

    def _credit(self, request: ModelRequest, stage: str) -> None:
        """B1: to who makes the outputs, as long as it does."""
        if stage in request.present.life.awaited:
            credit = wire.OutputCredit(
                request.name, request.present.number, request.caller[stage].credit, request.caller[stage].passed_over
            )
            self._to_stage(request, request.present, stage, credit)

    # --- Places ----------------------------------------------------------------------------------------------------

    def active(self, replica: ModelReplica) -> int:
        """Attempts that take a place there: they compute, or nobody knows."""
        return sum(self._takes_place(replica, place) for place in replica.bound)

    def _takes_place(self, replica: ModelReplica, place: Place) -> bool:
        name, number = place
        return place in replica.left or self.requests[name].attempts[number].computes(replica.stage)

    def _has_room(self, replica: ModelReplica) -> bool:
        return self.active(replica) < replica.capacity and len(replica.bound) < replica.most

    def _choose(self, plan: Plan, affinity: str | None, shunned: frozenset[Place]) -> dict[str, str] | str:
        """A replica for each stage, or `full`, or `nobody`."""
        ready: dict[str, list[str]] = {}
        for stage in plan.names:
            pool = [one for one in self.replicas.values() if one.stage == stage]
            ready[stage] = [
                one.name for one in pool if one.state == "ready" and (one.name, one.incarnation) not in shunned
            ]
            if not ready[stage] and not any(one.returning for one in pool):
                return "nobody"
        chosen = {stage: self._choose_one(stage, names, affinity) for stage, names in ready.items()}
        found = {stage: name for stage, name in chosen.items() if name is not None}
        return found if len(found) == len(chosen) else "full"

    def _choose_one(self, stage: str, names: list[str], affinity: str | None) -> str | None:
        policy = self.pipeline.by_name[stage].policy
        if policy == "affinity" and affinity is not None and names:
            names = [max(names, key=lambda name: sha256(f"{name} {affinity}".encode()).digest())]
        free = [name for name in names if self._has_room(self.replicas[name])]
        if not free:
            return None
        if policy == "least_loaded":
            return min(free, key=lambda name: (self.active(self.replicas[name]), len(self.replicas[name].bound)))
        return free[self.turns[stage] % len(free)]

    # --- Who waits (B2) --------------------------------------------------------------------------------------------

    def _key(self, plan: Plan, submit: wire.Submit) -> str | None:
        return submit.affinity if any(stage.policy == "affinity" for stage in plan.stages) else None

    def _line(self, request: ModelRequest) -> tuple[object, ...]:
        return request.plan.names, self._key(request.plan, request.submit), request.shunned

    def _wait(self, request: ModelRequest) -> None:
        self.numbers += 1
        self.queue.append(ModelWaiting(request.name, self.now, self.numbers))

    def _urgency(self, waiting: ModelWaiting) -> tuple[float, int]:
        """Priority, raised by the time since it came; of two that are equal, who has waited longer."""
        request = self.requests[waiting.request]
        aged = (self.now - request.came) / self.limits.priority_age_s
        return -(request.submit.priority + aged), waiting.number

    def _admit(self) -> None:
        blocked: set[tuple[object, ...]] = set()
        self.kept = set()
        nobody: dict[tuple[object, ...], float] = {}
        for waiting in sorted(self.queue, key=self._urgency):
            request = self.requests[waiting.request]
            line, stages = self._line(request), request.plan.names
            if line in blocked:
                continue
            chosen = self._choose(request.plan, request.submit.affinity, request.shunned)
            if chosen == "nobody":
                since = self.unserved.get(line, self.now)
                if self.limits.redrive == "wait" and self.now < since + self.limits.redrive_wait_s:
                    nobody[line] = since
                    blocked.add(line)
                else:
                    unavailable = wire.ErrorInfo("unavailable", "", None, None, True)
                    self._advance(request, life.Failed(request.lost or unavailable))
            elif isinstance(chosen, dict) and not self.kept & set(stages):
                self.queue.remove(waiting)
                self._start(request, chosen)
            else:
                blocked.add(line)
                starves = self.now - waiting.since > STARVING_AGES * self.limits.priority_age_s
                for_room = chosen == "full" and all(self._somebody_serves(stage, request) for stage in stages)
                free = not self.kept & set(stages)
                self.kept |= set(stages) if free and for_room and starves else set()
        self.unserved = nobody

    def _somebody_serves(self, stage: str, request: ModelRequest) -> bool:
        """Now; not only when an operator's restart is through."""
        return any(
            one.stage == stage and one.state == "ready" and (name, one.incarnation) not in request.shunned
            for name, one in self.replicas.items()
        )

    def _start(self, request: ModelRequest, chosen: dict[str, str]) -> None:
        for stage, name in chosen.items():
            self.turns[stage] += 1
            self.replicas[name].bound.add((request.name, request.present.number))
            request.present.bindings[stage] = (name, self.replicas[name].incarnation)
        self._advance(request, life.Bound())

    # --- Workers ---------------------------------------------------------------------------------------------------

    def _present(self, name: str, incarnation: int) -> bool:
        """F3: whether this incarnation lives; if so, it was heard of just now."""
        replica = self.replicas[name]
        if replica.incarnation != incarnation or replica.state == "dead":
            return False
        replica.seen = self.now
        return True

    def _worker(self, name: str, incarnation: int, frame: wire.WorkerToRouter) -> None:
        if not self._present(name, incarnation):
            self.late += 1
        elif isinstance(frame, wire.Heartbeat):
            replica = self.replicas[name]
            replica.engine, replica.since, replica.told = frame.state, frame.since_ns / 1e9, self.now
            replica.unread = sum(use.used + use.spilled for use in frame.rings)
            if replica.state == "starting":
                ready = frame.state in ("idle", "stepping")
                if ready:
                    replica.state = "draining" if replica.drained else "ready"
                other = msg.ReplicaFailed if frame.state == "failed" else msg.ReplicaLoading
                self._say("launcher", name, msg.ReplicaReady(name) if ready else other(name, frame.text))
        else:
            self._report(self.replicas[name], frame)

    def _report(self, replica: ModelReplica, frame: Any) -> None:
        request = self.requests.get(frame.request_id)
        attempt = request.attempts.get(frame.attempt) if request is not None else None
        here = (replica.name, replica.incarnation)
        if request is None or attempt is None or attempt.bindings.get(replica.stage) != here:
            self.late += 1
            if isinstance(frame, wire.StageFinished):
                replica.bound.discard((frame.request_id, frame.attempt))
                replica.left.discard((frame.request_id, frame.attempt))
            return
        match frame:
            case wire.StageFact():
                self._fact(request, attempt, replica.stage, frame.fact)
            case wire.StagePaused():
                if attempt is not request.present or request.over:
                    self.late += 1
                elif replica.stage not in request.caller:
                    self.bad += 1
                else:
                    (attempt.paused.add if frame.paused else attempt.paused.discard)(replica.stage)
            case wire.Output():
                self._advance(request, life.OutputArrived(replica.stage, frame.seq, frame.content, frame.last), attempt)
            case wire.RelayContent():
                large = len(frame.data) > self.limits.relay_max_bytes
                error = wire.ErrorInfo("stage_error", "", replica.stage, replica.name, False)
                arrived = life.RelayArrived(replica.stage, frame.target, frame.data)
                self._advance(request, life.Failed(error) if large else arrived, attempt)
            case wire.StageFinished():
                self._finished(request, attempt, replica.stage, frame)

    def _fact(self, request: ModelRequest, attempt: ModelAttempt, stage: str, fact: str) -> None:
        if fact not in FACTS:
            self.bad += 1
        elif fact == "registered":
            self._advance(request, life.Registered(stage), attempt)
        elif fact == "input_ready" and attempt is request.present:
            attempt.fed.add(stage)

    def _finished(self, request: ModelRequest, attempt: ModelAttempt, stage: str, frame: wire.StageFinished) -> None:
        usage = dict(frame.usage)
        if frame.edges:
            usage["chunks_out"] = sum(edge.chunks for edge in frame.edges)
            usage["bytes_out"] = sum(edge.bytes for edge in frame.edges)
        for edge in frame.edges:
            usage[f"chunks_to.{edge.target}"], usage[f"bytes_to.{edge.target}"] = edge.chunks, edge.bytes
        report = life.StageFinished(stage, frame.finish_reason, frame.error, usage, frame.note, frame.outputs)
        self._advance(request, report, attempt)

    def _unsent(self, event: msg.WorkerUnreachable | msg.FrameUnsendable) -> None:
        replica = self.replicas[event.replica]
        request = self.requests.get(event.request_id)
        attempt = request.attempts.get(event.attempt) if request is not None else None
        lost = isinstance(event, msg.WorkerUnreachable)
        here = (event.replica, event.incarnation)
        if request is not None and attempt is not None and attempt.bindings.get(replica.stage) == here:
            code = "replica_lost" if lost else "protocol_error"
            error = wire.ErrorInfo(code, "", replica.stage, event.replica, lost)
            whole = lost or event.submission  # type: ignore[union-attr]
            failed = life.SubmissionFailed(replica.stage, error) if whole else life.Failed(error)
            self._advance(request, failed, attempt)
        if lost and replica.incarnation == event.incarnation:
            self._kill(replica)

    def _kill(self, replica: ModelReplica) -> None:
        if replica.state == "starting" or replica.serves:
            replica.state = "stuck"
            self._say("launcher", replica.name, msg.KillReplica(replica.name, replica.incarnation, ""))

    def _exited(self, event: msg.ReplicaExited) -> None:
        replica = self.replicas[event.replica]
        if replica.incarnation != event.incarnation or replica.state == "dead":
            return
        replica.state = "dead"
        self.replicas_lost += replica.ordered != event.incarnation
        for name, other in self.replicas.items():
            if other.serves or other.state == "stuck":
                self._say(f"{name}#{other.incarnation}", "", wire.PeerLost(event.replica, event.incarnation))
        bound, replica.bound, replica.left = replica.bound, set(), set()
        for name, number in sorted(bound):
            request = self.requests.get(name)
            if request is not None and number in request.attempts:
                lost = life.ReplicaLost(replica.stage, event.replica, event.reason)
                self._advance(request, lost, request.attempts[number])

    # --- Time ------------------------------------------------------------------------------------------------------

    def _set_timer(self, request: ModelRequest, seconds: float, kind: str, attempt: int = 1) -> None:
        self.numbers += 1
        self.timers.append(ModelTimer(self.now + seconds, self.numbers, request.name, attempt, kind))

    def _tick(self) -> None:
        if self.ticked and self.now - self.ticked > self.limits.heartbeat_timeout_s / 2:
            self._slept(self.now - self.ticked)
        self.ticked = self.now
        due = sorted(timer for timer in self.timers if timer.at <= self.now)
        self.timers = [timer for timer in self.timers if timer.at > self.now]
        for timer in due:
            if timer.request in self.requests:
                self._fires(self.requests[timer.request], timer)
        if self.now - self.judged >= self.limits.heartbeat_interval_s:
            self.judged = self.now
            for replica in self.replicas.values():
                if self._ails(replica):
                    self._kill(replica)

    def _slept(self, seconds: float) -> None:
        """The router did, so it could not see what anybody did meanwhile."""
        for replica in self.replicas.values():
            replica.seen = replica.since = self.now
        for order in self.orders.orders:
            order.since += seconds
        self.unserved = {line: since + seconds for line, since in self.unserved.items()}
        self.timers = [
            timer if timer.kind == "deadline" else timer._replace(at=timer.at + seconds) for timer in self.timers
        ]

    def _fires(self, request: ModelRequest, timer: ModelTimer) -> None:
        attempt = request.attempts.get(timer.attempt)
        if timer.kind == "deadline":
            self._advance(request, life.Failed(wire.ErrorInfo("deadline_exceeded", "", None, None, False)))
        elif timer.kind in ("abort", "grace") and attempt is not None:
            self._advance(request, life.AbortTimedOut() if timer.kind == "abort" else life.GraceExpired(), attempt)

    def _ails(self, replica: ModelReplica) -> bool:
        stage = self.pipeline.by_name[replica.stage]
        if replica.state == "starting":
            return self.now - replica.since > stage.start_timeout_s
        if not replica.serves:
            return False
        silent = self.now - replica.seen > self.limits.heartbeat_timeout_s
        return silent or (replica.engine == "stepping" and replica.told - replica.since > stage.step_timeout_s)

    # --- Requests --------------------------------------------------------------------------------------------------

    def _advance(self, request: ModelRequest, event: life.Event, attempt: ModelAttempt | None = None) -> None:
        attempt = attempt or request.present
        outcome = attempt.life.predict(event)
        if outcome == "late":
            self.late += 1
        if outcome == ILLEGAL:
            self.bad += 1
            error = wire.ErrorInfo("protocol_error", "", getattr(event, "stage", None), None, False)
            outcome = attempt.life.predict(life.Failed(error))
        for commands in () if isinstance(outcome, str) else outcome.values():
            for command in commands:
                self._obey(request, attempt, command)
        if attempt.life.over and not attempt.life.awaited:
            request.attempts.pop(attempt.number, None)
        if not request.attempts and self.requests.pop(request.name, None):
            self.timers = [timer for timer in self.timers if timer.request != request.name]

    def _obey(self, request: ModelRequest, attempt: ModelAttempt, command: Any) -> None:
        match command:
            case life.SubmitStage() | life.FeedStage() | life.AbortStage():
                self._to_stage(request, attempt, command.stage, self._stage_frame(request, attempt, command))
            case life.PassOver():
                self._credit(request, command.stage)
            case life.Deliver():
                self._to_caller(request, self._caller_frame(request, command))
            case life.SendTerminal():
                self.queue = [waiting for waiting in self.queue if waiting.request != request.name]
                self._to_caller(request, self._caller_frame(request, command))
            case life.Redrive():
                self._redrive(request, attempt, command.error)
            case life.ReleaseStage() | life.LeaveBehind():
                self._free(request, attempt, command)
            case life.StartAbortTimer():
                self._set_timer(request, self.limits.abort_timeout_s, "abort", attempt.number)
            case life.StartGrace():
                self._set_timer(request, self.limits.terminal_grace_s, "grace", attempt.number)

    def _redrive(self, request: ModelRequest, attempt: ModelAttempt, lost: wire.ErrorInfo) -> None:
        """F2: by policy, and as long as there are attempts left."""
        policy = self.limits.redrive
        dead = frozenset(place for place in attempt.bindings.values() if place[0] == lost.replica)
        shunned = request.shunned | dead
        possible = policy == "wait" or self._choose(request.plan, None, shunned) != "nobody"
        if policy == "never" or attempt.number >= self.limits.max_attempts or not possible:
            self._advance(request, life.Failed(lost), attempt)
            return
        self.redriven += 1
        request.shunned, request.lost = shunned, lost
        for told in request.caller.values():
            told.begins_again(lost.replica)
        number = attempt.number + 1
        request.present = ModelAttempt(number, Model(request.plan, request.caller, attempt.life.ran))
        request.attempts[number] = request.present
        self._wait(request)
        self._advance(request, life.Superseded(), attempt)

    def _free(
        self, request: ModelRequest, attempt: ModelAttempt, command: life.ReleaseStage | life.LeaveBehind
    ) -> None:
        if command.stage not in attempt.bindings:
            return
        name, incarnation = attempt.bindings[command.stage]
        replica, place = self.replicas[name], (request.name, attempt.number)
        if replica.incarnation == incarnation and place in replica.bound:
            if isinstance(command, life.LeaveBehind):
                replica.left.add(place)
            else:
                replica.bound.remove(place)

    # --- Frames ----------------------------------------------------------------------------------------------------

    def _to_stage(self, request: ModelRequest, attempt: ModelAttempt, stage: str, frame: object) -> None:
        replica, incarnation = attempt.bindings[stage]
        self._say(f"{replica}#{incarnation}", request.name, frame)

    def _to_caller(self, request: ModelRequest, frame: object) -> None:
        if request.client is not None:
            self._say(request.client, request.name, frame)

    def _stage_frame(
        self, request: ModelRequest, attempt: ModelAttempt, command: life.SubmitStage | life.FeedStage | life.AbortStage
    ) -> Any:
        submit, stage, number = request.submit, command.stage, attempt.number
        if isinstance(command, life.AbortStage):
            return wire.AbortStage(submit.request_id, number)
        if isinstance(command, life.FeedStage):
            return wire.FeedStage(submit.request_id, number, command.source, command.data)
        config, plan = self.pipeline.by_name[stage], request.plan
        edges_in = [edge for edge in plan.edges if edge.target == stage]
        edges_out = [edge for edge in plan.edges if edge.source == stage]
        return wire.SubmitStage(
            request_id=submit.request_id,
            external_id=submit.external_id,
            attempt=number,
            engine_id=f"{submit.request_id}/{number}/{stage}",
            prompt=submit.prompt if not edges_in else None,
            original_prompt=submit.prompt if config.wants_prompt else None,
            params=config.params | submit.params.get(stage, {}),
            priority=submit.priority,
            final=stage in plan.final_stages,
            window=min(submit.window, self.limits.output_window),
            window_bytes=self.limits.output_window_mib * 1024 * 1024,
            unread=max(0, request.caller[stage].sent - request.caller[stage].read) if stage in request.caller else 0,
            sources=[wire.Source(edge.source, *attempt.bindings[edge.source], edge.mode) for edge in edges_in],
            targets=[
                wire.Target(
                    edge.target,
                    *attempt.bindings[edge.target],
                    self.replicas[attempt.bindings[edge.target][0]].endpoint,
                    edge.mode,
                    edge.window_chunks,
                    edge.input_timeout_s,
                )
                for edge in edges_out
            ],
            traceparent=stage_traceparent(
                submit.request_id, f"{submit.request_id}/{number}/{stage}", submit.traceparent
            ),
        )

    def _caller_frame(self, request: ModelRequest, command: life.Deliver | life.SendTerminal) -> Any:
        name, bindings = request.name, request.present.bindings
        if isinstance(command, life.Deliver):
            return wire.Delivery(name, command.stage, command.modality, command.content, command.stage_finished)
        error = command.error
        if error is not None and error.replica is None and error.stage in bindings:
            error = msgspec.structs.replace(error, replica=bindings[error.stage][0])
        return wire.Terminal(
            request_id=name,
            stage=command.stage,
            modality=command.modality,
            finish_reason=command.finish_reason,
            error=error,
            usage=command.usage,
            usage_incomplete=list(command.usage_incomplete),
            notes=command.notes,
        )


def observed(effects: list[msg.Effect]) -> Prediction:
    """What came out, in the shape of a prediction."""
    out: Prediction = defaultdict(list)
    for effect in effects:
        match effect:
            case Fact():
                continue
            case msg.ToWorker(_, _, frame) if isinstance(frame, wire.Ping):
                continue
            case msg.ToWorker(replica, incarnation, frame):
                out[f"{replica}#{incarnation}", getattr(frame, "request_id", "")].append(frame)
            case msg.ToClient(client, frame):
                out[client.decode(), getattr(frame, "request_id", "")].append(frame)
            case msg.KillReplica():
                out["launcher", effect.replica].append(msgspec.structs.replace(effect, why=""))
            case _:
                out["launcher", getattr(effect, "replica", "")].append(effect)
    return {key: [without_text(frame) for frame in frames] for key, frames in out.items()}


def differing(came: Prediction, expected: Prediction) -> str:
    """For people: what came and was not expected, and the other way round."""
    keys = [key for key in {**came, **expected} if came.get(key) != expected.get(key)]
    return "".join(f"\n{key}:\n  came     {came.get(key)}\n  expected {expected.get(key)}" for key in keys)


def without_text(frame: Any) -> Any:
    """An error's message tells people more than the model knows; a stage's own error is kept as it is."""
    error = getattr(frame, "error", None)
    if error is None or (error.code == "stage_error" and error.message == "it broke"):
        return frame
    where = (None, None) if error.code == "unavailable" else (error.stage, error.replica)
    plain = wire.ErrorInfo(error.code, "", *where, error.retriable)
    return msgspec.structs.replace(frame, error=plain)
