"""Any deployment, many requests, any order of anything: each frame and each kill is the one that the model predicts.

`RouterWorld.feed` compares everything that comes out, for each peer and request in order, and after every step all
tables with the model's: requests, queue, bindings, leftovers, timers, counters.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from hypothesis import given
from support.playbook import submission
from support.properties import Dice, checked, dice
from support.random_graphs import graphs
from support.router_world import RouterWorld

from omnizmq import protocol as wire
from omnizmq.config import Config, RouterConfig
from omnizmq.pipeline import Pipeline
from omnizmq.router import lifecycle as life
from omnizmq.router import messages as msg

CLIENTS = (b"alice", b"bob")
EXTERNAL_IDS = ("demo", "demo-1", "other")


def deployment(roll: Dice, graph: Pipeline) -> Config:
    stages = [
        msgspec.structs.replace(
            stage,
            replicas=roll.number(1, 2),
            max_inflight=roll.number(1, 2),
            policy=roll.pick(["round_robin", "least_loaded", "affinity"]),
            wants_prompt=roll.pick([False, True]),
            params={"temperature": 1.0},
            step_timeout_s=8.0,
            start_timeout_s=20.0,
        )
        for stage in graph.config.stage
    ]
    limits = RouterConfig(max_queued=roll.number(0, 2), relay_max_bytes=8)
    return msgspec.structs.replace(graph.config, stage=stages, router=limits)


# --- Moves ---------------------------------------------------------------------------------------------------------


def a_client_submits(roll: Dice, world: RouterWorld) -> None:
    modalities = world.core.pipeline.modalities
    first = world.core.pipeline.stages[0].name
    asked = roll.pick([None, [], modalities, [modalities[0]], ["smell"]])
    frame = submission(
        roll.pick(EXTERNAL_IDS),
        suffix=f"{roll.number(0, 5):016x}",
        modalities=asked,
        deadline_s=roll.pick([None, None, 3.0, 86_400.0]),
        affinity=roll.pick([None, "x", "y"]),
        params={first: {"seed": 1}},
    )
    world.feed(msg.ClientSent(roll.pick(CLIENTS), frame))


def a_stage_goes_on(roll: Dice, world: RouterWorld) -> None:
    jobs = [job for job in world.jobs if world.alive(job) and not job.script.done]
    if jobs:
        job = roll.pick(jobs)
        world.goes_on(job, roll.pick(job.script.next(aborting=job.aborting)))


def a_stage_fails(roll: Dice, world: RouterWorld) -> None:
    jobs = [job for job in world.jobs if world.alive(job) and not job.script.done]
    if jobs:
        job = roll.pick(jobs)
        world.goes_on(job, job.script.failure())


def a_client_aborts(roll: Dice, world: RouterWorld) -> None:
    ids = [*EXTERNAL_IDS, "demo-", "nobody", *world.core.requests]
    world.feed(msg.ClientSent(roll.pick(CLIENTS), wire.Abort(7, roll.pick(ids))))


def a_client_goes(roll: Dice, world: RouterWorld) -> None:
    client = roll.pick(CLIENTS)
    gone = msg.ClientGone(client, "its process ended")
    world.feed(roll.pick([gone, msg.ClientSent(client, wire.Bye("done"))]))


def a_replica_dies_or_comes_back(roll: Dice, world: RouterWorld) -> None:
    name = roll.pick(sorted(world.core.pools.replicas))
    replica = world.core.pools.replicas[name]
    if replica.state == "dead":
        world.starts(name)
    elif replica.state == "starting" and roll.pick([False, True]):
        world.becomes_ready(name)
    elif replica.state == "starting" and roll.pick([False, True]):
        world.beats(name, "loading")
    else:
        world.feed(msg.ReplicaExited(name, replica.incarnation, "killed"))


def time_passes(roll: Dice, world: RouterWorld) -> None:
    names = sorted(world.core.pools.replicas)
    silent = roll.pick([frozenset[str](), frozenset(names[:1])])
    world.passes(roll.pick([0.5, 1.0, 3.0, 4.9, 5.0, 5.1, 30.0]), silent=silent)
    busy = roll.pick(names)
    if busy not in world.stepping:
        world.stepping[busy] = world.now
    elif roll.pick([False, True]):
        del world.stepping[busy]


def a_frame_is_not_for_now(roll: Dice, world: RouterWorld) -> None:
    """Again, of another attempt, of a dead incarnation: sent once, and now once more."""
    if world.sent:
        world.says_again(roll.pick(world.sent), attempt=roll.pick([1, 1, 0, 2]))


def a_worker_misbehaves(roll: Dice, world: RouterWorld) -> None:
    jobs = [job for job in world.jobs if world.alive(job)]
    if jobs:
        job = roll.pick(jobs)
        target = roll.pick([stage.name for stage in world.core.pipeline.stages])
        events: list[life.Event] = [
            life.OutputArrived("", roll.number(-1, 4), wire.Text("?"), False),
            life.RelayArrived("", target, b"?" * roll.pick([1, 9])),
            life.StageFinished("", roll.pick(["stop", "abort", "?", None]), None, {}, None, 1),
        ]
        world._send(job, job.frame(roll.pick(events)))


def a_worker_cannot_be_told(roll: Dice, world: RouterWorld) -> None:
    name = roll.pick(sorted(world.core.pools.replicas))
    incarnation = max(0, world.core.pools.replicas[name].incarnation - roll.pick([0, 0, 1]))
    request = roll.pick(["", "nobody", *world.core.requests])
    unreachable = msg.WorkerUnreachable(name, incarnation, request, "why")
    unsendable = msg.FrameUnsendable(name, incarnation, request, roll.pick([True, False]), "why")
    world.feed(roll.pick([unreachable, unsendable]))


def the_deployment_stops(roll: Dice, world: RouterWorld) -> None:
    world.feed(roll.pick([msg.DrainAsked(), msg.StopAsked("stopping")]))


Move = Callable[[Dice, RouterWorld], None]
COMMON: list[Move] = [a_client_submits] * 4 + [a_stage_goes_on] * 10 + [time_passes, a_client_aborts]
RARE: list[Move] = [
    a_stage_fails,
    a_client_goes,
    a_replica_dies_or_comes_back,
    a_replica_dies_or_comes_back,
    a_frame_is_not_for_now,
    a_worker_misbehaves,
    a_worker_cannot_be_told,
]


def settle(world: RouterWorld) -> None:
    """Every worker does what it was told to; who is away comes back; time passes."""
    world.stepping.clear()
    for _ in range(60):
        if not world.core.requests and not any(replica.inflight for replica in world.core.pools.replicas.values()):
            return
        for job in list(world.jobs):
            while world.alive(job) and not job.script.done:
                world.goes_on(job, job.script.next()[0])
        for name, replica in world.core.pools.replicas.items():
            if replica.state == "stuck":
                world.feed(msg.ReplicaExited(name, replica.incarnation, "killed by its launcher"))
            if replica.state == "dead":
                world.starts(name)
            if replica.state == "starting":
                world.becomes_ready(name)
        world.passes(2.0)
    raise AssertionError(f"it never ends: {[request.lifecycle.story() for request in world.core.requests.values()]}")


@checked(1500)
@given(graphs, dice)
def test_every_frame_is_predicted_whatever_happens(graph: Pipeline, roll: Dice) -> None:
    """Also C4, F3, B3: one terminal a request, nothing after it, and every table empty at the end."""
    world = RouterWorld(deployment(roll, graph))
    for name in world.core.pools.replicas:
        world.starts(name)
        world.becomes_ready(name)
    moves = COMMON * roll.number(1, 3) + RARE + [the_deployment_stops] * roll.pick([0, 0, 0, 1])
    for _ in range(roll.number(0, 60)):
        roll.pick(moves)(roll, world)
    settle(world)
    assert not world.core.queue
    assert not world.core._by_external
    assert len(world.core._timers) == 0
    ended = {fact.request_id for fact in world.facts if fact.event == "terminal"}
    assert ended == {fact.request_id for fact in world.facts if fact.event == "received"}
