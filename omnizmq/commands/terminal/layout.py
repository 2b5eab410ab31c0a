"""Lines for people: tables that fit a width, texts that wrap, numbers with few digits. Pure; knows nothing of rich."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import NamedTuple

GAP = "  "
MIN_FREE = 12
"""The fewest cells of a free column."""


class Line(NamedTuple):
    """One line, and how it is shown where there are colours: a style of rich, or "bar"."""

    text: str
    style: str = ""


class Column(NamedTuple):
    """`drop`: when there is too little room, columns with the lowest go first; 0: it always stays."""

    name: str
    cells: Sequence[str]
    right: bool = False
    drop: int = 0

    @property
    def width(self) -> int:
        return max(map(len, (self.name, *self.cells)))


def fit(columns: Sequence[Column], width: int | None) -> tuple[list[Column], list[str]]:
    """The columns that have room within `width` cells (None: all), and the names of those that have not."""
    kept, dropped = list(columns), list[str]()
    while width is not None and _width(kept) > width:
        least = min((column for column in kept if column.drop), key=lambda column: column.drop, default=None)
        if least is None:
            break
        kept.remove(least)
        dropped.append(least.name)
    return kept, [column.name for column in columns if column.name in dropped]


def table(columns: Sequence[Column]) -> list[str]:
    """A heading and the rows; no line ends in spaces."""
    aligned = [
        [
            cell.rjust(column.width) if column.right else cell.ljust(column.width)
            for cell in (column.name, *column.cells)
        ]
        for column in columns
    ]
    return [GAP.join(row).rstrip() for row in zip(*aligned, strict=True)]


def left_out(names: Sequence[str], width: int | None, *, instead: str = "") -> list[Line]:
    """Says which columns had no room, and what to do about it; nothing where all had."""
    named = [name for name in names if name]
    if not named:
        return []
    return [Line(text, "dim") for text in wrapped(f"no room here for: {', '.join(named)}{instead}", width)]


def _width(columns: Sequence[Column]) -> int:
    return sum(column.width for column in columns) + len(GAP) * (len(columns) - 1)


def wrapped(text: str, width: int | None, *, indent: str = "", hanging: str = "") -> list[str]:
    """The text in lines of at most `width` cells (None: one line); only a word that is longer is broken.

    `indent` begins the first line, `hanging` the others.
    """
    text = clean(text)
    if width is None:
        return [indent + text]
    return textwrap.wrap(
        text,
        max(width, 20),
        initial_indent=indent,
        subsequent_indent=hanging,
        break_on_hyphens=False,
    ) or [indent.rstrip()]


def figure(value: float | None) -> str:
    """A count, or a time without its unit: `812`, `3.4`, or `-` where there is none."""
    if value is None:
        return "-"
    return str(value) if isinstance(value, int) else f"{value:.0f}" if value >= 10 else f"{value:.1f}"


def sized(value: float) -> str:
    """Bytes with a unit: `812 B`, `2.0 KiB`, `1.5 MiB`."""
    if value < 1024:
        return f"{value:.0f} B"
    return f"{value / 1024:.1f} KiB" if value < 1 << 20 else f"{value / (1 << 20):.1f} MiB"


def clean(text: str) -> str:
    """Without control characters: an error's message must not steer the terminal that shows it."""
    return "".join(character if character.isprintable() else "?" for character in text)
