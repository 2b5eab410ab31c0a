"""A router core beside its model, with workers that do what they are told, or what they should not.

`feed` compares everything that comes out with the prediction, and the tables with the model's. What a stage can report
next comes from the script that its submission began; frames that were sent can be sent again.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from omnizmq import protocol as wire
from omnizmq.config import Config
from omnizmq.router import lifecycle as life
from omnizmq.router import messages as msg
from omnizmq.router.core import RouterCore
from omnizmq.trace.facts import Fact
from support.router_model import RouterModel, observed
from support.stage_scripts import StageScript


@dataclass
class Job:
    """One stage of one request at one incarnation of a replica."""

    request_id: str
    replica: str
    incarnation: int
    script: StageScript
    aborting: bool = False

    def frame(self, event: life.Event) -> wire.WorkerToRouter:
        head = {"request_id": self.request_id, "attempt": 1, "incarnation": self.incarnation}
        match event:
            case life.Registered():
                return wire.StageFact(**head, fact="registered", at_ns=1)
            case life.OutputArrived(_, seq, content, last):
                return wire.Output(**head, seq=seq, content=content, last=last, at_ns=1)
            case life.RelayArrived(_, target, data):
                return wire.RelayContent(**head, target=target, data=data)
            case life.StageFinished(_, reason, error, usage, note, outputs):
                edges = [wire.EdgeCount("x", 3, 30, 1, 2), wire.EdgeCount("y", 1, 4, 1, 2)] if outputs else []
                report = {"finish_reason": reason, "error": error, "usage": usage, "note": note, "outputs": outputs}
                return wire.StageFinished(**head, **report, edges=edges, at_ns=1)
        raise AssertionError(event)


class RouterWorld:
    def __init__(self, config: Config) -> None:
        self.config = config
        self.core = RouterCore(config)
        self.model = RouterModel(config)
        self.now = 1000.0
        self.jobs: list[Job] = []
        self.sent: list[msg.WorkerSent] = []
        self.facts: list[Fact] = []
        self.stepping: dict[str, float] = {}  # replicas in a step, and since when
        self._over: set[str] = set()  # requests whose caller has its terminal

    def feed(self, event: msg.Input) -> None:
        expected = self.model.predict(event, self.now)
        effects = self.core.handle(event, self.now)
        assert observed(effects) == expected, event
        for effect in effects:
            self._take(effect)
        self._compare_tables()

    def _take(self, effect: msg.Effect) -> None:
        match effect:
            case msg.ToWorker(replica, incarnation, wire.SubmitStage() as frame):
                stage = replica.partition("/")[0]
                script = StageScript.of(self.core.requests[frame.request_id].plan, stage, 2)
                self.jobs.append(Job(frame.request_id, replica, incarnation, script))
            case msg.ToWorker(replica, _, wire.AbortStage() as frame):
                for job in self.jobs:
                    job.aborting |= (job.request_id, job.replica) == (frame.request_id, replica)
            case msg.ToClient(_, wire.Terminal() as frame):
                assert frame.request_id not in self._over, "two terminals"
                self._over.add(frame.request_id)
            case msg.ToClient(_, wire.Delivery() as frame):
                assert frame.request_id not in self._over, "delivered after the terminal"
            case msg.Record(fact):
                assert fact.request_id.startswith(f"{fact.external_id}-")
                assert fact.stage is None or fact.engine_id == f"{fact.request_id}/1/{fact.stage}"
                self.facts.append(fact)
                if fact.event == "received":  # an id may come again when its first bearer has gone
                    self._over.discard(fact.request_id)

    def _compare_tables(self) -> None:
        core, model = self.core, self.model
        assert list(core.requests) == list(model.requests)
        assert core.queue == model.queue
        assert {name for names in core._by_external.values() for name in names} == set(model.requests)
        assert len(core._timers) == sum(len(request.timers) for request in model.requests.values())
        for name, replica in model.replicas.items():
            real = core.pools.replicas[name]
            assert (real.state, real.incarnation) == (replica.state, replica.incarnation)
            assert {request for request, _ in real.inflight} == replica.bound
            assert {request for request, _ in real.leftovers} == replica.left
        assert core.counters.late_frames == model.late
        assert core.counters.bad_frames == model.bad
        assert core.counters.router_errors == 0

    # --- Moves -----------------------------------------------------------------------------------------------------

    def starts(self, replica: str) -> None:
        incarnation = self.core.pools.replicas[replica].incarnation + 1
        self.feed(msg.ReplicaStarting(replica, incarnation, 1000 + incarnation))

    def becomes_ready(self, replica: str) -> None:
        incarnation = self.core.pools.replicas[replica].incarnation
        self.stepping.pop(replica, None)
        self.feed(msg.WorkerJoined(replica, incarnation, f"ipc://{replica}#{incarnation}"))
        self.beats(replica, "idle")

    def beats(self, replica: str, state: str) -> None:
        incarnation = self.core.pools.replicas[replica].incarnation
        since = self.stepping.get(replica, self.now) if state == "stepping" else self.now
        frame = wire.Heartbeat(incarnation, state, int(since * 1e9), "", [], 0, 0)
        self.feed(msg.WorkerSent(replica, incarnation, frame))

    def goes_on(self, job: Job, event: life.Event) -> None:
        self._send(job, job.frame(event))
        job.script.follow(event)

    def _send(self, job: Job, frame: wire.WorkerToRouter) -> None:
        sent = msg.WorkerSent(job.replica, job.incarnation, frame)
        self.sent.append(sent)
        self.feed(sent)

    def says_again(self, sent: msg.WorkerSent, *, attempt: int) -> None:
        self.feed(msgspec.structs.replace(sent, frame=msgspec.structs.replace(sent.frame, attempt=attempt)))

    def alive(self, job: Job) -> bool:
        replica = self.core.pools.replicas[job.replica]
        return replica.incarnation == job.incarnation and replica.state != "dead"

    def passes(self, seconds: float, *, silent: frozenset[str] = frozenset()) -> None:
        """Time, in which every ready replica beats but the silent ones."""
        self.now += seconds
        for replica in self.core.pools.replicas.values():
            if replica.state == "ready" and replica.id not in silent:
                self.beats(replica.id, "stepping" if replica.id in self.stepping else "idle")
        self.feed(msg.Ticked())
