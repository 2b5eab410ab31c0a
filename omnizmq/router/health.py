"""What a heartbeat says of a replica, and what is wrong with one (F2, F4). Pure."""

from __future__ import annotations

from omnizmq import protocol as wire
from omnizmq.config import RouterConfig, StageConfig
from omnizmq.router.messages import Effect, ReplicaFailed, ReplicaLoading, ReplicaReady
from omnizmq.router.pools import Pools, Replica

SILENT_HEARTBEATS = 3
"""So many have to be missing before it is said; `heartbeat_timeout_s` is when something follows."""


def heard(replica: Replica, frame: wire.Heartbeat, now: float) -> Effect | None:
    """Note what it says; what follows for one that is starting."""
    replica.engine_state, replica.engine_text = frame.state, frame.text
    replica.engine_since, replica.engine_told = frame.since_ns / 1e9, now
    replica.rings, replica.discarded = frame.rings, frame.discarded
    replica.late_frames, replica.bad_frames = frame.late_frames, frame.bad_frames
    if replica.state != "starting":
        return None
    if frame.state in ("idle", "stepping", "computing"):
        replica.state = "draining" if replica.drained else "ready"
        return ReplicaReady(replica.id)
    if frame.state == "failed":
        return ReplicaFailed(replica.id, frame.text)
    return ReplicaLoading(replica.id, frame.text)


def what_ails(replica: Replica, stage: StageConfig, limits: RouterConfig, now: float) -> str | None:
    """Silent, stuck in a step, or too slow to load; each with a limit of its own."""
    silent = now - replica.last_seen
    if replica.state == "starting":
        loading = now - replica.engine_since
        return f"not ready after {loading:.0f} s" if loading > stage.start_timeout_s else None
    if silent > limits.heartbeat_timeout_s:
        return f"silent for {silent:.1f} s"
    stepping = replica.engine_told - replica.engine_since  # it may have ended since: the next heartbeat says
    if replica.engine_state == "stepping" and stepping > stage.step_timeout_s:
        return f"stuck in a step for {stepping:.1f} s"
    return None


def is_silent(replica: Replica, limits: RouterConfig, now: float) -> bool:
    """Whether nothing has been heard of one that should have told of itself: from its hello on, also while it loads."""
    tells = bool(replica.endpoint) if replica.state == "starting" else replica.state != "dead"
    return tells and now - replica.last_seen > SILENT_HEARTBEATS * limits.heartbeat_interval_s


def forgive(pools: Pools, now: float) -> None:
    """The router itself was stopped: nobody else is silent, and everybody has a whole timeout again."""
    for replica in pools.replicas.values():
        replica.last_seen = now
        replica.engine_since = now  # until its next heartbeat says better
