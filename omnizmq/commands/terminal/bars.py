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


def bar(
    stage: Document,
    events: Iterable[Document],
    end_ms: float,
    cells: int,
    marks: Marks = BLOCKS,
    *,
    until_ms: float = math.inf,
    queued: Sequence[tuple[float, float]] = (),
    over: bool = False,
    now: tuple[float, str] | None = None,
) -> str:
    """The stage's life on an axis of so many cells from 0 to `end_ms`; blank where it was neither queued nor submitted.

    `stage` is the summary's, `events` are those of this stage in this attempt. A cell shows what took most of it.
    `until_ms`: when its attempt was given up, if it was. `queued`: from when to when it was, in this attempt. `over`:
    nothing more of it will be known. `now`: what it does at present, and since when.
    """
    if end_ms <= 0:
        return " " * cells
    spans = [(begin, min(end, until_ms, end_ms), marks.queued) for begin, end in queued]
    if stage["submitted_ms"] is not None:
        known = sorted(_phases(stage, events, marks) + ([now] if now else []), key=itemgetter(0))
        known = _honest(known, stage, marks, over=over)
        ended = [at_ms for at_ms, mark in known if mark in (" ", marks.lost)]
        finish = min([until_ms, end_ms, *ended])
        ends = [*(at_ms for at_ms, _ in known[1:]), math.inf]
        spans += [(at, min(end, finish), mark) for (at, mark), end in zip(known, ends, strict=True) if at <= finish]
    edges = [*(cell * end_ms / cells for cell in range(cells)), math.inf]
    return "".join(_cell(spans, left, right, marks) for left, right in pairwise(edges))


def _honest(known: list[tuple[float, str]], stage: Document, marks: Marks, *, over: bool) -> list[tuple[float, str]]:
    """With what followed its last output; where it did not end well, nobody knows what did.

    Of one that never reported, nothing is known after the last of its facts.
    """
    last_ms = stage["last_output_ms"]
    if not over or stage["finish_reason"] not in (None, "abort", "error"):
        quiet = last_ms is not None and _at(known, last_ms) == marks.gives
        return sorted([*known, (last_ms, marks.computes)], key=itemgetter(0)) if quiet else known
    done = [(at_ms, mark) for at_ms, mark in known if mark in (" ", marks.lost)]
    before = [moment for moment in known if moment not in done]
    at_ms, mark = before[-1]
    never_reported = stage["finished_ms"] is None and mark != marks.reports
    if never_reported or mark == marks.gives:
        before.append((max(at_ms, last_ms or 0.0), marks.unknown))
    return sorted([*before, *done], key=itemgetter(0))


def _at(phases: Sequence[tuple[float, str]], at_ms: float) -> str | None:
    """What it does at that moment."""
    return next((mark for began_ms, mark in reversed(phases) if began_ms <= at_ms), None)


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
