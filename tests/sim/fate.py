"""What has happened to a request in a story, as the checks see it, and what must not happen: a violation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from omnizmq.workers.ring import Peer
from sim.story import Request, Story


class Violation(AssertionError):  # noqa: N818 (it is what is wrong, not an error of the simulator)
    """`name` is what does not hold, the same for all that fail in this way."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"{name}: {text}")
        self.name = name
        self.text = text


def must(fact: bool, name: str, *about: object) -> None:
    """Raises `Violation` where it is not so."""
    if not fact:
        raise Violation(name, ", ".join(map(str, about)))


class Fate:
    """Of one request: what has happened to it, and what its caller has."""

    def __init__(self, request: Request, plan: list[str], finals: Mapping[str, str]) -> None:
        self.request = request
        self.plan = plan
        self.finals = finals  # of those asked for, in topological order: stage -> modality
        self.asked: float | None = None
        self.codes: dict[str, set[str]] = defaultdict(set)  # of errors that it has a reason for: stages at fault
        self.struck = False
        self.aborted = False
        self.attempt = 1
        self.taken_in = False  # not refused
        self.bound: set[Peer] = set()
        self.lost: set[Peer] = set()  # that it was driven anew for
        self.submitted: set[str] = set()  # stages of the present attempt
        self.ends: list[str] = []
        self.sent: dict[str, str] = defaultdict(str)  # by the router, of each stage
        self.marked: set[str] = set()
        self.unread: dict[str, int] = defaultdict(int)
        self.read: dict[str, str] = defaultdict(str)  # by the caller
        self.read_ends: list[str] = []


def fate_of(request: Request, story: Story) -> Fate:
    """With its plan (P1, P3), worked out from the story alone."""
    depth = {stage.name: 0 for stage in story.stages}
    for _ in story.stages:
        for edge in story.edges:
            depth[edge.target] = max(depth[edge.target], depth[edge.source] + 1)
    stages = sorted(story.stages, key=lambda stage: depth[stage.name])
    wanted = request.modalities or [stage.final for stage in stages if stage.final is not None]
    finals = {stage.name: stage.final for stage in stages if stage.final is not None and stage.final in wanted}
    needed = set(finals)
    for stage in reversed(stages):
        if stage.name in needed:
            needed |= {edge.source for edge in story.edges if edge.target == stage.name}
    return Fate(request, [stage.name for stage in stages if stage.name in needed], finals)
