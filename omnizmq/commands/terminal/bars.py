"""Time as a bar across: the phases of a stage in one attempt, cell by cell. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter
from typing import NamedTuple

from omnizmq.trace.events import STAGE_PHASES
from omnizmq.trace.phases import UNKNOWN, Run


@dataclass(frozen=True, slots=True)
class Marks:
    """How a bar is drawn."""

    queued: str
    waits: str
    computes: str
    gives: str
    held: str
    reports: str
    silent: str
    unknown: str
    lost: str

    def legend(self, bars: Iterable[str]) -> str:
        """What the marks that occur in these bars mean."""
        meanings = {
            self.queued: "queued",
            self.waits: "waits",
            self.computes: "runs without output",
            self.gives: "gives output",
            self.held: "may not go on",
            self.reports: "output ended, report awaited",
            self.silent: "does not answer",
            self.unknown: "not known",
            self.lost: "replica lost",
        }
        seen = set().union(*bars)
        return ", ".join(f"{mark} {meaning}" for mark, meaning in meanings.items() if mark in seen)


BLOCKS = Marks("▁", "·", "░", "█", "▒", "─", "!", "?", "×")
ASCII = Marks("~", ".", "-", "#", "=", "_", "!", "?", "x")


_MARKED = {
    "submitted": "waits",
    "registered": "waits",
    "input_ready": "waits",
    "running": "computes",
    "first_output": "gives",
    "output_ended": "reports",
    "paused": "held",
}
"""The marks of what follows these events; before it is submitted a stage has none."""

_BY_PHASE = {UNKNOWN: "unknown", **{STAGE_PHASES[event]: mark for event, mark in _MARKED.items()}}


class Axis(NamedTuple):
    """So many cells, from `zero_ns` (CLOCK_MONOTONIC) to `end_ms` after it."""

    zero_ns: int
    end_ms: float
    cells: int

    def ms(self, at_ns: int) -> float:
        return (at_ns - self.zero_ns) / 1e6


def bar(
    run: Run | None,
    axis: Axis,
    marks: Marks = BLOCKS,
    *,
    until_ms: float = math.inf,
    queued: Sequence[tuple[float, float]] = (),
    now: tuple[float, str] | None = None,
) -> str:
    """The stage's life on the axis; blank where it was neither queued nor submitted.

    A cell shows what took most of it. `until_ms`: when its attempt was given up, if it was. `queued`: from when to when
    it was, in this attempt. `now`: what it does at present, and since when.
    """
    if axis.end_ms <= 0:
        return " " * axis.cells
    spans = [(begin, min(end, until_ms, axis.end_ms), marks.queued) for begin, end in queued]
    if run is not None:
        spans += _spans(run, axis, marks, min(until_ms, axis.end_ms), now)
    edges = [*(cell * axis.end_ms / axis.cells for cell in range(axis.cells)), math.inf]
    return "".join(_cell(spans, left, right, marks) for left, right in pairwise(edges))


def _spans(
    run: Run, axis: Axis, marks: Marks, until_ms: float, now: tuple[float, str] | None
) -> list[tuple[float, float, str]]:
    """Begin, end and mark of what it did."""
    known = [(axis.ms(phase.begin_ns), _mark(phase.name, marks)) for phase in run.phases]
    known = sorted(known + ([now] if now else []), key=itemgetter(0))
    finish = min(until_ms, axis.ms(run.end_ns)) if run.ended else until_ms
    ends = [*(at_ms for at_ms, _ in known[1:]), math.inf]
    spans = [(at, min(end, finish), mark) for (at, mark), end in zip(known, ends, strict=True) if at <= finish]
    story = run.story
    if story is not None and story.lost_ns is not None and not story.finished and axis.ms(story.lost_ns) <= finish:
        spans.append((axis.ms(story.lost_ns), axis.ms(story.lost_ns), marks.lost))
    return spans


def _mark(phase: str, marks: Marks) -> str:
    name = _BY_PHASE.get(phase)
    return " " if name is None else str(getattr(marks, name))


def _cell(spans: Sequence[tuple[float, float, str]], left: float, right: float, marks: Marks) -> str:
    """A life that is shorter than a cell, a death, and the last that is known have the cell in which they are."""
    inside = [
        (min(end, right) - max(begin, left), mark)
        for begin, end, mark in spans
        if begin < right and (end > left or begin == end == left)
    ]
    if any(mark == marks.lost for _, mark in inside):
        return marks.lost
    marked = [mark for _, mark in inside]
    if marks.unknown in marked[1:]:
        return marked[marked.index(marks.unknown) - 1]
    shares: dict[str, float] = {}
    for share, mark in inside:
        if mark != " ":
            shares[mark] = shares.get(mark, 0.0) + share
    return max(shares, key=lambda mark: shares[mark], default=" ")
