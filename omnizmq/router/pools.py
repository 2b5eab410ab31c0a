"""The replicas of every stage, and which attempt of which request is bound to which (S4, F3, F4).

A replica is a place that the configuration names (`talker/0`); an *incarnation* of it is one process. Only a ready
incarnation takes bindings. A binding names its incarnation, so whatever is done to it cannot touch a later one's.
An attempt that waits there, for input or for its caller to read, is bound and takes nobody's place (B1).
Pure: no sockets, no clock; times come in as seconds.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Literal, NamedTuple

from omnizmq.config import StageConfig
from omnizmq.errors import UnavailableError
from omnizmq.protocol import RingUse

SHOWN_REPLICAS = 4
"""So many of a stage are described where it has none for a request."""

State = Literal["starting", "ready", "draining", "stuck", "dead"]

AttemptKey = tuple[str, int]
"""A request id and the number of one of its attempts."""


class Binding(NamedTuple):
    """One incarnation of a replica: every frame of an attempt and stage goes there (S4)."""

    replica: str
    incarnation: int


class Lack(NamedTuple):
    """Why no replica can be bound: `stage` has none that lives ("no_replica"), or those that it has load ("starting"),
    are drained ("drained") or have no room ("full"). `replicas`: in words."""

    why: str
    stage: str
    replicas: str


@dataclass
class Replica:
    """One replica and its present incarnation. `inflight` are the attempts bound here; `waiting` those of them that
    have nothing to compute now, `leftovers` those whose abort it has not confirmed in time (A6): they keep their place
    until it does. `returning`: out of service, and another incarnation will be ready soon, because an operator wants
    it so; `drained`: it takes no requests, in whatever incarnation, until an operator resumes or restarts it;
    `ordered`: the incarnation whose end he has ordered."""

    id: str
    stage: str
    capacity: int
    most: int
    incarnation: int = 0
    state: State = "dead"
    pid: int = 0
    endpoint: str = ""
    restarts: int = 0
    returning: bool = False
    drained: bool = False
    ordered: int = 0
    inflight: set[AttemptKey] = field(default_factory=set)
    waiting: set[AttemptKey] = field(default_factory=set)
    leftovers: set[AttemptKey] = field(default_factory=set)
    last_seen: float = 0.0
    engine_state: str = "loading"
    engine_since: float = 0.0
    engine_told: float = 0.0  # when its last heartbeat came
    engine_text: str = ""
    rings: list[RingUse] = field(default_factory=list)
    late_frames: int = 0
    bad_frames: int = 0
    discarded: int = 0

    @property
    def active(self) -> int:
        """Attempts that take a place: they compute, or could."""
        return len(self.inflight) - len(self.waiting)

    @property
    def unread(self) -> int:
        """Bytes in its ring, and beside it, that consumers had not released at its last heartbeat."""
        return sum(use.used + use.spilled for use in self.rings)

    @property
    def free(self) -> int:
        """How many more may be bound."""
        return min(self.capacity - self.active, self.most - len(self.inflight))


class Pools:
    """All replicas of a deployment."""

    def __init__(self, stages: Iterable[StageConfig]) -> None:
        self.replicas: dict[str, Replica] = {}
        self.by_stage: dict[str, list[Replica]] = {}
        self._policy = {}
        self._turn: dict[str, int] = {}
        for stage in stages:
            most = max(stage.max_registered, stage.max_inflight)
            pool = [
                Replica(f"{stage.name}/{n}", stage.name, stage.max_inflight, most)
                for n in range(max(1, stage.replicas))
            ]
            self.by_stage[stage.name] = pool
            self._policy[stage.name] = stage.policy
            self._turn[stage.name] = 0
            self.replicas.update((replica.id, replica) for replica in pool)

    # --- Incarnations ----------------------------------------------------------------------------------------------

    def starting(self, replica_id: str, incarnation: int, pid: int, now: float) -> None:
        """The launcher has spawned a process for this replica."""
        replica = self.replicas[replica_id]
        replica.restarts += replica.incarnation > 0
        replica.incarnation, replica.pid, replica.state = incarnation, pid, "starting"
        replica.last_seen = replica.engine_since = now
        replica.engine_state, replica.engine_text, replica.endpoint = "loading", "", ""
        replica.rings, replica.late_frames, replica.bad_frames, replica.discarded = [], 0, 0, 0

    def seen(self, replica_id: str, incarnation: int, now: float) -> Replica | None:
        """Its present incarnation said something; None for one that is gone (F3)."""
        replica = self.replicas.get(replica_id)
        if replica is None or replica.incarnation != incarnation or replica.state == "dead":
            return None
        replica.last_seen = now
        return replica

    def lost(self, replica_id: str, incarnation: int) -> tuple[AttemptKey, ...] | None:
        """This incarnation has been reaped. Returns what was bound to it, and forgets it here. None: known already."""
        replica = self.replicas[replica_id]
        if replica.incarnation != incarnation or replica.state == "dead":
            return None
        bound = tuple(sorted(replica.inflight))
        replica.state, replica.pid, replica.rings = "dead", 0, []
        for attempts in (replica.inflight, replica.waiting, replica.leftovers):
            attempts.clear()
        return bound

    def check(self, stages: Iterable[str], shunned: Container[Binding]) -> None:
        """Raises `UnavailableError` where a stage has no replica that is ready, or about to return (F4)."""
        for stage in stages:
            self._ready(stage, shunned)

    def can_serve(self, stages: Iterable[str], shunned: Container[Binding]) -> bool:
        try:
            self.check(stages, shunned)
        except UnavailableError:
            return False
        return True

    def serves(self, stages: Iterable[str], shunned: Container[Binding]) -> bool:
        """Whether every stage has a replica that is ready, with room or without."""
        try:
            return all(self._ready(stage, shunned) for stage in stages)
        except UnavailableError:
            return False

    def lack(self, stages: Iterable[str], affinity: str | None, shunned: Container[Binding]) -> Lack | None:
        """The first stage that has nobody for a request now. None: every stage has."""
        for stage in stages:
            pool = self.by_stage[stage]
            ready = [one for one in pool if one.state == "ready" and Binding(one.id, one.incarnation) not in shunned]
            if self._choose(stage, ready, affinity) is None:
                return Lack(_why(pool, ready), stage, _in_words(pool))
        return None

    def all_ready(self) -> bool:
        """Readiness: every stage can serve (F4)."""
        return all(any(replica.state == "ready" for replica in pool) for pool in self.by_stage.values())

    # --- Bindings --------------------------------------------------------------------------------------------------

    def bind(
        self,
        attempt: AttemptKey,
        stages: Iterable[str],
        affinity: str | None,
        *,
        idle: Container[str] = (),
        shunned: Container[Binding] = (),
    ) -> dict[str, Binding] | None:
        """One ready replica for each stage, all or none; none of the `shunned`. None: no room now. Stages that are
        `idle` wait for their input first.

        Raises `UnavailableError` when some stage has nobody to wait for (F4).
        """
        ready = {stage: self._ready(stage, shunned) for stage in stages}
        chosen: dict[str, Replica] = {}
        for stage, replicas in ready.items():
            replica = self._choose(stage, replicas, affinity)
            if replica is None:
                return None
            chosen[stage] = replica
        for stage, replica in chosen.items():
            replica.inflight.add(attempt)
            if stage in idle:
                replica.waiting.add(attempt)
            self._turn[stage] += 1
        return {stage: Binding(replica.id, replica.incarnation) for stage, replica in chosen.items()}

    def count(self, attempt: AttemptKey, binding: Binding, *, active: bool) -> None:
        """The attempt takes a place there from now on, or none."""
        replica = self._bound_to(binding)
        if replica is not None and attempt in replica.inflight:
            (replica.waiting.discard if active else replica.waiting.add)(attempt)

    def release(self, attempt: AttemptKey, binding: Binding) -> None:
        replica = self._bound_to(binding)
        if replica is not None:
            for attempts in (replica.inflight, replica.waiting, replica.leftovers):
                attempts.discard(attempt)

    def leave_behind(self, attempt: AttemptKey, binding: Binding) -> None:
        """The attempt has ended, its replica has not confirmed: it keeps its place there until it does."""
        replica = self._bound_to(binding)
        if replica is not None and attempt in replica.inflight:
            replica.leftovers.add(attempt)
            replica.waiting.discard(attempt)

    def has_leftover(self, request_id: str) -> bool:
        """Whether some replica has not confirmed yet that it has forgotten this request."""
        return any(request_id == left for replica in self.replicas.values() for left, _ in replica.leftovers)

    def _bound_to(self, binding: Binding) -> Replica | None:
        """The replica, while the incarnation that the binding means is its present one."""
        replica = self.replicas[binding.replica]
        return replica if replica.incarnation == binding.incarnation else None

    def _ready(self, stage: str, shunned: Container[Binding]) -> list[Replica]:
        """Those that may be chosen; none where one is about to return."""
        pool = self.by_stage[stage]
        ready = [one for one in pool if one.state == "ready" and Binding(one.id, one.incarnation) not in shunned]
        if not ready and not any(replica.returning for replica in pool):
            if all(replica.drained for replica in pool):
                raise UnavailableError(f"stage {stage} is drained, until an operator resumes it", stage=stage)
            raise UnavailableError(f"stage {stage} has no live replica; try again shortly", stage=stage)
        return ready

    def _choose(self, stage: str, ready: list[Replica], affinity: str | None) -> Replica | None:
        """By the stage's policy. An affinity key waits for its own replica, whoever else is free; when that one dies,
        its keys alone move (rendezvous hashing)."""
        policy = self._policy[stage]
        if policy == "affinity" and affinity is not None and ready:
            replica = max(ready, key=lambda replica: sha256(f"{replica.id} {affinity}".encode()).digest())
            return replica if replica.free > 0 else None
        free = [replica for replica in ready if replica.free > 0]
        if not free:
            return None
        if policy == "least_loaded":
            return min(free, key=lambda replica: (replica.active, len(replica.inflight)))
        return free[self._turn[stage] % len(free)]


def _why(pool: list[Replica], ready: list[Replica]) -> str:
    if ready:
        return "full"
    if all(replica.drained for replica in pool):
        return "drained"
    if any(replica.state == "starting" or replica.returning for replica in pool):
        return "starting"
    return "no_replica"


def _taken(replica: Replica) -> str:
    taken = f"{replica.active}/{replica.capacity} in flight"
    bound = len(replica.inflight)
    return (
        taken
        if bound < replica.most or replica.active == replica.capacity
        else f"{taken}, {bound}/{replica.most} registered"
    )


def _in_words(pool: list[Replica]) -> str:
    words = [f"{one.id} {one.state}, {_taken(one)}" for one in pool[:SHOWN_REPLICAS]]
    return "; ".join(words) + (f"; {len(pool) - SHOWN_REPLICAS} more" if len(pool) > SHOWN_REPLICAS else "")
