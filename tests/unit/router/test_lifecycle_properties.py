"""Any graph, any order of events, any disturbance: each command is the one that the contract's model predicts.

`World.feed` compares the lifecycle with the model, and checks after every step what must hold whatever anyone predicts.
"""

from __future__ import annotations

from hypothesis import given
from support.lifecycle_world import Had, World
from support.properties import Dice, checked, dice
from support.random_graphs import graphs

from omnizmq.pipeline import Pipeline, Plan
from omnizmq.protocol import ErrorInfo, Text
from omnizmq.router import lifecycle as life

LATE_DEADLINE = ErrorInfo("deadline_exceeded", "too late", None, None, False)
BROKEN = ErrorInfo("protocol_error", "it fits no message", None, None, False)
LOST = ErrorInfo("replica_lost", "the other end is gone", "other", "other/0", True)
UNSENT = ErrorInfo("replica_lost", "it cannot be reached", None, None, True)


def a_stage_goes_on(roll: Dice, world: World) -> None:
    if world.awaited:
        script = roll.pick(world.awaited)
        world.follow(roll.pick(script.next(aborting=script.name in world.watch.told)))


def a_timer_fires(_: Dice, world: World) -> None:
    if world.watch.abort_timer and world.lifecycle.unfinished:
        world.feed(life.AbortTimedOut())
    elif world.watch.grace and world.watch.terminal is None:
        world.feed(life.GraceExpired())


def something_happens(roll: Dice, world: World) -> None:
    """Most of it may happen at any time, and means nothing at many times."""
    stage = roll.pick(world.plan.names)
    events: list[life.Event] = [
        life.Bound(),
        life.AbortAsked(),
        life.Failed(LATE_DEADLINE),
        life.ReplicaLost(stage, f"{stage}/0", "killed"),
        life.SubmissionFailed(stage, roll.pick([UNSENT, BROKEN])),
        life.StageFinished(stage, None, LOST, {}, None, 0),
        life.AbortTimedOut(),
        life.GraceExpired(),
        *[life.Superseded()] * (world.lifecycle.phase is not life.Phase.RUNNING),
    ]
    world.feed(roll.pick(events))


def a_stage_fails(roll: Dice, world: World) -> None:
    if world.awaited:
        world.follow(roll.pick(world.awaited).failure())


def nonsense_comes(roll: Dice, world: World) -> None:
    """Frames that nobody should have sent, or not now, or again; some of them end their stage."""
    names = [*world.lifecycle.unfinished * 3, *world.plan.names, "nobody"]
    stage, other = roll.pick(names), roll.pick(names)
    made = world.scripts[stage].outputs if stage in world.scripts else 0
    seq = made + roll.number(-2, 2)
    reason = roll.pick(["stop", "stop", "abort", "error", "", None])
    outputs = made + roll.pick([0, 0, 1, -1])
    events: list[life.Event] = [
        life.Registered(stage),
        life.OutputArrived(stage, seq, Text("?"), roll.pick([False, True])),
        life.RelayArrived(stage, other, b"?"),
        life.StageFinished(stage, reason, None, {}, None, outputs),
        life.SubmissionFailed(stage, UNSENT),
        life.ReplicaLost(stage, f"{stage}/0", "killed"),
    ]
    event = roll.pick(events)
    world.feed(event)
    if isinstance(event, life.OutputArrived) and stage in world.scripts:
        world.scripts[stage].outputs = world.model.outputs[stage]


def answer(roll: Dice, world: World) -> None:
    """F2: another attempt follows, or not."""
    if world.asks is not None:
        world.feed(roll.pick([life.Superseded(), life.Failed(world.asks.error)]))


def some_earlier_attempt(roll: Dice, plan: Plan) -> dict[str, Had]:
    """What an attempt before this one delivered: some of what this one may say, or something else."""
    if roll.pick([True, False]):
        return {}
    return {
        name: Had(roll.pick(["", name, f"{name}1{name}", f"{name}1{name}2", "?"]), roll.pick([False, False, True]))
        for name in plan.final_stages
    }


def finish(roll: Dice, world: World) -> None:
    """Whatever is still awaited reports its end in the usual way; timers fire where one has been started."""
    for _ in range(100):
        answer(roll, world)
        if world.lifecycle.settled:
            return
        if world.awaited:
            script = world.awaited[0]
            usual = script.next()
            world.follow(usual[0])
        elif world.watch.abort_timer:
            world.feed(life.AbortTimedOut())
        elif world.watch.grace:
            world.feed(life.GraceExpired())
        else:
            break
    assert world.lifecycle.settled, f"it never ends: {world.lifecycle.story()}"


@checked(4000)
@given(graphs, dice)
def test_every_command_is_predicted_whatever_happens(graph: Pipeline, roll: Dice) -> None:
    asked = roll.pick([[modality] for modality in graph.modalities] + [graph.modalities])
    plan = graph.plan(asked)
    world = World(plan, has=some_earlier_attempt(roll, plan))
    moves = [a_stage_goes_on] * roll.pick([2, 5, 15, 60]) + [a_stage_fails, something_happens, nonsense_comes]
    moves += [a_timer_fires] * roll.pick([0, 1, 3])
    if roll.number(0, 9):
        world.feed(life.Bound())
    for _ in range(roll.number(0, 50)):
        roll.pick(moves)(roll, world)
        answer(roll, world)
    if world.lifecycle.phase is life.Phase.WAITING:
        world.feed(life.Bound())
    finish(roll, world)
    world.watch.check_end()


@checked(1000)
@given(graphs, dice)
def test_c2_left_alone_every_request_ends_well_and_no_timer_is_needed(graph: Pipeline, roll: Dice) -> None:
    """Any graph and any mix of edge modes: no order of good reports ever gets stuck."""
    world = World(graph.plan(None))
    world.feed(life.Bound())
    while world.awaited:
        script = roll.pick(world.awaited)
        world.follow(roll.pick(script.next()))
    world.watch.check_end()
    assert world.lifecycle.settled
    assert world.model.submitted == set(world.plan.names)
    assert world.watch.terminal is not None
    assert world.watch.terminal.finish_reason in ("stop", "length")
    assert world.watch.terminal.usage_incomplete == ()
