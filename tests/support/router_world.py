"""A router core beside its model, with workers that do what they are told, or what they should not.

`feed` compares everything that comes out with the prediction, and the tables with the model's. What a stage can report
next comes from the script that its submission began; frames that were sent can be sent again.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import msgspec

from omnizmq import protocol as wire
from omnizmq.config import Config
from omnizmq.router import lifecycle as life
from omnizmq.router import messages as msg
from omnizmq.router.core import RouterCore
from omnizmq.trace.facts import Fact
from support.router_model import RouterModel, differing, observed
from support.stage_scripts import StageScript


@dataclass
class Job:
    """One stage of one attempt at one incarnation of a replica."""

    request_id: str
    attempt: int
    replica: str
    incarnation: int
    script: StageScript
    aborting: bool = False
    fed: bool = False
    paused: bool = False

    @property
    def head(self) -> dict[str, str | int]:
        return {"request_id": self.request_id, "attempt": self.attempt, "incarnation": self.incarnation}

    def frame(self, event: life.Event) -> wire.WorkerToRouter:
        match event:
            case life.Registered():
                return self.fact("registered")
            case life.OutputArrived(_, seq, content, last):
                return wire.Output(**self.head, seq=seq, content=content, last=last, at_ns=1)
            case life.RelayArrived(_, target, data):
                return wire.RelayContent(**self.head, target=target, data=data)
            case life.StageFinished(_, reason, error, usage, note, outputs):
                edges = [wire.EdgeCount("x", 3, 30, 1, 2, 0), wire.EdgeCount("y", 1, 4, 1, 2, 0)] if outputs else []
                report = {"finish_reason": reason, "error": error, "usage": usage, "note": note, "outputs": outputs}
                return wire.StageFinished(**self.head, **report, edges=edges, at_ns=1)
        raise AssertionError(event)

    def fact(self, name: str) -> wire.StageFact:
        return wire.StageFact(**self.head, fact=name, at_ns=1, detail={})

    def pause(self, paused: bool) -> wire.StagePaused:
        return wire.StagePaused(**self.head, paused=paused, at_ns=1)


class RouterWorld:
    """`max_outputs` of each final stage. With `cuts`, the outputs of a request's attempts are cut differently. One that
    `wavers` says something else at its end in every second attempt."""

    def __init__(self, config: Config, *, max_outputs: int = 2, cuts: bool = True, wavers: bool = False) -> None:
        self.config = config
        self.core = RouterCore(config)
        self.model = RouterModel(config)
        self.now = 1000.0
        self.jobs: list[Job] = []
        self.sent: list[msg.WorkerSent] = []
        self.facts: list[Fact] = []
        self.stepping: dict[str, float] = {}  # replicas in a step, and since when
        self.told_to_end: set[str] = set()  # replicas, by an operator's restart
        self.unread: set[str] = set()  # replicas whose consumers have not read all of their rings
        self.ends: dict[str, wire.Terminal] = {}
        self.texts: dict[tuple[str, str], str] = defaultdict(str)  # request, stage -> what the caller has
        self._max_outputs = max_outputs
        self._cuts = cuts
        self._wavers = wavers

    def feed(self, event: msg.Input) -> None:
        expected = self.model.predict(event, self.now)
        effects = self.core.handle(event, self.now)
        came = observed(effects)
        assert came == expected, f"{event}{differing(came, expected)}"
        for effect in effects:
            self._take(effect)
        self._compare_tables()

    def _take(self, effect: msg.Effect) -> None:
        match effect:
            case msg.ToWorker(replica, incarnation, wire.SubmitStage() as frame):
                self._begin(replica, incarnation, frame)
            case msg.ToWorker(replica, incarnation, wire.AbortStage() as frame):
                for job in self.jobs:
                    told = (job.request_id, job.attempt, job.replica, job.incarnation)
                    job.aborting |= told == (frame.request_id, frame.attempt, replica, incarnation)
            case msg.ToClient(_, wire.Terminal() as frame):
                assert frame.request_id not in self.ends, "two terminals"
                self.ends[frame.request_id] = frame
            case msg.ToClient(_, wire.Delivery() as frame):
                assert frame.request_id not in self.ends, "delivered after the terminal"
                if isinstance(frame.content, wire.Text):
                    self.texts[frame.request_id, frame.stage] += frame.content.text
            case msg.RestartReplica(replica, _):
                self.told_to_end.add(replica)
            case Fact():
                self._check_fact(effect)

    def _begin(self, replica: str, incarnation: int, frame: wire.SubmitStage) -> None:
        request = self.core.requests.get(frame.request_id)
        assert request is not None
        script = StageScript.of(request.plan, replica.partition("/")[0], self._max_outputs)
        if self._cuts:
            script.cut = (None, 3, 1)[(frame.attempt - 1) % 3]
        if self._wavers and frame.attempt % 2 == 0:
            script.whole = script.whole[:-1] + "?"
        self.jobs.append(Job(frame.request_id, frame.attempt, replica, incarnation, script))

    def _check_fact(self, fact: Fact) -> None:
        assert fact.request_id.startswith(f"{fact.external_id}-")
        assert fact.stage is None or fact.engine_id == f"{fact.request_id}/{fact.attempt}/{fact.stage}"
        self.facts.append(fact)
        if fact.event == "received":  # an id may come again when its first bearer has gone
            self.ends.pop(fact.request_id, None)
            for key in [key for key in self.texts if key[0] == fact.request_id]:
                del self.texts[key]

    def _compare_tables(self) -> None:
        core, model = self.core, self.model
        assert [request.id for request in core.requests] == list(model.requests)
        assert [{*request.attempts} for request in core.requests] == [
            {*one.attempts} for one in model.requests.values()
        ]
        assert {waiting.request for waiting in model.queue} == core.queue._line_of.keys()
        assert len(core.queue) == len(model.queue)
        assert {name for names in core.requests._by_external.values() for name in names} == set(model.requests)
        assert len(core.state.timers) == len(model.timers)
        assert len(core.operations) == len(model.orders.orders)
        paused = {name for name, one in model.requests.items() if one.present.paused and not one.over}
        assert core.state.paused == paused
        for name, replica in model.replicas.items():
            real = core.pools.replicas[name]
            assert (real.state, real.incarnation) == (replica.state, replica.incarnation)
            assert (real.inflight, real.leftovers) == (replica.bound, replica.left)
            assert real.waiting <= real.inflight
            assert real.active == model.active(replica), name
        counters = core.counters
        assert (counters.late_frames, counters.bad_frames) == (model.late, model.bad)
        assert (counters.redriven, counters.replicas_lost) == (model.redriven, model.replicas_lost)
        assert counters.router_errors == 0

    # --- Moves -----------------------------------------------------------------------------------------------------

    def starts(self, replica: str) -> None:
        incarnation = self.core.pools.replicas[replica].incarnation + 1
        self.feed(msg.ReplicaStarting(replica, incarnation, 1000 + incarnation))

    def becomes_ready(self, replica: str) -> None:
        incarnation = self.core.pools.replicas[replica].incarnation
        self.stepping.pop(replica, None)
        self.feed(msg.WorkerJoined(replica, incarnation, f"ipc://{replica}#{incarnation}"))
        self.beats(replica, "idle")

    def exits(self, replica: str, why: str = "killed") -> None:
        self.told_to_end.discard(replica)
        self.feed(msg.ReplicaExited(replica, self.core.pools.replicas[replica].incarnation, why))

    def beats(self, replica: str, state: str) -> None:
        incarnation = self.core.pools.replicas[replica].incarnation
        since = self.stepping.get(replica, self.now) if state == "stepping" else self.now
        rings = [wire.RingUse("x", 64, 3, 0), wire.RingUse("y", 64, 0, 2)] if replica in self.unread else []
        frame = wire.Heartbeat(incarnation, state, int(since * 1e9), "", rings, 0, 0, 0)
        self.feed(msg.WorkerSent(replica, incarnation, frame))

    def goes_on(self, job: Job, event: life.Event) -> None:
        self.send(job, job.frame(event))
        job.script.follow(event)

    def send(self, job: Job, frame: wire.WorkerToRouter) -> None:
        sent = msg.WorkerSent(job.replica, job.incarnation, frame)
        self.sent.append(sent)
        self.feed(sent)

    def says_again(self, sent: msg.WorkerSent, *, attempt: int) -> None:
        self.feed(msgspec.structs.replace(sent, frame=msgspec.structs.replace(sent.frame, attempt=attempt)))

    def alive(self, job: Job) -> bool:
        replica = self.core.pools.replicas[job.replica]
        return replica.incarnation == job.incarnation and replica.state != "dead"

    def passes(self, seconds: float, *, silent: frozenset[str] = frozenset()) -> None:
        """Time, in which every serving replica beats but the silent ones."""
        self.now += seconds
        for replica in self.core.pools.replicas.values():
            if replica.state in ("ready", "draining") and replica.id not in silent:
                self.beats(replica.id, "stepping" if replica.id in self.stepping else "idle")
        self.feed(msg.Ticked())
