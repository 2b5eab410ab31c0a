"""What the figures of chunk hand-off say: ratios, the crossover, verdicts. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from chunks_job import KIB, MIB, show_size

FLOOR = "memcpy"
OURS = "omnizmq"
INLINE = "omnizmq inline"
RING = "omnizmq ring"
BARE = "bare ring"
ZMQ = "zmq "

NOISE = 1.1
"""What two figures of the same thing may differ by on a machine that does other things as well."""

Figures = Mapping[str, float]


@dataclass
class Cell:
    """One mode and size: the medians of each opponent's turns."""

    mode: str
    size: int
    figures: dict[str, Figures] = field(default_factory=dict)

    def p50(self, name: str) -> float | None:
        found = self.figures.get(name)
        return None if found is None else found["p50_us"]

    def best_zmq(self) -> str | None:
        """The ZeroMQ variant that was fastest at this size."""
        rows = [name for name in self.figures if name.startswith(ZMQ)]
        return min(rows, key=lambda name: self.figures[name]["p50_us"], default=None)


@dataclass(frozen=True)
class Aim:
    """In latency at that size: ours over the other's at most `most`, or the other's over ours at least `least`."""

    size: int
    other: str
    most: float | None = None
    least: float | None = None


AIMS = (
    Aim(16 * MIB, FLOOR, most=1.15),
    Aim(1 * MIB, FLOOR, most=3.5),
    Aim(1 * MIB, ZMQ, least=3.0),
    Aim(16 * MIB, ZMQ, least=2.5),
    Aim(4 * KIB, INLINE, most=NOISE),
)


def verdicts(cells: Sequence[Cell], ours: str = OURS) -> list[str]:
    """One line for each aim, and what the crossover was."""
    by_size = {cell.size: cell for cell in cells if cell.mode == "latency"}
    lines = [_verdict(aim, by_size.get(aim.size), ours) for aim in AIMS]
    return [*lines, *_information(by_size.values())]


def _verdict(aim: Aim, cell: Cell | None, ours: str) -> str:
    other = None if cell is None else (cell.best_zmq() if aim.other == ZMQ else aim.other)
    what = f"{show_size(aim.size)} one way: {ours}"
    mine = None if cell is None else cell.p50(ours)
    theirs = None if cell is None or other is None else cell.p50(other)
    if mine is None or theirs is None:
        return f"{what} beside {other or aim.other.strip()}: not measured in this run"
    if aim.most is not None:
        met = mine / theirs <= aim.most
        ratio = f"{mine / theirs:.2f} x {other} (aim: at most {aim.most:g})"
    else:
        assert aim.least is not None
        met = theirs / mine >= aim.least
        ratio = f"{theirs / mine:.2f} times faster than {other} (aim: at least {aim.least:g})"
    return f"{what} {mine:.1f} us, {other} {theirs:.1f} us: {ratio}: {'met' if met else 'missed'}"


def _information(cells: Iterable[Cell]) -> Iterator[str]:
    """Lines without an aim."""
    crossing = crossover(cells)
    if crossing is not None:
        yield crossing
    for cell in cells:
        floor, bare = cell.p50(FLOOR), cell.p50(BARE)
        if floor and bare and cell.size >= MIB:
            yield f"{show_size(cell.size)} one way: {BARE} {bare:.1f} us: {bare / floor:.2f} x {FLOOR} (no aim)"


def crossover(cells: Iterable[Cell]) -> str | None:
    """From which measured size the ring is no slower than inline. None: not both were measured."""
    pairs = [(cell.size, cell.p50(RING), cell.p50(INLINE)) for cell in sorted(cells, key=lambda one: one.size)]
    both = [(size, ring, inline) for size, ring, inline in pairs if ring is not None and inline is not None]
    if not both:
        return None
    shown = ", ".join(f"{show_size(size)} {ring / inline:.2f}" for size, ring, inline in both)
    from_size = next((size for i, (size, _, _) in enumerate(both) if all(r <= n for _, r, n in both[i:])), None)
    where = "at none of these sizes" if from_size is None else f"from {show_size(from_size)}"
    return f"crossover: the ring is no slower than inline {where} (ring / inline: {shown})"


def rows(cell: Cell) -> list[str]:
    """A cell for people, fastest first."""
    lines = []
    key = (lambda row: -row["chunks_per_s"]) if cell.mode == "throughput" else (lambda row: row["p50_us"])
    for name, figures in sorted(cell.figures.items(), key=lambda item: key(item[1])):
        lines.append(f"  {name:<24}{figures['p50_us']:>12.1f} us" + _more(cell, name, figures))
    return [f"{cell.mode}, {show_size(cell.size)}", *lines]


def _more(cell: Cell, name: str, figures: Figures) -> str:
    floor = cell.p50(FLOOR)
    text = f"{figures['p50_us'] / floor:>9.2f} x {FLOOR}" if floor else ""
    if cell.mode == "throughput":
        rate = figures["chunks_per_s"]
        text += f"{rate:>12.0f} chunks/s{rate * cell.size / 2**30:>9.2f} GiB/s"
    elif cell.mode.startswith("busy"):
        text += f"   {figures['steps']:g} steps waited"
    elif name != FLOOR:
        text += f"{figures['producer_waits']:>8.1f} + {figures['consumer_waits']:.1f} waits"
    return text + (f"   {figures['views']:.0%} views" if name.startswith(OURS) else "")


def document(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """Every median, with its ratios to the floor and to the best ZeroMQ variant of its cell."""
    return [_cell_document(cell) for cell in cells]


def _cell_document(cell: Cell) -> dict[str, Any]:
    best = cell.best_zmq()
    floor, zmq = cell.p50(FLOOR), None if best is None else cell.p50(best)
    opponents = {}
    for name, figures in cell.figures.items():
        mine = figures["p50_us"]
        opponents[name] = {
            **figures,
            "bytes_per_s": round(figures["chunks_per_s"] * cell.size),
            "x_memcpy": round(mine / floor, 3) if floor else None,
            "x_best_zmq": round(mine / zmq, 3) if zmq else None,
        }
    return {"mode": cell.mode, "bytes": cell.size, "best_zmq": best, "opponents": opponents}
