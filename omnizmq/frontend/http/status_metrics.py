"""The status document as Prometheus' metrics. Pure. Labels are names of the configuration and words of the document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

STATES = ("starting", "ready", "draining", "stuck", "dead")
"""Of a replica (`omnizmq.router.pools.State`): one that nobody has is told as 0. Tests compare them."""

_GAUGES = {
    "live_requests": "Requests that have not ended everywhere.",
    "queued": "Live requests that wait for a place at a replica.",
    "paused": "Live requests whose caller must read before a stage goes on.",
    "leftovers": "Bindings of ended requests whose replica has not confirmed their abort in time.",
}
_TRACING = {
    "rows_dropped": "Facts that did not reach the trace database.",
    "spans_exported": "Spans that the collector has taken.",
    "spans_dropped": "Spans that the collector has not taken.",
}
_RINGS = {
    "capacity_bytes": "What an edge may hold of its producer's ring.",
    "used_bytes": "What an edge holds of its producer's ring.",
    "spilled_bytes": "What an edge holds beside its producer's ring.",
}


class StatusMetrics:
    """A collector of one answer. `status`: None where the router did not give any."""

    def __init__(self, status: Mapping[str, Any] | None) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        yield _gauge("omnizmq_router_up", "Whether the router answers.", float(self._status is not None))
        if self._status is not None:
            yield _gauge("omnizmq_ready", "Whether every stage can serve.", float(self._status["ready"]))
            yield from (_gauge(f"omnizmq_{key}", help_, self._status[key]) for key, help_ in _GAUGES.items())
            yield from _replicas(self._status["stages"])
            yield from _rings(self._status["rings"])
            yield from _counters(self._status)


def _gauge(name: str, help_: str, value: float) -> Metric:
    return GaugeMetricFamily(name, help_, value)


def _replicas(stages: Mapping[str, Any]) -> Iterator[Metric]:
    inflight = GaugeMetricFamily("stage_inflight_requests", "Bound to a replica.", labels=["stage", "replica"])
    active = GaugeMetricFamily("omnizmq_active_requests", "Take a place at a replica.", labels=["stage", "replica"])
    capacity = GaugeMetricFamily("omnizmq_capacity_requests", "Places of a replica.", labels=["stage", "replica"])
    restarts = CounterMetricFamily("omnizmq_restarts", "Replaced processes of a replica.", labels=["stage", "replica"])
    states = GaugeMetricFamily("omnizmq_replicas", "Replicas by their state.", labels=["stage", "state"])
    for stage, pool in stages.items():
        for replica in pool["replicas"]:
            labels = (stage, replica["id"])
            inflight.add_metric(labels, replica["inflight"])
            active.add_metric(labels, replica["active"])
            capacity.add_metric(labels, replica["capacity"])
            restarts.add_metric(labels, replica["restarts"])
        for state in STATES:
            states.add_metric((stage, state), sum(replica["state"] == state for replica in pool["replicas"]))
    return iter((inflight, active, capacity, restarts, states))


def _rings(rings: list[dict[str, Any]]) -> Iterator[Metric]:
    for key, help_ in _RINGS.items():
        family = GaugeMetricFamily(f"omnizmq_ring_{key}", help_, labels=["edge", "replica"])
        for ring in rings:
            family.add_metric((ring["edge"], ring["replica"]), ring[key])
        yield family


def _counters(status: Mapping[str, Any]) -> Iterator[Metric]:
    events = CounterMetricFamily("omnizmq_router_events", "The counters of `omnizmq status`.", labels=["event"])
    for name, count in status["counters"].items():
        if name != "unconsumed":  # it also falls
            events.add_metric((name,), count)
    yield events
    yield _gauge("omnizmq_unconsumed_outputs", "Sent to callers and not read.", status["counters"]["unconsumed"])
    for key, help_ in _TRACING.items():
        yield CounterMetricFamily(f"omnizmq_trace_{key}", help_, status["trace"].get(key, 0))
