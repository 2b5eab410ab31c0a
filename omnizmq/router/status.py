"""What `omnizmq status --json` says of the replicas (B3). Pure."""

from __future__ import annotations

from omnizmq.router.pools import Pools, Replica


def replica_counts(pools: Pools, now: float) -> dict[str, object]:
    """Bindings and leftovers, which are zero when the last request has ended, and every replica's state."""
    replicas = pools.replicas.values()
    return {
        "bindings": sum(len(replica.inflight) for replica in replicas),
        "leftovers": sum(len(replica.leftovers) for replica in replicas),
        "stages": {
            stage: {"replicas": [_replica(replica, now) for replica in pool]} for stage, pool in pools.by_stage.items()
        },
    }


def _replica(replica: Replica, now: float) -> dict[str, object]:
    return {
        "id": replica.id,
        "pid": replica.pid,
        "state": replica.state,
        "inflight": len(replica.inflight),
        "capacity": replica.capacity,
        "restarts": replica.restarts,
        "incarnation": replica.incarnation,
        "engine": replica.engine_state,
        "engine_s": round(max(0.0, now - replica.engine_since), 3),
        "heartbeat_age_s": round(max(0.0, now - replica.last_seen), 3),
    }
