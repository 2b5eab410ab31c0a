"""What `omnizmq status --json` says of the replicas and of the oldest requests (B3). Pure."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from omnizmq.config import RouterConfig
from omnizmq.router.health import is_silent
from omnizmq.router.pools import Pools, Replica
from omnizmq.router.request import Request

SLOWEST = 5
"""So many of the oldest live requests are named."""


def replica_counts(pools: Pools, limits: RouterConfig, now: float) -> dict[str, object]:
    """Bindings and leftovers, which are zero when the last request has ended, and every replica's state."""
    replicas = pools.replicas.values()
    return {
        "bindings": sum(len(replica.inflight) for replica in replicas),
        "leftovers": sum(len(replica.leftovers) for replica in replicas),
        "discarded": sum(replica.discarded for replica in replicas),
        "stages": {
            stage: {"replicas": [_replica(replica, limits, now) for replica in pool]}
            for stage, pool in pools.by_stage.items()
        },
    }


def ring_rows(pools: Pools) -> list[dict[str, object]]:
    """For each edge of each replica, what it may hold of that replica's ring and held at its last heartbeat."""
    return [
        {
            "edge": f"{replica.stage}->{use.target}",
            "replica": replica.id,
            "capacity_bytes": use.capacity,
            "used_bytes": use.used,
            "spilled_bytes": use.spilled,
        }
        for replica in pools.replicas.values()
        for use in replica.rings
    ]


def slowest(requests: Iterable[Request], now: float) -> list[dict[str, object]]:
    """The oldest live requests, the oldest first. `requests` are in the order of their arrival."""
    return [
        {
            "request_id": request.id,
            "external_id": request.submit.external_id,
            "age_s": round(max(0.0, now - request.arrived), 3),
            "attempt": request.attempt.number,
            "phase": request.attempt.lifecycle.phase.value,
        }
        for request in islice(requests, SLOWEST)
    ]


def _replica(replica: Replica, limits: RouterConfig, now: float) -> dict[str, object]:
    return {
        "id": replica.id,
        "pid": replica.pid,
        "state": replica.state,
        "drained": replica.drained,
        "returning": replica.returning,
        "inflight": len(replica.inflight),
        "active": replica.active,
        "capacity": replica.capacity,
        "restarts": replica.restarts,
        "incarnation": replica.incarnation,
        "engine": replica.engine_state,
        "engine_s": round(max(0.0, now - replica.engine_since), 3),
        "heartbeat_age_s": round(max(0.0, now - replica.last_seen), 3),
        "silent": is_silent(replica, limits, now),
        "late_frames": replica.late_frames,
        "bad_frames": replica.bad_frames,
        "discarded": replica.discarded,
    }
