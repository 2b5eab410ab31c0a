"""Whether what a soak measured grew: the first quarter of the time after a warm-up beside the last one. Pure.

Medians are compared: they ignore the peaks of a random load, and a leak moves them. Of memory the floor (the least) is
compared as well, and more strictly: what a process holds when it has least to do. What passes through moves its median
by half, and what a slow reader leaves there stays a minute; neither moves the floor. A leak moves both. The quarters
are of the same load. What may grow is stated for each row, in its own unit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from support.soak_watch import FILES, MEMFD_MIB, OWN, RINGS_USED, RSS, SHARED, THREADS, TRACE, Sample

LEAST = 8
"""Samples of a row in each quarter; with fewer it is not judged."""

FLOOR = ", floor"


@dataclass(frozen=True)
class Tolerance:
    """Growth by `share`, or by `least`, whichever is more."""

    share: float
    least: float

    def of(self, first: float) -> float:
        return max(self.share * first, self.least)


TOLERANCES = {
    OWN + FLOOR: Tolerance(0.05, 2.0),
    OWN: Tolerance(0.5, 4.0),  # with the chunks that wait in it, or were copied out of rings: as many as the load wants
    RSS: Tolerance(0.5, 8.0),  # with the pages of rings that it has touched since it, or its producer, was started
    FILES: Tolerance(0.0, 2.0),
    THREADS: Tolerance(0.0, 0.0),
    TRACE: Tolerance(0.0, 0.5),
    SHARED: Tolerance(0.0, 0.0),
    MEMFD_MIB: Tolerance(0.0, 1.0),
    RINGS_USED: Tolerance(0.5, 4.0),
}
COUNTS = Tolerance(0.5, 6.0)
"""Of everything else: requests, bindings, … that are under way."""


@dataclass(frozen=True)
class Row:
    """`first`, `last`: of the quarters; None: too few samples. `most` of all samples."""

    name: str
    first: float | None
    last: float | None
    most: float

    @property
    def may_grow(self) -> float:
        found = next((limit for what, limit in TOLERANCES.items() if self.name.endswith(what)), COUNTS)
        return found.of(self.first or 0.0)

    @property
    def grew(self) -> bool:
        return self.first is not None and self.last is not None and self.last - self.first > self.may_grow


def rows(samples: Sequence[tuple[float, Sample]], start: float) -> list[Row]:
    """Of samples with their times, in order, `start` being the end of the warm-up."""
    kept = [(at, sample) for at, sample in samples if at >= start]
    if not kept:
        return []
    quarter = (kept[-1][0] - start) / 4
    first = [sample for at, sample in kept if at <= start + quarter]
    last = [sample for at, sample in kept if at >= kept[-1][0] - quarter]
    every = [sample for _, sample in samples]
    found = []
    for name in dict.fromkeys(name for sample in every for name in sample):
        found.append(_row(name, name, median, first, last, every))
        if name.endswith(OWN):
            found.append(_row(name, name + FLOOR, min, first, last, every))
    return found


def _row(
    name: str,
    shown: str,
    statistic: Callable[[Sequence[float]], float],
    first: Iterable[Sample],
    last: Iterable[Sample],
    every: Iterable[Sample],
) -> Row:
    before, after, all_ = ([sample[name] for sample in part if name in sample] for part in (first, last, every))
    if min(len(before), len(after)) < LEAST:
        return Row(shown, None, None, max(all_))
    return Row(shown, statistic(before), statistic(after), max(all_))


def table(found: Sequence[Row]) -> str:
    """As Markdown."""
    lines = ["| | first quarter | last quarter | may grow by | most | |", "| --- | --: | --: | --: | --: | --- |"]
    for row in found:
        if row.first is None or row.last is None:
            lines.append(f"| {row.name} | – | – | – | {row.most:.1f} | too few samples |")
            continue
        verdict = "**grew**" if row.grew else "flat"
        numbers = f"{row.first:.1f} | {row.last:.1f} | {row.may_grow:.1f} | {row.most:.1f}"
        lines.append(f"| {row.name} | {numbers} | {verdict} |")
    return "\n".join(lines)
