"""Any deployment, many requests, any order of anything: each frame and each kill is the one that the model predicts.

`RouterWorld.feed` compares everything that comes out, for each peer and request in order, and after every step all
tables with the model's: requests, attempts, queue, bindings, places, leftovers, timers, orders, counters.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from hypothesis import given
from support.playbook import submission
from support.properties import Dice, checked, dice
from support.random_graphs import graphs
from support.recordings import RecordedWorld, first_difference
from support.router_world import Job, RouterWorld

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
            max_registered=roll.number(1, 4),
            policy=roll.pick(["round_robin", "least_loaded", "affinity"]),
            wants_prompt=roll.pick([False, True]),
            params={"temperature": 1.0},
            step_timeout_s=8.0,
            start_timeout_s=20.0,
        )
        for stage in graph.config.stage
    ]
    limits = RouterConfig(
        max_queued=roll.number(0, 3),
        relay_max_bytes=8,
        output_window=4,
        redrive=roll.pick(["never", "other", "wait"]),
        redrive_wait_s=8.0,
        max_attempts=roll.number(1, 3),
        priority_age_s=4.0,
    )
    return msgspec.structs.replace(graph.config, stage=stages, router=limits)


def working(world: RouterWorld) -> list[Job]:
    return [job for job in world.jobs if world.alive(job) and not job.script.done]


# --- Moves ---------------------------------------------------------------------------------------------------------


def a_client_submits(roll: Dice, world: RouterWorld) -> None:
    modalities = world.core.pipeline.modalities
    first = world.core.pipeline.stages[0].name
    asked = roll.pick([None, [], modalities, [modalities[0]], [modalities[0]], ["smell"]])
    frame = submission(
        roll.pick(EXTERNAL_IDS),
        suffix=f"{roll.number(0, 5):016x}",
        modalities=asked,
        deadline_s=roll.pick([None, None, 3.0, 86_400.0]),
        affinity=roll.pick([None, "x", "y"]),
        params={first: {"seed": 1}},
        priority=roll.pick([0, 0, 1, -1, 8, 101]),
        window=roll.pick([1, 4, 1024]),
    )
    world.feed(msg.ClientSent(roll.pick(CLIENTS), frame))


def a_stage_goes_on(roll: Dice, world: RouterWorld) -> None:
    if jobs := working(world):
        job = roll.pick(jobs)
        usual = job.script.to_its_end() if roll.number(0, 2) else None
        world.goes_on(job, usual or roll.pick(job.script.next(aborting=job.aborting)))


def a_stage_says_how_it_is(roll: Dice, world: RouterWorld) -> None:
    """It has its input, it is paused, or goes on."""
    if jobs := working(world):
        job = roll.pick(jobs)
        job.paused = roll.pick([job.paused, not job.paused])
        facts = [job.fact(name) for name in ("input_ready", "input_ready", "running", "made up")]
        world.send(job, roll.pick([*facts, *[job.pause(job.paused)] * 3]))


def a_caller_reads(roll: Dice, world: RouterWorld) -> None:
    """All of it, some of it, or what is none of its business."""
    requests = list(world.core.requests)
    if requests:
        request = roll.pick(requests)
        stage = roll.pick([*request.delivered, *request.plan.names])
        sent = request.delivered[stage].sent if stage in request.delivered else 1
        client = roll.pick([request.client or b"alice", *CLIENTS])
        world.feed(msg.ClientSent(client, wire.Consumed(request.id, stage, roll.pick([sent, sent, 1, -1, sent + 5]))))


def a_stage_fails(roll: Dice, world: RouterWorld) -> None:
    if jobs := working(world):
        job = roll.pick(jobs)
        world.goes_on(job, job.script.failure())


def a_stage_loses_another(roll: Dice, world: RouterWorld) -> None:
    """It says so before anybody else does, or is wrong."""
    if jobs := working(world):
        job, replica = roll.pick(jobs), roll.pick(sorted(world.core.pools.replicas))
        world.goes_on(job, job.script.blames(replica.partition("/")[0], replica))


def a_client_aborts(roll: Dice, world: RouterWorld) -> None:
    ids = [*EXTERNAL_IDS, "demo-", "nobody", *(request.id for request in world.core.requests)]
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
        world.exits(name)


def an_operator_orders(roll: Dice, world: RouterWorld) -> None:
    replicas = sorted(world.core.pools.replicas)
    target = roll.pick([*replicas, *replicas, *world.core.pools.by_stage, "nobody/0"])
    action = roll.pick(["drain", "resume", "restart", "restart"])
    order = wire.Operate(9, action, target, roll.pick([0.0, 2.0, 30.0]), roll.pick([False, False, True]))
    world.feed(msg.ClientSent(roll.pick([*CLIENTS, b"operator"]), order))


def an_order_is_obeyed(roll: Dice, world: RouterWorld) -> None:
    if world.told_to_end:
        world.exits(roll.pick(sorted(world.told_to_end)), "restarted")


def time_passes(roll: Dice, world: RouterWorld) -> None:
    """At least a heartbeat's interval, in figures that add up exactly."""
    names = sorted(world.core.pools.replicas)
    silent = roll.pick([frozenset[str](), frozenset(names[:1])])
    world.passes(roll.pick([1.0, 1.5, 3.0, 4.875, 5.0, 5.125, 30.0]), silent=silent)
    if roll.pick([False, True]):
        world.unread ^= {roll.pick(names)}
    busy = roll.pick(names)
    if busy not in world.stepping:
        world.stepping[busy] = world.now
    elif roll.pick([False, True]):
        del world.stepping[busy]


def a_frame_is_not_for_now(roll: Dice, world: RouterWorld) -> None:
    """Again, of another attempt, of a dead incarnation: sent once, and now once more."""
    if world.sent:
        sent = roll.pick(world.sent)
        world.says_again(sent, attempt=roll.pick([sent.frame.attempt, 0, 1, 2, 3]))


def a_worker_misbehaves(roll: Dice, world: RouterWorld) -> None:
    jobs = [job for job in world.jobs if world.alive(job)]
    if jobs:
        job = roll.pick(jobs)
        target = roll.pick([stage.name for stage in world.core.pipeline.stages])
        events: list[life.Event] = [
            life.OutputArrived("", roll.number(-1, 4), roll.pick([wire.Text("?"), None]), roll.pick([False, True])),
            life.RelayArrived("", target, b"?" * roll.pick([1, 9])),
            life.StageFinished("", roll.pick(["stop", "abort", "?", None]), None, {}, None, 1),
        ]
        world.send(job, job.frame(roll.pick(events)))


def a_worker_cannot_be_told(roll: Dice, world: RouterWorld) -> None:
    name = roll.pick(sorted(world.core.pools.replicas))
    incarnation = max(0, world.core.pools.replicas[name].incarnation - roll.pick([0, 0, 1]))
    request = roll.pick(["", "nobody", *(request.id for request in world.core.requests)])
    attempt = roll.pick([1, 1, 2, 3])
    unreachable = msg.WorkerUnreachable(name, incarnation, request, attempt, "why")
    unsendable = msg.FrameUnsendable(name, incarnation, request, attempt, roll.pick([True, False]), "why")
    world.feed(roll.pick([unreachable, unsendable]))


def the_deployment_stops(roll: Dice, world: RouterWorld) -> None:
    world.feed(roll.pick([msg.DrainAsked(), msg.StopAsked("stopping")]))


Move = Callable[[Dice, RouterWorld], None]
COMMON: list[Move] = [
    *[a_client_submits] * 4,
    *[a_stage_goes_on] * 10,
    *[a_stage_says_how_it_is] * 4,
    time_passes,
    a_client_aborts,
    a_caller_reads,
]
RARE: list[Move] = [
    a_stage_fails,
    a_stage_loses_another,
    a_client_goes,
    *[a_replica_dies_or_comes_back] * 3,
    an_operator_orders,
    an_order_is_obeyed,
    a_frame_is_not_for_now,
    a_worker_misbehaves,
    a_worker_cannot_be_told,
]


def settle(world: RouterWorld) -> None:
    """Every worker does what it was told to; who is away comes back; time passes."""
    world.stepping.clear()
    world.unread.clear()
    for _ in range(60):
        if not world.core.requests and not any(replica.inflight for replica in world.core.pools.replicas.values()):
            return
        for job in list(world.jobs):
            while world.alive(job) and not job.script.done:
                world.goes_on(job, job.script.to_its_end())
        for name, replica in world.core.pools.replicas.items():
            if replica.state == "stuck" or name in world.told_to_end:
                world.exits(name, "killed by its launcher")
            if replica.state == "dead":
                world.starts(name)
            if replica.state == "starting":
                world.becomes_ready(name)
            if replica.drained:
                resume = wire.Operate(1, "resume", name, 0.0, False)
                world.feed(msg.ClientSent(b"operator", resume))
        world.passes(2.0)
    raise AssertionError(f"it never ends: {[request.attempt.lifecycle.story() for request in world.core.requests]}")


def lives(roll: Dice, world: RouterWorld) -> None:
    """Whatever happens, and then the end of all of it."""
    for name in world.core.pools.replicas:
        world.starts(name)
        world.becomes_ready(name)
    moves = COMMON * roll.number(1, 3) + RARE + [the_deployment_stops] * roll.pick([0, 0, 0, 1])
    for _ in range(roll.number(0, 60)):
        roll.pick(moves)(roll, world)
    settle(world)


@checked(1500)
@given(graphs, dice)
def test_every_frame_is_predicted_whatever_happens(graph: Pipeline, roll: Dice) -> None:
    """Also C4, F3, B3: one terminal a request, nothing after it, and every table empty at the end."""
    world = RouterWorld(deployment(roll, graph), wavers=roll.pick([False, False, True]))
    lives(roll, world)
    assert len(world.core.queue) == 0
    assert not world.core.requests._by_external
    assert len(world.core.state.timers) == 0
    assert not world.core.state.paused
    ended = {fact.request_id for fact in world.facts if fact.event == "terminal"}
    assert ended == {fact.request_id for fact in world.facts if fact.event == "received"}


@checked(300)
@given(graphs, dice)
def test_a_fresh_core_orders_the_same_upon_the_recording_of_whatever_happened(graph: Pipeline, roll: Dice) -> None:
    world = RecordedWorld(deployment(roll, graph), wavers=roll.pick([False, True]))
    lives(roll, world)
    assert first_difference(world.recording()) is None
