"""The replicas of every stage, and which request is bound to which (S4, F3, F4).

A replica is a place that the configuration names (`talker/0`); an *incarnation* of it is one process. Only a ready
incarnation takes bindings. Pure: no sockets, no clock; times come in as seconds.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from omnizmq.config import StageConfig
from omnizmq.errors import UnavailableError

State = Literal["starting", "ready", "draining", "stuck", "dead"]


@dataclass
class Replica:
    """One replica and its present incarnation. `inflight` are the request ids bound here, `leftovers` those whose
    abort it has not confirmed in time (A6)."""

    id: str
    stage: str
    capacity: int
    incarnation: int = 0
    state: State = "dead"
    pid: int = 0
    endpoint: str = ""
    restarts: int = 0
    inflight: set[str] = field(default_factory=set)
    leftovers: set[str] = field(default_factory=set)
    last_seen: float = 0.0
    engine_state: str = "loading"
    engine_since: float = 0.0
    engine_text: str = ""

    @property
    def free(self) -> int:
        return self.capacity - len(self.inflight)


class Pools:
    """All replicas of a deployment."""

    def __init__(self, stages: Iterable[StageConfig]) -> None:
        self.replicas: dict[str, Replica] = {}
        self.by_stage: dict[str, list[Replica]] = {}
        self._policy = {}
        self._turn: dict[str, int] = {}
        for stage in stages:
            pool = [Replica(f"{stage.name}/{n}", stage.name, stage.max_inflight) for n in range(max(1, stage.replicas))]
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

    def seen(self, replica_id: str, incarnation: int, now: float) -> Replica | None:
        """Its present incarnation said something; None for one that is gone (F3)."""
        replica = self.replicas.get(replica_id)
        if replica is None or replica.incarnation != incarnation or replica.state == "dead":
            return None
        replica.last_seen = now
        return replica

    def lost(self, replica_id: str, incarnation: int) -> tuple[str, ...]:
        """This incarnation has been reaped. Returns the requests that were bound to it, and forgets them here."""
        replica = self.replicas[replica_id]
        if replica.incarnation != incarnation:
            return ()
        bound = tuple(sorted(replica.inflight))
        replica.state, replica.pid = "dead", 0
        replica.inflight.clear()
        replica.leftovers.clear()
        return bound

    def all_ready(self) -> bool:
        """Readiness: every stage can serve (F4)."""
        return all(any(replica.state == "ready" for replica in pool) for pool in self.by_stage.values())

    # --- Bindings --------------------------------------------------------------------------------------------------

    def bind(self, request_id: str, stages: Iterable[str], affinity: str | None) -> dict[str, Replica] | None:
        """One ready replica for each stage, all or none. None: no room now; `UnavailableError`: nobody to wait for."""
        chosen: dict[str, Replica] = {}
        for stage in stages:
            replica = self._choose(stage, affinity)
            if replica is None:
                return None
            chosen[stage] = replica
        for stage, replica in chosen.items():
            replica.inflight.add(request_id)
            self._turn[stage] += 1
        return chosen

    def require_live(self, stages: Iterable[str]) -> None:
        """Raises `UnavailableError` for the first stage without a ready replica (F4)."""
        for stage in stages:
            if not any(replica.state == "ready" for replica in self.by_stage[stage]):
                raise UnavailableError(f"stage {stage} has no live replica; try again shortly", stage=stage)

    def release(self, request_id: str, replica_id: str) -> None:
        replica = self.replicas[replica_id]
        replica.inflight.discard(request_id)
        replica.leftovers.discard(request_id)

    def leave_behind(self, request_id: str, replica_id: str) -> None:
        """The request has ended, its replica has not confirmed: it keeps its place there until it does."""
        replica = self.replicas[replica_id]
        if request_id in replica.inflight:
            replica.leftovers.add(request_id)

    def _choose(self, stage: str, affinity: str | None) -> Replica | None:
        ready = [replica for replica in self.by_stage[stage] if replica.state == "ready"]
        if not ready:
            raise UnavailableError(f"stage {stage} has no live replica; try again shortly", stage=stage)
        policy = self._policy[stage]
        if policy == "affinity" and affinity is not None:
            replica = ready[zlib.crc32(affinity.encode()) % len(ready)]
            return replica if replica.free > 0 else None
        free = [replica for replica in ready if replica.free > 0]
        if not free:
            return None
        if policy == "least_loaded":
            return min(free, key=lambda replica: len(replica.inflight))
        return free[self._turn[stage] % len(free)]
