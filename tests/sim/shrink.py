"""A smaller story that fails in the same way: whatever can be left out, or be made plain, is.

Every step takes one thing away and tells the story again. It stands if the same does not hold as before.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any, TypeVar

import msgspec

from sim.story import Request, Story
from sim.world import World, run

_PLAIN: dict[str, Any] = {
    "abort": None,
    "deadline_s": None,
    "reader": "quick",
    "stops_after": None,
    "affinity": None,
    "priority": 0,
    "kind": "delta",
    "modalities": None,
    "pieces": 1,
    "size": 1,
    "client": 0,
    "at": 0.0,
}
_LISTS = ("requests", "kills", "faults", "ends", "orders", "stops", "closings")
T = TypeVar("T")


def shrink(story: Story, name: str, say: Callable[[str], object]) -> Story:
    """`name` is what does not hold. `say` hears of each step."""
    story = _with_repeats_named(story, name)
    again = True
    while again:
        again = False
        for what, smaller in _smaller(story):
            found = run(smaller)
            if found is not None and found.name == name:
                say(what)
                story, again = smaller, True
                break
    return story


def _with_repeats_named(story: Story, name: str) -> Story:
    """So that each repeated frame can be left out by itself."""
    world = World(story)
    world.tell_all()
    named = msgspec.structs.replace(story, only=list(world.network.repeated))
    found = run(named)
    return named if found is not None and found.name == name else story


def _smaller(story: Story) -> Iterator[tuple[str, Story]]:
    """Each is one step from this one; large steps first."""
    replace = msgspec.structs.replace
    if story.only:
        for half in _halves(story.only):
            yield f"{len(half)} repeated frames are enough", replace(story, only=half)
    for key in _LISTS:
        items = getattr(story, key)
        for n, item in enumerate(items):
            yield f"without {item}", _without_loose_ends(replace(story, **{key: items[:n] + items[n + 1 :]}))
    yield from _smaller_graphs(story)
    for n, request in enumerate(story.requests):
        for key, value in _PLAIN.items():
            if getattr(request, key) != value:
                plain = replace(request, **{key: value})
                requests = [*story.requests[:n], plain, *story.requests[n + 1 :]]
                yield f"{request.id}: {key} is {value}", replace(story, requests=requests)
    if story.only:
        for n, repeated in enumerate(story.only):
            yield f"without a second {repeated}", replace(story, only=story.only[:n] + story.only[n + 1 :])
    for key in ("garbage", "stall", "spread_s"):
        if getattr(story.net, key):
            yield f"{key} is 0", replace(story, net=replace(story.net, **{key: 0.0}))


def _halves(items: list[T]) -> list[list[T]]:
    middle = len(items) // 2
    return [[], items[:middle], items[middle:]] if middle else [[]]


def _smaller_graphs(story: Story) -> Iterator[tuple[str, Story]]:
    """Without a last stage; with one replica; without rings."""
    replace = msgspec.structs.replace
    for n, stage in enumerate(story.stages):
        others = story.stages[:n] + story.stages[n + 1 :]
        leads = any(edge.source == stage.name for edge in story.edges)
        if not leads and any(other.final for other in others):
            edges = [edge for edge in story.edges if edge.target != stage.name]
            smaller = replace(story, stages=others, edges=edges)
            yield f"without stage {stage.name}", _without_loose_ends(smaller)
        if stage.replicas > 1:
            single = [*story.stages[:n], replace(stage, replicas=1), *story.stages[n + 1 :]]
            yield f"one {stage.name}", _without_loose_ends(replace(story, stages=single))
    if any(edge.ring for edge in story.edges):
        yield "without rings", replace(story, edges=[replace(edge, ring=0) for edge in story.edges])


def _without_loose_ends(story: Story) -> Story:
    """What refers to something that is not there any more goes with it."""
    stages = {stage.name: stage for stage in story.stages}
    replicas = {f"{stage.name}/{n}" for stage in story.stages for n in range(stage.replicas)}
    finals = {stage.final for stage in story.stages}
    there = {request.n for request in story.requests}
    return msgspec.structs.replace(
        story,
        requests=[_asking_for(request, finals) for request in story.requests],
        faults=[fault for fault in story.faults if fault.request in there and fault.stage in stages],
        kills=[kill for kill in story.kills if kill.replica in replicas],
        stops=[stop for stop in story.stops if stop.who in replicas or stop.who == "router"],
        orders=[order for order in story.orders if order.target in replicas or order.target in stages],
    )


def _asking_for(request: Request, finals: Collection[str | None]) -> Request:
    """What no stage makes any more is not asked for, but for what none ever did."""
    if request.modalities is None or request.modalities == ["smell"]:
        return request
    left = [modality for modality in request.modalities if modality in finals]
    return msgspec.structs.replace(request, modalities=left or None)
