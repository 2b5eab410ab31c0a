"""Time as a bar across: what a stage did in one attempt, cell by cell. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter
from typing import Any

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Marks:
    """How a bar is drawn."""

    waits: str
    computes: str
    gives: str
    held: str
    reports: str
    unknown: str
    lost: str

    def legend(self, bars: Iterable[str]) -> str:
        """What the marks that occur in these bars mean."""
        meanings = {
            self.waits: "waits",
            self.computes: "computes without output",
            self.gives: "gives output",
            self.held: "may not go on",
            self.reports: "output ended, report awaited",
            self.unknown: "does not answer",
            self.lost: "replica lost",
        }
        seen = set().union(*bars)
        return ", ".join(f"{mark} {meaning}" for mark, meaning in meanings.items() if mark in seen)


BLOCKS = Marks("·", "░", "█", "▒", "─", "?", "×")
ASCII = Marks(".", "-", "#", "=", "_", "?", "x")


def bar(
    stage: Document,
    events: Iterable[Document],
    end_ms: float,
    cells: int,
    marks: Marks = BLOCKS,
    *,
    until_ms: float = math.inf,
    quiet_ms: float | None = None,
    now: tuple[float, str] | None = None,
) -> str:
    """The stage's life on an axis of so many cells from 0 to `end_ms`; blank for one that was not submitted.

    `stage` is the summary's, `events` are those of this stage in this attempt. A cell shows what took most of it.
    `until_ms`: when its attempt was given up, if it was. `quiet_ms`: when it gave its last output, if that is known.
    `now`: what it does at present, and since when.
    """
    if stage["submitted_ms"] is None or end_ms <= 0:
        return " " * cells
    known = sorted(_phases(stage, events, marks) + ([now] if now else []), key=itemgetter(0))
    if quiet_ms is not None and _at(known, quiet_ms) == marks.gives:
        known = sorted([*known, (quiet_ms, marks.computes)], key=itemgetter(0))
    over = [at_ms for at_ms, mark in known if mark in (" ", marks.lost)]
    finish = min([until_ms, end_ms, *over])
    ends = [*(at_ms for at_ms, _ in known[1:]), math.inf]
    spans = [(at_ms, min(end, finish), mark) for (at_ms, mark), end in zip(known, ends, strict=True) if at_ms <= finish]
    edges = [*(cell * end_ms / cells for cell in range(cells)), math.inf]
    return "".join(_cell(spans, left, right, marks) for left, right in pairwise(edges))


def _at(phases: Sequence[tuple[float, str]], at_ms: float) -> str | None:
    """What it does at that moment."""
    return next((mark for began_ms, mark in reversed(phases) if began_ms <= at_ms), None)


def _cell(spans: Sequence[tuple[float, float, str]], left: float, right: float, marks: Marks) -> str:
    """A life that is shorter than a cell, and a death, have the cell in which they are."""
    inside = [
        (min(end, right) - max(begin, left), mark)
        for begin, end, mark in spans
        if begin < right and (end > left or begin == end == left)
    ]
    if any(mark == marks.lost for _, mark in inside):
        return marks.lost
    shares: dict[str, float] = {}
    for share, mark in inside:
        if mark != " ":
            shares[mark] = shares.get(mark, 0.0) + share
    return max(shares, key=lambda mark: shares[mark], default=" ")


def _phases(stage: Document, events: Iterable[Document], marks: Marks) -> list[tuple[float, str]]:
    """When what began; a blank is the end."""
    phases = [(stage["submitted_ms"], marks.waits)]
    paused = False
    for event in events:
        match event["event"]:
            case "running":
                phases.append((event["at_ms"], marks.computes))
            case "first_output" | "resumed":
                phases.append((event["at_ms"], marks.gives))
            case "paused" if not paused:
                paused = True
                phases.append((event["at_ms"], marks.held))
            case "output_ended":
                phases.append((event["at_ms"], marks.reports))
            case "replica_lost":
                phases.append((event["at_ms"], marks.lost))
    if stage["finished_ms"] is not None:
        phases.append((stage["finished_ms"], " "))
    return phases
