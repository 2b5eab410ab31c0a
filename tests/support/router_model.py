"""What the contract says of the whole router: an independent prediction of every frame and every kill.

Each request's life is predicted by `lifecycle_model`; this adds the door, the queue, the replicas, the timers and who
is told what. `predict` gives, for each peer and request, the frames in order. Heartbeats and facts are left out, and an
error's text where it only tells what went wrong inside.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import msgspec

from omnizmq import protocol as wire
from omnizmq.config import Config
from omnizmq.pipeline import Pipeline
from omnizmq.router import lifecycle as life
from omnizmq.router import messages as msg
from support.lifecycle_model import ILLEGAL, Model

Key = tuple[str, str]
"""A peer (`client`, `talker/0#1`, `launcher`), and the request or replica that it is about, or nothing."""
Prediction = dict[Key, list[object]]


@dataclass
class ModelReplica:
    stage: str
    capacity: int
    incarnation: int = 0
    state: str = "dead"
    bound: set[str] = field(default_factory=set)
    left: set[str] = field(default_factory=set)
    seen: float = 0.0
    engine: str = "loading"
    since: float = 0.0
    told: float = 0.0
    endpoint: str = ""


@dataclass
class ModelRequest:
    submit: wire.Submit
    client: str | None
    life: Model
    bindings: dict[str, tuple[str, int]] = field(default_factory=dict)
    timers: list[tuple[float, life.Event]] = field(default_factory=list)


class RouterModel:
    """`late` and `bad` are what the counters of late and bad frames must be."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.limits = config.router
        self.pipeline = Pipeline(config)
        self.replicas = {
            f"{stage.name}/{n}": ModelReplica(stage.name, stage.max_inflight)
            for stage in config.stage
            for n in range(stage.replicas)
        }
        self.requests: dict[str, ModelRequest] = {}
        self.queue: list[str] = []
        self.turns: dict[str, int] = defaultdict(int)
        self.draining = self.drained = False
        self.late = self.bad = 0
        self.now = 0.0
        self.ticked = self.judged = 0.0
        self.out: Prediction = {}

    # --- In and out ------------------------------------------------------------------------------------------------

    def predict(self, event: msg.Input, now: float) -> Prediction:
        self.now, self.out = now, defaultdict(list)
        match event:
            case msg.ClientSent(client, frame):
                self._client(client.decode(), frame)
            case msg.ClientGone(client, _):
                self._gone(client.decode())
            case msg.ReplicaStarting(name, incarnation, _):
                replica = self.replicas[name]
                replica.incarnation, replica.state, replica.endpoint = incarnation, "starting", ""
                replica.seen = replica.since = now
                replica.engine = "loading"
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
            case msg.StopAsked(why):
                self.draining = True
                for request in list(self.requests.values()):
                    self._advance(request, life.Failed(wire.ErrorInfo("unavailable", why, None, None, True)))
        self._admit()
        if self.draining and not self.requests and not self.drained:
            self.drained = True
            self.out["launcher", ""].append(msg.Drained())
        return {key: [without_text(frame) for frame in frames] for key, frames in self.out.items() if frames}

    # --- Clients ---------------------------------------------------------------------------------------------------

    def _client(self, client: str, frame: wire.ClientToRouter) -> None:
        match frame:
            case wire.Submit():
                self._submit(client, frame)
            case wire.Abort():
                live = [
                    request
                    for request in self.requests.values()
                    if frame.id in (request.submit.external_id, request.submit.request_id) and not request.life.over
                ]
                for request in live:
                    self._advance(request, life.AbortAsked())
                self.out[client, ""].append(wire.AbortAck(frame.call, len(live)))
            case wire.Bye():
                self._gone(client)

    def _submit(self, client: str, frame: wire.Submit) -> None:
        code = self._refusal(frame)
        if code is not None:
            retriable = code in ("unavailable", "overloaded")
            error = wire.ErrorInfo(code, "", None, None, retriable)
            self.out[client, frame.request_id].append(wire.Refused(frame.request_id, error))
            return
        plan = self.pipeline.plan(frame.modalities)
        request = self.requests[frame.request_id] = ModelRequest(frame, client, Model(plan))
        if frame.deadline_s is not None:
            error = wire.ErrorInfo("deadline_exceeded", "", None, None, False)
            request.timers.append((self.now + frame.deadline_s, life.Failed(error)))
        if not self._start(request):
            self.queue.append(frame.request_id)

    def _refusal(self, frame: wire.Submit) -> str | None:
        left = {name for replica in self.replicas.values() for name in replica.left}
        if frame.request_id in self.requests or frame.request_id in left:
            return "invalid_request"
        if self.draining:
            return "unavailable"
        if any(one not in self.pipeline.modalities for one in frame.modalities or []):
            return "invalid_request"
        chosen = self._choose(self.pipeline.plan(frame.modalities).names, frame.affinity)
        if chosen == "nobody":
            return "unavailable"
        return "overloaded" if chosen == "full" and len(self.queue) >= self.limits.max_queued else None

    def _gone(self, client: str) -> None:
        for request in [request for request in self.requests.values() if request.client == client]:
            request.client = None
            self._advance(request, life.AbortAsked())

    # --- Replicas --------------------------------------------------------------------------------------------------

    def _choose(self, stages: tuple[str, ...], affinity: str | None) -> dict[str, str] | str:
        """A replica for each stage, or `full`, or `nobody`."""
        chosen = {}
        ready = {
            stage: [name for name, one in self.replicas.items() if one.stage == stage and one.state == "ready"]
            for stage in stages
        }
        if not all(ready.values()):
            return "nobody"
        for stage, names in ready.items():
            policy = self.pipeline.by_name[stage].policy
            if policy == "affinity" and affinity is not None:
                names = [max(names, key=lambda name: sha256(f"{name} {affinity}".encode()).digest())]
            free = [name for name in names if len(self.replicas[name].bound) < self.replicas[name].capacity]
            if not free:
                return "full"
            if policy == "least_loaded":
                least = min(len(self.replicas[name].bound) for name in free)
                chosen[stage] = next(name for name in free if len(self.replicas[name].bound) == least)
            else:
                chosen[stage] = free[self.turns[stage] % len(free)]
        return chosen

    def _start(self, request: ModelRequest) -> bool:
        chosen = self._choose(request.life.plan.names, request.submit.affinity)
        if isinstance(chosen, str):
            return False
        for stage, name in chosen.items():
            self.turns[stage] += 1
            self.replicas[name].bound.add(request.submit.request_id)
            request.bindings[stage] = (name, self.replicas[name].incarnation)
        self._advance(request, life.Bound())
        return True

    def _admit(self) -> None:
        for name in list(self.queue):
            request = self.requests[name]
            if self._choose(request.life.plan.names, request.submit.affinity) == "nobody":
                error = wire.ErrorInfo("unavailable", "", None, None, True)
                self._advance(request, life.Failed(error))
            elif self._start(request):
                self.queue.remove(name)

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
            if replica.state == "starting":
                ready = frame.state in ("idle", "stepping")
                replica.state = "ready" if ready else "starting"
                other = msg.ReplicaFailed if frame.state == "failed" else msg.ReplicaLoading
                said = msg.ReplicaReady(name) if ready else other(name, frame.text)
                self.out["launcher", name].append(said)
        else:
            self._report(name, incarnation, frame)

    def _report(
        self, name: str, incarnation: int, frame: wire.StageFact | wire.Output | wire.RelayContent | wire.StageFinished
    ) -> None:
        replica = self.replicas[name]
        request = self.requests.get(frame.request_id)
        binding = (name, incarnation)
        if request is None or frame.attempt != 1 or request.bindings.get(replica.stage) != binding:
            self.late += 1
            if request is None and isinstance(frame, wire.StageFinished) and frame.attempt == 1:
                replica.bound.discard(frame.request_id)
                replica.left.discard(frame.request_id)
            return
        match frame:
            case wire.StageFact(fact="registered"):
                self._advance(request, life.Registered(replica.stage))
            case wire.Output():
                self._advance(request, life.OutputArrived(replica.stage, frame.seq, frame.content, frame.last))
            case wire.RelayContent():
                if len(frame.data) > self.limits.relay_max_bytes:
                    error = wire.ErrorInfo("stage_error", "", replica.stage, name, False)
                    self._advance(request, life.Failed(error))
                else:
                    self._advance(request, life.RelayArrived(replica.stage, frame.target, frame.data))
            case wire.StageFinished():
                usage = dict(frame.usage)
                if frame.edges:
                    usage["chunks_out"] = sum(edge.chunks for edge in frame.edges)
                    usage["bytes_out"] = sum(edge.bytes for edge in frame.edges)
                report = life.StageFinished(
                    replica.stage, frame.finish_reason, frame.error, usage, frame.note, frame.outputs
                )
                self._advance(request, report)

    def _unsent(self, event: msg.WorkerUnreachable | msg.FrameUnsendable) -> None:
        replica = self.replicas[event.replica]
        request = self.requests.get(event.request_id)
        lost = isinstance(event, msg.WorkerUnreachable)
        if request is not None and request.bindings.get(replica.stage) == (event.replica, event.incarnation):
            code = "replica_lost" if lost else "protocol_error"
            error = wire.ErrorInfo(code, "", replica.stage, event.replica, lost)
            whole = lost or event.submission
            self._advance(request, life.SubmissionFailed(replica.stage, error) if whole else life.Failed(error))
        if lost and replica.incarnation == event.incarnation:
            self._kill(event.replica)

    def _kill(self, name: str) -> None:
        replica = self.replicas[name]
        if replica.state in ("starting", "ready"):
            replica.state = "stuck"
            self.out["launcher", name].append(msg.KillReplica(name, replica.incarnation, ""))

    def _exited(self, event: msg.ReplicaExited) -> None:
        replica = self.replicas[event.replica]
        if replica.incarnation != event.incarnation or replica.state == "dead":
            return
        replica.state = "dead"
        for name, other in self.replicas.items():
            if other.state in ("ready", "stuck"):
                self.out[f"{name}#{other.incarnation}", ""].append(wire.PeerLost(event.replica, event.incarnation))
        bound, replica.bound, replica.left = replica.bound, set(), set()
        for name in sorted(bound):
            if name in self.requests:
                lost = life.ReplicaLost(replica.stage, event.replica, event.reason)
                self._advance(self.requests[name], lost)

    # --- Time ------------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        slept = self.ticked and self.now - self.ticked > self.limits.heartbeat_timeout_s / 2
        for replica in self.replicas.values() if slept else ():
            replica.seen = replica.since = self.now
        self.ticked = self.now
        due = [
            (at, event, request) for request in self.requests.values() for at, event in request.timers if at <= self.now
        ]
        for at, event, request in sorted(due, key=lambda one: one[0]):
            request.timers.remove((at, event))
            if request.submit.request_id in self.requests:
                self._advance(request, event)
        if self.now - self.judged >= self.limits.heartbeat_interval_s:
            self.judged = self.now
            for name, replica in self.replicas.items():
                if self._ails(replica):
                    self._kill(name)

    def _ails(self, replica: ModelReplica) -> bool:
        stage = self.pipeline.by_name[replica.stage]
        if replica.state == "starting":
            return self.now - replica.since > stage.start_timeout_s
        if replica.state != "ready":
            return False
        silent = self.now - replica.seen > self.limits.heartbeat_timeout_s
        return silent or (replica.engine == "stepping" and replica.told - replica.since > stage.step_timeout_s)

    # --- Requests --------------------------------------------------------------------------------------------------

    def _advance(self, request: ModelRequest, event: life.Event) -> None:
        outcome = request.life.predict(event)
        if outcome == "late":
            self.late += 1
        if outcome == ILLEGAL:
            self.bad += 1
            error = wire.ErrorInfo("protocol_error", "", getattr(event, "stage", None), None, False)
            outcome = request.life.predict(life.Failed(error))
        if isinstance(outcome, str):
            return
        for commands in outcome.values():
            for command in commands:
                self._obey(request, command)
        if request.life.over and not request.life.awaited:
            del self.requests[request.submit.request_id]

    def _obey(self, request: ModelRequest, command: Any) -> None:
        name = request.submit.request_id
        match command:
            case life.SubmitStage() | life.FeedStage() | life.AbortStage():
                replica, incarnation = request.bindings[command.stage]
                self.out[f"{replica}#{incarnation}", name].append(self._stage_frame(request, command))
            case life.Deliver() | life.SendTerminal():
                if isinstance(command, life.SendTerminal) and name in self.queue:
                    self.queue.remove(name)
                if request.client is not None:
                    self.out[request.client, name].append(self._caller_frame(request, command))
            case life.ReleaseStage() | life.LeaveBehind():
                self._free(request, command)
            case life.StartAbortTimer():
                request.timers.append((self.now + self.limits.abort_timeout_s, life.AbortTimedOut()))
            case life.StartGrace():
                request.timers.append((self.now + self.limits.terminal_grace_s, life.GraceExpired()))

    def _free(self, request: ModelRequest, command: life.ReleaseStage | life.LeaveBehind) -> None:
        if command.stage not in request.bindings:
            return
        replica_id, incarnation = request.bindings[command.stage]
        replica = self.replicas[replica_id]
        if replica.incarnation == incarnation and request.submit.request_id in replica.bound:
            if isinstance(command, life.LeaveBehind):
                replica.left.add(request.submit.request_id)
            else:
                replica.bound.remove(request.submit.request_id)

    def _stage_frame(self, request: ModelRequest, command: life.SubmitStage | life.FeedStage | life.AbortStage) -> Any:
        submit, stage = request.submit, command.stage
        if isinstance(command, life.AbortStage):
            return wire.AbortStage(submit.request_id, 1)
        if isinstance(command, life.FeedStage):
            return wire.FeedStage(submit.request_id, 1, command.source, command.data)
        config, plan = self.pipeline.by_name[stage], request.life.plan
        edges_in = [edge for edge in plan.edges if edge.target == stage]
        edges_out = [edge for edge in plan.edges if edge.source == stage]
        return wire.SubmitStage(
            request_id=submit.request_id,
            external_id=submit.external_id,
            attempt=1,
            engine_id=f"{submit.request_id}/1/{stage}",
            prompt=submit.prompt if not edges_in else None,
            original_prompt=submit.prompt if config.wants_prompt else None,
            params=config.params | submit.params.get(stage, {}),
            priority=submit.priority,
            final=stage in plan.final_stages,
            sources=[wire.Source(edge.source, *request.bindings[edge.source], edge.mode) for edge in edges_in],
            targets=[self._target(request, edge.target, edge.mode, edge.window_chunks) for edge in edges_out],
        )

    def _target(self, request: ModelRequest, stage: str, mode: str, window: int) -> wire.Target:
        replica, incarnation = request.bindings[stage]
        return wire.Target(stage, replica, incarnation, self.replicas[replica].endpoint, mode, window, 60.0)

    def _caller_frame(self, request: ModelRequest, command: life.Deliver | life.SendTerminal) -> Any:
        name = request.submit.request_id
        if isinstance(command, life.Deliver):
            return wire.Delivery(name, command.stage, command.modality, command.content, command.stage_finished)
        error = command.error
        if error is not None and error.replica is None and error.stage in request.bindings:
            error = msgspec.structs.replace(error, replica=request.bindings[error.stage][0])
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
            case msg.Record():
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


def without_text(frame: Any) -> Any:
    """An error's message tells people more than the model knows; a stage's own error is kept as it is."""
    error = getattr(frame, "error", None)
    if error is None or (error.code == "stage_error" and error.message == "it broke"):
        return frame
    stage = None if error.code == "unavailable" else error.stage
    return msgspec.structs.replace(frame, error=msgspec.structs.replace(error, message="", stage=stage))
