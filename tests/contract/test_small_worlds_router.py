"""C2, C4, A7, A8, F1, F2: one request in the whole router, exhaustively, with one disturbance at every point.

Pipelines of two stages, of three in a chain, and with a join. The orders of all reports (registered, has input,
outputs, finished) of all stages are followed to their ends; see `support.small_world` for what is checked of each step
and each end, and `tests/unit/router/test_small_worlds.py` for timers, relays and several disturbances, in one attempt's
life.

After a re-drive the new attempt's reports come in one order or, `backwards`, in the other, between whatever is left of
the earlier attempt. The figures are stated so that they cannot shrink unseen: 750,763 orders
together. OMNIZMQ_WORLDS=all explores more.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from support.pipelines import config
from support.small_world import Disturb, Explorer, Move, SmallWorld

from omnizmq.config import Config

TWO = "thinker:text > voice:text"
CHAIN = "thinker:text > talker > code2wav:audio"
JOIN = "left:text > join:audio; right > join"
OUTPUTS = {TWO: 2, CHAIN: 1, JOIN: 1}
IDS = {TWO: "two", CHAIN: "chain", JOIN: "join"}

more = pytest.mark.skipif(os.environ.get("OMNIZMQ_WORLDS") != "all", reason="OMNIZMQ_WORLDS=all explores this too")


def world(graph: str, *, replicas: int = 2, redrive: str = "other", **how: Any) -> SmallWorld:
    return SmallWorld(deployment(graph, replicas, redrive), max_outputs=OUTPUTS[graph], **how)


def deployment(graph: str, replicas: int, redrive: str) -> Config:
    names = {"thinker", "voice", "talker", "code2wav", "left", "right", "join"}
    stages = {name: {"replicas": replicas} for name in names if name in graph}
    return config(graph, stages=stages, router={"redrive": redrive})


def nothing(_: SmallWorld) -> list[Move]:
    return []


def abort(_: SmallWorld) -> list[Move]:
    return [("aborts", "")]


def caller_gone(_: SmallWorld) -> list[Move]:
    return [("leaves", "")]


def error(world: SmallWorld) -> list[Move]:
    return [("fails", n) for n in world.working]


def death(world: SmallWorld) -> list[Move]:
    """The replica of any stage, whatever that has done."""
    return [("dies", replica) for replica in world.bound]


def loss(world: SmallWorld) -> list[Move]:
    """Another stage says so before the router has noticed the death."""
    return [(replica, n) for n in world.working for replica in world.bound if replica != world.jobs[n].replica]


def abort_and_death(world: SmallWorld) -> list[Move]:
    return [*abort(world), *death(world)]


def explored(disturb: Disturb, small: SmallWorld, most: int = 1) -> tuple[int, set[str]]:
    """How many orders there are, and how they end."""
    explorer = Explorer(disturb, most)
    return explorer.explore(small), set(explorer.ends)


def graphs(*orders: int) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        ("graph", "orders"), list(zip((TWO, CHAIN, JOIN), orders, strict=True)), ids=IDS.values()
    )


@graphs(70, 840, 560)
def test_c2_undisturbed_every_order_succeeds(graph: str, orders: int) -> None:
    assert explored(nothing, world(graph)) == (orders, {"stop"})


@graphs(3_422, 56_492, 40_807)
def test_a8_an_abort_at_every_point(graph: str, orders: int) -> None:
    assert explored(abort, world(graph)) == (orders, {"stop", "abort"})


@graphs(3_422, 56_492, 40_807)
def test_a7_a_caller_that_disappears_at_every_point(graph: str, orders: int) -> None:
    assert explored(caller_gone, world(graph)) == (orders, {"stop", "nobody"})


@graphs(523, 9_763, 6_693)
def test_f1_c5_an_error_of_every_stage_at_every_point(graph: str, orders: int) -> None:
    """A success all the same where everything had been said."""
    assert explored(error, world(graph)) == (orders, {"stop", "stage_error"})


@graphs(529, 10_024, 6_703)
def test_f2_the_death_of_every_replica_at_every_point_without_another_attempt(graph: str, orders: int) -> None:
    assert explored(death, world(graph, redrive="never")) == (orders, {"stop", "replica_lost"})


@pytest.mark.parametrize("backwards", [False, True], ids=["forwards", "backwards"])
@graphs(1_807, 67_247, 30_841)
def test_f2_the_death_of_every_replica_at_every_point_with_another_attempt(
    graph: str, orders: int, backwards: bool
) -> None:
    """Whatever had been said until then, the caller has the whole of it once, unchanged, and hears of no error."""
    assert explored(death, world(graph, backwards=backwards)) == (orders, {"stop"})


@graphs(1_694, 124_095, 55_608)
def test_f2_a_loss_that_another_stage_reports_first(graph: str, orders: int) -> None:
    assert explored(loss, world(graph)) == (orders, {"stop"})


@graphs(1_946, 76_867, 36_325)
def test_f2_the_death_of_the_only_replica_until_it_is_back(graph: str, orders: int) -> None:
    assert explored(death, world(graph, replicas=1, redrive="wait", returns=True)) == (orders, {"stop"})


def test_f2_a8_an_abort_at_every_point_of_another_attempt_too() -> None:
    """Two disturbances, of each of the kinds: also an abort after a death, and a death after an abort."""
    two = SmallWorld(deployment(TWO, 3, "other"), max_outputs=1)
    assert explored(abort_and_death, two, most=2) == (17_291, {"stop", "abort"})


@more
@pytest.mark.timeout(1200)
def test_f2_two_deaths_at_every_point() -> None:
    assert explored(death, world(TWO, replicas=3), most=2) == (99_899, {"stop"})
