"""A summary for people: coloured on a terminal, plain text when piped.

What it shows is a function of the document of `summarize` alone. rich is imported only when something is shown.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

BAR_CELLS = 20
_PLAIN_COLUMNS = 200

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Marks:
    """How a bar is drawn: submitted and waiting, computing without an output yet, giving outputs."""

    waits: str
    computes: str
    gives: str


_BLOCKS = _Marks("·", "░", "█")
_ASCII = _Marks(".", "-", "#")


def show(document: Document, out: IO[str], *, origin: str = "", now_ms: float | None = None) -> None:
    """Write the document to `out`.

    `origin` says where it is from (deployment, date). `now_ms`, on the document's clock, is where the bars of a live
    request end; without it they end at its last event.
    """
    from rich.console import Console

    encoding = getattr(out, "encoding", None) or "utf-8"
    console = Console(
        file=out,
        width=None if out.isatty() else _PLAIN_COLUMNS,
        markup=False,
        highlight=False,
        emoji=False,
        soft_wrap=True,
    )
    marks = _BLOCKS if "utf" in encoding.lower() else _ASCII
    with console.capture() as capture:
        _print(console, document, marks, origin, now_ms)
    out.write(capture.get().encode(encoding, "replace").decode(encoding))


def _print(console: Console, document: Document, marks: _Marks, origin: str, now_ms: float | None) -> None:
    verdict = document["verdict"]
    console.print(clean(f"{document['external_id']}  request {document['request_id']}"), style="bold")
    console.print(clean(", ".join(filter(None, (document["state"], origin)))), style="dim")
    end_ms = _end(document, now_ms)
    if document["stages"]:
        console.print()
        console.print(_stages(document["stages"], marks, end_ms))
        legend = f"{marks.waits} waits, {marks.computes} computes, {marks.gives} gives output"
        console.print(f"times in ms, bars from 0 to {number(end_ms)}: {legend}", style="dim")
    if document["edges"]:
        console.print()
        console.print(_edges(document["edges"]))
    engine_ids = [stage["engine_id"] for stage in document["stages"].values() if stage["engine_id"]]
    if engine_ids:
        console.print()
    for engine_id in engine_ids:
        console.print(clean(f"engine id {engine_id}"), style="dim")
    for attempt in document["attempts"][1:]:
        console.print(clean(f"attempt {attempt['number']} after {attempt['why'] or 'a failure'}"))
    console.print()
    _print_terminal(console, document["terminal"])
    console.print(clean(verdict["text"]), style=_style(document))


def _print_terminal(console: Console, terminal: Document | None) -> None:
    if terminal is not None:
        at, reason = number(terminal["at_ms"]), terminal["finish_reason"]
        console.print(clean(f"terminal of {terminal['stage']} at {at} ms, finish reason {reason}"))


def _style(document: Document) -> str:
    if document["verdict"]["complete"]:
        return "bold green"
    return "bold yellow" if document["state"] == "live" else "bold red"


def _end(document: Document, now_ms: float | None) -> float:
    """The end of the time axis, in milliseconds: the terminal, or the last that is known, or now."""
    terminal = document["terminal"]
    times: list[float] = [terminal["at_ms"]] if terminal else [event["at_ms"] for event in document["events"]]
    if document["state"] == "live" and now_ms is not None:
        times.append(now_ms)
    return max(times, default=0.0)


def _table(columns: Sequence[str], right: Sequence[str]) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", no_wrap=True)
    return table


def _stages(stages: Mapping[str, Document], marks: _Marks, end_ms: float) -> Table:
    times = ("submit", "input", "first", "end", "out")
    table = _table(("stage", "", *times, "reason"), right=times)
    for name, stage in stages.items():
        cells = (stage[f"{step}_ms"] for step in ("submitted", "input_ready", "first_output", "finished"))
        table.add_row(
            clean(stage["replica"] or name),
            bar(stage, end_ms, marks),
            *map(number, (*cells, stage["outputs"])),
            clean(stage["finish_reason"] or "-"),
        )
    return table


def _edges(edges: Sequence[Document]) -> Table:
    numbers = ("chunks", "bytes", "first", "last")
    table = _table(("edge", *numbers), right=numbers)
    for edge in edges:
        cells = (edge[key] for key in ("chunks", "bytes", "first_ms", "last_ms"))
        table.add_row(clean(f"{edge['from']} to {edge['to']}"), *map(number, cells))
    return table


def bar(stage: Document, end_ms: float, marks: _Marks = _BLOCKS) -> str:
    """The stage's life on an axis of `BAR_CELLS` cells from 0 to `end_ms`; blank for one that was not submitted."""
    begin = stage["submitted_ms"]
    if begin is None or end_ms <= 0:
        return " " * BAR_CELLS
    finish = end_ms if stage["finished_ms"] is None else stage["finished_ms"]
    first = math.inf if stage["first_output_ms"] is None else stage["first_output_ms"]
    ready = first if stage["input_ready_ms"] is None else stage["input_ready_ms"]
    cells = ""
    for cell in range(BAR_CELLS):
        left, right = cell * end_ms / BAR_CELLS, (cell + 1) * end_ms / BAR_CELLS
        if right <= begin or left > finish:
            cells += " "
        elif right <= ready:
            cells += marks.waits
        else:
            cells += marks.gives if right > first else marks.computes
    return cells


def number(value: float | None) -> str:
    """A count, or a time without its unit: `812`, `3.4`, or `-` where there is none."""
    if value is None:
        return "-"
    return str(value) if isinstance(value, int) else f"{value:.0f}" if value >= 10 else f"{value:.1f}"


def clean(line: str) -> str:
    """Without control characters: an error's message must not steer the terminal that shows it."""
    return "".join(character if character.isprintable() else "?" for character in line)
