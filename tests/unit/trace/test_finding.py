"""Which request is meant, and what is known of it without asking anybody (T1, T2)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support import trace_stories as stories
from support.tracing import SECOND, begin

from omnizmq.errors import NotFoundError
from omnizmq.trace import finding
from omnizmq.trace.facts import Fact
from omnizmq.trace.finding import Found, Store
from omnizmq.trace.store import Traced

pytestmark = pytest.mark.usefixtures("home")

Start = Callable[[str], None]
US, OTHER = 10, 11
"""Processes."""


def found(facts: list[Fact], *, ended: bool, traced_by: int | None, router: int | None) -> Found:
    """`ended`: the process that traced it ended in good order."""
    about = Traced(stories.REQUEST, "demo", SECOND, traced_by, ended)
    return Found(Store("d", Path("trace.db"), router), about, facts)


@pytest.mark.parametrize(
    ("ended", "traced_by", "router", "running", "lost"),
    [
        (False, US, US, True, False),
        (False, US, None, False, True),  # killed
        (False, US, OTHER, False, True),  # killed, and begun again
        (True, US, None, False, False),
        (True, US, OTHER, False, False),
        (True, US, US, False, False),  # in good order, and this number is another process since
    ],
)
def test_t2_whether_its_deployment_runs_or_was_lost(
    ended: bool, traced_by: int, router: int | None, running: bool, lost: bool
) -> None:
    one = found(stories.started(), ended=ended, traced_by=traced_by, router=router)
    assert (one.running, one.lost, one.may_be_live) == (running, lost, running)
    over = found(stories.spoken(), ended=ended, traced_by=traced_by, router=router)
    assert (over.running, over.may_be_live) == (running, False)


def test_where_it_is_from_and_that_nothing_is_recorded_there() -> None:
    one = found([], ended=False, traced_by=US, router=US)
    assert one.started.isoformat() == "1970-01-01T00:00:01+00:00"
    assert one.origin.startswith("deployment d, 19")
    assert one._replace(traced=False).origin == f"{one.origin} (tracing is off: live answers alone)"


def test_now_is_when_its_router_answered_or_else_now() -> None:
    one = found(stories.started(), ended=False, traced_by=US, router=US)
    assert one.now_ms({"live": {"now_ns": stories.ns(7.5)}}) == 7.5
    before = time.monotonic_ns()
    now_ms = one.now_ms({"live": None})
    assert now_ms is not None
    assert before <= stories.BOOT_NS + now_ms * 1e6 + 1e6
    assert stories.BOOT_NS + now_ms * 1e6 <= time.monotonic_ns() + 1e6


def test_the_same_again_with_what_was_recorded_since_and_its_deployment_as_it_is_now(running: Start) -> None:
    writer = begin("d", "asked", age_s=3)
    first = finding.find("asked", None)
    assert ([fact.event for fact in first.facts], first.store.pid) == (["asked", "received"], None)
    writer.append(Fact(first.about.request_id, "asked", 1, time.monotonic_ns(), "router", "queued"))
    assert writer.flush()
    running("d")
    later = finding.again(first)
    assert [fact.event for fact in later.facts] == ["asked", "received", "queued"]
    assert (later.store.pid, later.running) == (os.getpid(), True)
    writer.close()
    assert not finding.again(first).running


def test_where_nothing_is_known_it_says_of_what() -> None:
    assert finding.unknown(None, None) == "no request is stored"
    assert finding.unknown(None, "d") == "no request is stored in the trace of d"
    assert finding.unknown("x" * 300, None) == f"no request with id '{'x' * 200}…' is known"
    assert finding.unknown("x" * 200, "d") == f"no request with id '{'x' * 200}' is known in the trace of d"
    with pytest.raises(NotFoundError, match=r"^no request is stored$"):
        finding.find(None, None)
