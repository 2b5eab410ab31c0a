"""Bugs that are planted in the cores, one at a time: a few hundred stories find each. A simulator that finds nothing
where something is wrong would be worth nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from omnizmq.frontend.core import ClientTable
from omnizmq.router.delivered import Delivered
from omnizmq.router.lifecycle import Lifecycle
from omnizmq.router.pools import Pools
from omnizmq.workers.caller import CallerEdge
from omnizmq.workers.deadlines import Deadlines
from omnizmq.workers.edges import InEdge, OutEdge
from omnizmq.workers.ring import Ring
from sim.teller import tell
from sim.telling import without_logs
from sim.world import run

WITHIN = 600


def first_found() -> str | None:
    """What the first story in which something does not hold says."""
    with without_logs():
        for seed in range(WITHIN):
            violation = run(tell(seed))
            if violation is not None:
                return str(violation)
    return None


PLANTED: dict[str, tuple[type, str, Callable[..., object]]] = {
    "a chunk that comes again is taken again": (InEdge, "take", lambda *_: True),
    "credits of consumers are lost": (OutEdge, "credit", lambda *_: None),
    "credits of callers are lost": (CallerEdge, "credit", lambda *_: None),
    "callers give no credits": (ClientTable, "back", lambda *_: []),
    "nobody is ever next in a line for a ring": (Ring, "next_turns", lambda _: iter(())),
    "a binding is never released": (Pools, "release", lambda *_: None),
    "aborts are not passed on": (Lifecycle, "_abort_stages", lambda _: []),
    "the grace never ends": (Lifecycle, "_grace_expired", lambda _: []),
    "a slow reader is never given up": (Deadlines, "passed", lambda *_: None),
    "another attempt says everything again": (Delivered, "begin_attempt", lambda *_: None),
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, method, instead = PLANTED[bug]
    assert callable(getattr(owner, method))
    monkeypatch.setattr(owner, method, instead)
    assert first_found() is not None
