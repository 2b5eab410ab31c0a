"""Time as a bar across: what a stage did in one attempt, cell by cell. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Marks:
    """How a bar is drawn."""

    waits: str
    computes: str
    gives: str
    paused: str
    reports: str
    lost: str

    def legend(self, bars: Iterable[str]) -> str:
        """What the marks that occur in these bars mean."""
        meanings = {
            self.waits: "waits",
            self.computes: "computes",
            self.gives: "gives output",
            self.paused: "its caller has to read",
            self.reports: "output ended, report awaited",
            self.lost: "replica lost",
        }
        seen = set().union(*bars)
        return ", ".join(f"{mark} {meaning}" for mark, meaning in meanings.items() if mark in seen)


BLOCKS = Marks("·", "░", "█", "▒", "─", "×")
ASCII = Marks(".", "-", "#", "=", "_", "x")


def bar(
    stage: Document,
    events: Iterable[Document],
    end_ms: float,
    cells: int,
    marks: Marks = BLOCKS,
    *,
    until_ms: float = math.inf,
) -> str:
    """The stage's life on an axis of so many cells from 0 to `end_ms`; blank for one that was not submitted.

    `stage` is the summary's, `events` are those of this stage in this attempt. A cell shows what began last in it.
    `until_ms`: when its attempt was given up, if it was.
    """
    begin = stage["submitted_ms"]
    if begin is None or end_ms <= 0:
        return " " * cells
    began = sorted(_phases(stage, events, marks), key=lambda phase: phase[0])
    finish = min([until_ms, *(at_ms for at_ms, mark in began if mark in (" ", marks.lost))])
    drawn = ""
    for cell in range(cells):
        left, right = cell * end_ms / cells, (cell + 1) * end_ms / cells
        before = [mark for at_ms, mark in began if at_ms < right and at_ms <= finish]
        if not before or left > finish:
            drawn += " "
        elif before[-1] == " ":
            drawn += before[-2] if len(before) > 1 else " "  # its end is in this cell
        else:
            drawn += before[-1]
    return drawn


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
                phases.append((event["at_ms"], marks.paused))
            case "output_ended":
                phases.append((event["at_ms"], marks.reports))
            case "replica_lost":
                phases.append((event["at_ms"], marks.lost))
    if stage["finished_ms"] is not None:
        phases.append((stage["finished_ms"], " "))
    return phases
