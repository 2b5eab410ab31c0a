"""One request in a small deployment, and every order of what can happen to it.

A worker's reports arrive in the order in which it sent them; between workers there is no order. Explored are all
interleavings, with so many disturbances at any points of each. Orders that meet in the same state go on together, so
there are more of them than work. Every step is compared with the model (`router_world`), and watched: what the caller
has of a stage is always a beginning of what that stage says. At the end there is one terminal, of the request's own
last stage, it accounts for every stage that ran, and nothing is left in any table.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable

from omnizmq import protocol as wire
from omnizmq.config import Config
from omnizmq.router import messages as msg
from support.freezing import freeze, identity, thaw
from support.playbook import rid, submission
from support.router_world import Job, RouterWorld
from support.stage_scripts import StageScript

REQUEST = rid("demo")

Move = tuple[str, int | str]
"""A kind of move, and the job or replica that it is about."""
Disturb = Callable[["SmallWorld"], list[Move]]


class SmallWorld(RouterWorld):
    """`backwards`: of the attempts after a first one, the last stage speaks first and not the first one; their order is
    one of these two. `returns`: a replica that died comes back."""

    def __init__(self, config: Config, *, max_outputs: int = 1, backwards: bool = False, returns: bool = False) -> None:
        super().__init__(config, max_outputs=max_outputs)
        self.plan = self.core.pipeline.plan(None)
        self.doomed: set[str] = set()  # replicas whose end others know already
        self.gone = False  # the caller
        self.ran: set[str] = set()  # stages, in any attempt
        self._backwards = backwards
        self._returns = returns
        for replica in self.core.pools.replicas:
            self.starts(replica)
            self.becomes_ready(replica)
        self.feed(msg.ClientSent(b"alice", submission()))

    @property
    def working(self) -> list[int]:
        alive = [n for n, job in enumerate(self.jobs) if self.alive(job) and job.replica not in self.doomed]
        return [n for n in alive if not self.jobs[n].script.done]

    @property
    def usual(self) -> list[Move]:
        """What goes on by itself."""
        first = [n for n in self.working if self.jobs[n].attempt == 1]
        later = sorted((n for n in self.working if self.jobs[n].attempt > 1), key=self._turn)
        moves = [move for n in [*first, *later[:1]] for move in self._reports(n)]
        moves += [("dies", name) for name in sorted(self.doomed)]
        if self._returns:
            dead = [one.id for one in self.core.pools.replicas.values() if one.state == "dead"]
            moves += [("returns", name) for name in dead]
        return moves

    def _turn(self, n: int) -> tuple[int, int]:
        """Those that an earlier attempt left first, so that what is left of it does not multiply the orders."""
        place = self.plan.names.index(self.jobs[n].script.name)
        return self.jobs[n].attempt, -place if self._backwards else place

    def _reports(self, n: int) -> list[Move]:
        """Its next report. One that has been told to abort may have sent that before it heard of it."""
        job = self.jobs[n]
        waits = bool(self.plan.incoming[job.script.name]) and not job.fed
        following: Move = ("has input" if job.script.registered and waits else "goes on", n)
        if not job.aborting:
            return [following]
        alone = job.attempt > 1 or self._replaced(job)
        return [("confirms", n)] if alone else [("confirms", n), following]

    def _replaced(self, job: Job) -> bool:
        request = self.core.requests.get(job.request_id)
        return request is not None and request.attempt.number > job.attempt

    def take(self, move: Move) -> None:
        kind, which = move
        if isinstance(which, int):
            self._take_of_job(kind, self.jobs[which])
        elif kind == "dies":
            self.doomed.discard(which)
            self.exits(which)
        elif kind == "returns":
            self.starts(which)
            self.becomes_ready(which)
        elif kind == "aborts":
            self.feed(msg.ClientSent(b"carol", wire.Abort(1, "demo")))
        elif kind == "leaves":
            self.gone = True
            self.feed(msg.ClientGone(b"alice", "its process ended"))
        self.ran |= {job.script.name for job in self.jobs}
        self._check_texts()
        self._forget_history()

    def _take_of_job(self, kind: str, job: Job) -> None:
        match kind:
            case "goes on":
                self.goes_on(job, job.script.to_its_end())
            case "has input":
                job.fed = True
                self.send(job, job.fact("input_ready"))
            case "confirms":
                self.goes_on(job, job.script.confirmed())
            case "fails":
                self.goes_on(job, job.script.failure())
            case _:  # a replica that it has lost
                self.doomed.add(kind)
                self.goes_on(job, job.script.blames(kind.partition("/")[0], kind))

    def _check_texts(self) -> None:
        for (_, stage), text in self.texts.items():
            assert self.whole(stage).startswith(text), f"{stage} said {text!r}"

    def whole(self, stage: str) -> str:
        return StageScript.of(self.plan, stage, self._max_outputs).whole

    def _forget_history(self) -> None:
        """What nothing depends on any more would keep equal states apart."""
        self.jobs = [job for job in self.jobs if not (self._replaced(job) and (job.script.done or not self.alive(job)))]
        self.facts.clear()
        self.sent.clear()
        self.core.state.effects = []
        self.model.out = {}

    @property
    def bound(self) -> list[str]:
        """Living replicas at which something of the request is bound."""
        return [one.id for one in self.core.pools.replicas.values() if one.inflight and one.id not in self.doomed]

    def frozen(self) -> bytes:
        core, model = self.core, self.model
        known = (core.requests, core.pools, core.queue, core.state.timers, core.counters, core.state.paused)
        expected = (model.requests, model.queue, model.timers, [vars(one) for one in model.replicas.values()])
        return identity(known, expected, self.jobs, self.doomed, self.gone, self.ran, self.ends, dict(self.texts))

    # --- The end ---------------------------------------------------------------------------------------------------

    def check_end(self) -> str:
        """How it ended."""
        status = self.core.status(self.now)
        assert not any(status[key] for key in ("live_requests", "queued", "paused", "bindings", "leftovers"))
        assert len(self.core.state.timers) == 0
        if self.gone:
            assert not self.ends, "nobody is told"
            return "nobody"
        assert list(self.ends) == [REQUEST], "one terminal"
        end = self.ends[REQUEST]
        assert (end.stage, end.modality) == (self.plan.last_stage, self.plan.modality(self.plan.last_stage))
        assert {*end.usage, *end.usage_incomplete} == self.ran
        assert not {*end.usage} & {*end.usage_incomplete}
        if end.finish_reason == "stop":
            assert {stage: self.texts[REQUEST, stage] for stage in self.plan.final_stages} == {
                stage: self.whole(stage) for stage in self.plan.final_stages
            }
        return end.error.code if end.error is not None else end.finish_reason


class Explorer:
    """Follows every order to its end. `ends` counts the states in which requests ended, by how they did; `states` those
    from which there was more than one way, or none."""

    def __init__(self, disturb: Disturb, most: int = 1) -> None:
        self.ends: Counter[str] = Counter()
        self.states = 0
        self._disturb = disturb
        self._most = most
        self._known: dict[tuple[int, bytes], int] = {}

    def explore(self, world: SmallWorld) -> int:
        """How many orders there are."""
        gc.disable()  # worlds have no cycles, and there are very many
        try:
            return self._orders(world, self._most)
        finally:
            gc.enable()

    def _orders(self, world: SmallWorld, left: int) -> int:
        moves = self._moves(world, left)
        while len(moves) == 1:  # no other order: nothing to come back to
            world.take(moves[0][0])
            moves = self._moves(world, left)
        key = (left, world.frozen())
        if key not in self._known:
            self._known[key] = self._from_here(world, moves)
        return self._known[key]

    def _moves(self, world: SmallWorld, left: int) -> list[tuple[Move, int]]:
        """What may be next, and how many disturbances are left then."""
        moves = [(move, left) for move in world.usual]
        if left and not world.ends and len(world.core.requests):
            moves += [(move, left - 1) for move in self._disturb(world)]
        return moves

    def _from_here(self, world: SmallWorld, moves: list[tuple[Move, int]]) -> int:
        self.states += 1
        if not moves:
            self.ends[world.check_end()] += 1
            return 1
        frozen, orders = freeze(world), 0
        for move, left in moves:
            other = thaw(frozen)
            other.take(move)
            orders += self._orders(other, left)
        return orders
