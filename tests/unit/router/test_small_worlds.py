"""Small pipelines, exhaustively: every order in which reports can arrive, with one disturbance at every point of each.

Every step of every order is compared with the model and watched (`support.lifecycle_world`). Orders that meet in the
same state go on from there together, so the numbers of orders are larger than the work.
"""

from __future__ import annotations

import io
import pickle
from collections import Counter
from collections.abc import Callable, Hashable, Mapping

import pytest
from support.lifecycle_world import World
from support.pipelines import JOIN, SPEECH, pipeline
from support.playbook import state_of

from omnizmq.pipeline import Plan
from omnizmq.protocol import ErrorInfo
from omnizmq.router import lifecycle as life

TWO = "thinker:text > voice:audio"
RELAYED = "thinker:text ~> voice:audio"
MIXED = "left > join:audio; left > right ~> join"
EARLY = "left ~> join:audio; first ~> right ~> join"
"""With `ready = "any"` it is complete while a stage has not even been submitted."""
BROKEN = ErrorInfo("stage_error", "it broke", "thinker", "thinker/0", False)
GONE = ErrorInfo("replica_lost", "the other end is gone", "thinker", "thinker/0", True)
LATE_DEADLINE = ErrorInfo("deadline_exceeded", "too late", None, None, False)

STAGES_OWN = life.Registered | life.OutputArrived | life.RelayArrived | life.StageFinished

Disturbance = Callable[[World], list[life.Event]]


def nothing(_: World) -> list[life.Event]:
    return []


def abort(_: World) -> list[life.Event]:
    return [life.AbortAsked()]


def deadline(_: World) -> list[life.Event]:
    return [life.Failed(LATE_DEADLINE)]


def error(world: World) -> list[life.Event]:
    """Any stage that still computes fails."""
    return [life.StageFinished(name, None, BROKEN, {}, None, 0) for name in world.lifecycle.unfinished]


def death(world: World) -> list[life.Event]:
    """Any replica dies, whatever its stage has done."""
    return [life.ReplicaLost(name, f"{name}/0", "killed") for name in world.plan.names]


def unsent(world: World) -> list[life.Event]:
    """A submission that fits no message, or cannot reach its worker."""
    return [life.SubmissionFailed(name, error) for name in world.lifecycle.unfinished for error in (BROKEN, GONE)]


def loss_of_another(world: World) -> list[life.Event]:
    """A stage reports that the other end of an edge is gone."""
    return [life.StageFinished(name, None, GONE, {}, None, 0) for name in world.lifecycle.unfinished]


class Explorer:
    """Follows every order to its end; at most so many disturbances in each. Endings are counted in `reasons`."""

    def __init__(self, disturb: Disturbance, most: int = 1) -> None:
        self.reasons: Counter[str] = Counter()
        self._disturb = disturb
        self._most = most
        self._known: dict[Hashable, int] = {}

    def explore(self, graph: str, stages: Mapping[str, Mapping[str, str]] | None = None) -> int:
        """How many orders there are."""
        world = World(pipeline(graph, stages=stages).plan(None), max_outputs=1)
        world.feed(life.Bound())
        return self._orders(world, self._most)

    def _orders(self, world: World, disturbances: int) -> int:
        """How many ways lead from here to an end."""
        key = (disturbances, frozen(world))
        if key not in self._known:
            self._known[key] = self._from_here(world, disturbances)
        return self._known[key]

    def _from_here(self, world: World, disturbances: int) -> int:
        if world.asks is not None:  # F2: it is answered at once, in one of two ways
            answers = [life.Superseded(), life.Failed(world.asks.error)]
            return sum(self._orders(after(world, answer), disturbances) for answer in answers)
        if world.lifecycle.settled:
            world.watch.check_end()
            terminal = world.watch.terminal
            self.reasons["another attempt" if terminal is None else terminal.finish_reason] += 1
            return 1
        usual = self._usual(world)
        assert usual, f"it never ends: {world.lifecycle.story()}"
        found = sum(self._orders(after(world, event), disturbances) for event in usual)
        disturbing = self._disturb(world) if disturbances else []
        return found + sum(self._orders(after(world, event), disturbances - 1) for event in disturbing)

    def _usual(self, world: World) -> list[life.Event]:
        """Good reports, confirmations of aborts, and the timers that have been started."""
        events: list[life.Event] = []
        for script in world.awaited:
            events += [event for event in script.next(aborting=script.name in world.watch.told) if is_good(event)]
        if world.watch.abort_timer:
            events.append(life.AbortTimedOut())
        elif world.watch.grace:
            events.append(life.GraceExpired())
        return events


def is_good(event: life.Event) -> bool:
    if isinstance(event, life.OutputArrived):
        return event.last
    return not isinstance(event, life.StageFinished) or event.finish_reason in ("stop", "abort")


class _Pickler(pickle.Pickler):
    def persistent_id(self, value: object) -> str | None:
        return "plan" if isinstance(value, Plan) else None


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: io.BytesIO, plan: Plan) -> None:
        super().__init__(data)
        self._plan = plan

    def persistent_load(self, _: object) -> Plan:
        return self._plan


def clone(world: World) -> World:
    """A copy with the same plan; several times as fast as `copy.deepcopy`."""
    data = io.BytesIO()
    _Pickler(data).dump(world)
    data.seek(0)
    copied: World = _Unpickler(data, world.plan).load()
    return copied


def after(world: World, event: life.Event) -> World:
    """Another world, in which it has happened."""
    other = clone(world)
    if isinstance(event, STAGES_OWN):
        other.follow(event)
    else:
        other.feed(event)
    return other


def frozen(world: World) -> Hashable:
    states = [vars(world.model), vars(world.watch), *(vars(script) for script in world.scripts.values())]
    facts = tuple(hashable({k: v for k, v in state.items() if not isinstance(v, Plan)}) for state in states)
    return (state_of(world.lifecycle), facts)


def hashable(value: object) -> Hashable:
    if isinstance(value, dict):
        return frozenset((key, hashable(item)) for key, item in value.items())
    if isinstance(value, set):
        return frozenset(value)
    if isinstance(value, list):
        return tuple(hashable(item) for item in value)
    if hasattr(value, "__dict__") and not isinstance(value, life.Phase):
        return hashable(vars(value))
    return repr(value)


def everything(world: World) -> list[life.Event]:
    return [*abort(world), *deadline(world), *error(world), *death(world), *unsent(world), *loss_of_another(world)]


@pytest.mark.parametrize(
    ("graph", "ready", "orders"),
    [
        (TWO, "all", 2_635),
        (RELAYED, "all", 482),
        (SPEECH, "all", 45_323),
        (JOIN, "all", 149_033),
        (MIXED, "all", 231_003),
        (EARLY, "any", 648_518),
    ],
    ids=["two", "relayed", "speech", "join", "mixed", "early"],
)
def test_c2_c4_every_order_with_one_disturbance_anywhere(graph: str, ready: str, orders: int) -> None:
    """1,076,994 orders together: each has one terminal, as predicted, and leaves nothing bound."""
    explorer = Explorer(everything)
    join = {"join": {"ready": ready}} if "join" in graph else {}
    assert explorer.explore(graph, join) == orders
    assert set(explorer.reasons) == {"stop", "abort", "error", "another attempt"}


def test_c2_without_a_disturbance_every_order_succeeds() -> None:
    """1,377 orders of three stages in a chain."""
    explorer = Explorer(nothing)
    assert explorer.explore(SPEECH) == 1_377
    assert set(explorer.reasons) == {"stop"}


def test_a8_a_result_that_races_an_abort_wins_or_loses_and_there_is_one_terminal() -> None:
    """10,785 orders of three stages in a chain with an abort at any point until the end."""
    explorer = Explorer(abort)
    assert explorer.explore(SPEECH) == 10_785
    assert set(explorer.reasons) == {"stop", "abort"}


@pytest.mark.parametrize(("graph", "orders"), [(TWO, 21_575), (RELAYED, 3_288)], ids=["two", "relayed"])
def test_c4_two_disturbances_anywhere(graph: str, orders: int) -> None:
    assert Explorer(everything, most=2).explore(graph) == orders
