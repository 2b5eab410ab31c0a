"""What `omnizmq status` makes of the router's document, of this version and of others."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from support.playbook import submission

from omnizmq.commands.status import _render
from omnizmq.config import load
from omnizmq.launcher.tracing import Tracing
from omnizmq.protocol import RingUse
from omnizmq.router.core import RouterCore
from omnizmq.router.messages import ClientSent

REFERENCE = Path(__file__).parents[3] / "docs" / "status.md"
REPLICA: dict[str, Any] = {
    "id": "talker/0",
    "pid": 7,
    "state": "ready",
    "inflight": 2,
    "capacity": 64,
    "restarts": 0,
    "engine": "idle",
    "engine_s": 1.25,
}


def document(replica: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {
        "name": "demo",
        "state": "running",
        "ready": True,
        "live_requests": 3,
        "queued": 1,
        "bindings": 4,
        "leftovers": 0,
        "stages": {"talker": {"replicas": [REPLICA | (replica or {})]}},
        "rings": [],
        "counters": {"requests": 5, "refused": 0},
        **more,
    }


def test_a_deployment_at_a_glance() -> None:
    assert _render(document()).splitlines() == [
        "demo: running, ready",
        "requests: 3 live, 1 queued, 4 bindings, 0 leftovers",
        "  talker/0         ready      2/64 in flight, idle for 1.2 s, pid 7, 0 restarts",
        "counters: requests 5",
    ]


def test_b1_requests_that_wait_for_their_callers_are_shown() -> None:
    shown = _render(document(paused=2, discarded=17)).splitlines()[1]
    assert shown == "requests: 3 live, 1 queued, 2 paused, 4 bindings, 0 leftovers, 17 discarded outputs"
    one = _render(document(bindings=1, leftovers=1, discarded=1)).splitlines()[1]
    assert one.endswith("1 binding, 1 leftover, 1 discarded output")


@pytest.mark.parametrize(
    ("replica", "shown"),
    [
        ({"state": "draining"}, "draining   2/64 in flight"),
        ({"state": "starting", "restarts": 1}, "restarting 2/64 in flight, idle for 1.2 s, pid 7, 1 restart"),
        ({"state": "starting"}, "starting   2/64"),
        ({"heartbeat_age_s": 5.23, "silent": True}, "ready      SILENT for 5.2 s, 2/64 in flight"),
        ({"heartbeat_age_s": 5.23, "silent": False}, "ready      2/64 in flight"),
        ({"state": "dead", "restarts": 2}, "dead       2 restarts so far, the next one is due"),
        ({"active": 2, "inflight": 9}, "ready      2/64 in flight (9 bound), idle"),
        ({"active": 2, "inflight": 2}, "ready      2/64 in flight, idle"),
    ],
)
def test_what_a_replica_does(replica: dict[str, Any], shown: str) -> None:
    assert shown in _render(document(replica)).splitlines()[2]


def test_a_ring_and_what_lies_beside_it() -> None:
    ring = {"edge": "a->b", "replica": "a/0", "capacity_bytes": 16 << 20, "used_bytes": 1 << 19, "spilled_bytes": 0}
    assert _render(document(rings=[ring])).splitlines()[3] == (
        "  a->b                       0.5 of 16 MiB of the ring of a/0"
    )
    shown = _render(document(rings=[ring | {"spilled_bytes": 3 << 20}])).splitlines()[3]
    assert shown.endswith("of the ring of a/0, and 3.0 MiB beside it")


def test_what_became_of_the_facts_is_shown_where_there_is_anything_to_say() -> None:
    assert "tracing: off (router.trace)" in _render(document(trace={"on": False}))
    trace: dict[str, Any] = {"on": True, "rows_dropped": 0, "failure": None, "spans_exported": 0, "spans_dropped": 0}
    assert _render(document(trace=trace)) == _render(document())
    shown = _render(document(trace=trace | {"spans_exported": 8, "spans_dropped": 4})).splitlines()
    assert shown[3:] == ["tracing: 8 spans exported, 4 spans dropped", "counters: requests 5"]
    shown = _render(document(trace=trace | {"rows_dropped": 3, "failure": "disk full"})).splitlines()
    assert shown[3] == "tracing: 3 facts not stored, the trace cannot be written: disk full"


def test_a_recording_that_has_ended_is_said() -> None:
    assert _render(document(recording_ended=None)) == _render(document())
    shown = _render(document(recording_ended="it has its 1 MiB (--record-max-mib)")).splitlines()
    assert shown[3] == "recording ended: it has its 1 MiB (--record-max-mib)"


def test_the_routers_own_document_can_be_shown() -> None:
    lines = _render(RouterCore(load("synthetic")).status(0.0)).splitlines()
    assert lines[0] == "synthetic: running, not ready"
    assert [line.split()[0] for line in lines[2:5]] == ["thinker/0", "talker/0", "code2wav/0"]
    assert lines[-1].startswith("counters: ")


def test_every_key_is_explained(tmp_path: Path) -> None:
    """In the table of its own section, and none that there is not."""
    tracing = Tracing(load("synthetic"), tmp_path)
    asyncio.run(tracing.close())
    core = RouterCore(load("synthetic"))
    core.pools.replicas["thinker/0"].rings = [RingUse("talker", 1, 0, 0)]
    for replica in core.pools.replicas.values():
        replica.state = "ready"
    core.handle(ClientSent(b"alice", submission()), 0.0)
    status: dict[str, Any] = {**core.status(0.0), "trace": tracing.status(), "recording_ended": None}
    names = ("top", "replicas", "rings", "slowest", "counters", "trace")
    sections = dict(zip(names, REFERENCE.read_text().split("\n## "), strict=True))
    for section, keys in (
        ("top", status),
        ("replicas", status["stages"]["thinker"]["replicas"][0]),
        ("rings", status["rings"][0]),
        ("slowest", status["slowest"][0]),
        ("counters", status["counters"]),
        ("trace", status["trace"]),
    ):
        rows = re.findall(r"^\| (`[^|]+`) \|", sections[section], re.MULTILINE)
        assert set(re.findall(r"\w+", " ".join(rows))) == set(keys), section
