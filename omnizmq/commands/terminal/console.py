"""Lines on a terminal, or wherever output goes: colours, and marks that it can show.

rich is imported only when something is shown.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import IO, TYPE_CHECKING

from omnizmq.commands.terminal.bars import ASCII, BLOCKS, Marks
from omnizmq.commands.terminal.layout import Line

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_BAR_COLOURS = {
    "queued": "dim",
    "waits": "dim",
    "computes": "cyan",
    "gives": "green",
    "held": "yellow",
    "reports": "magenta",
    "silent": "red",
}


def console_for(out: IO[str]) -> Console:
    """Prints what it is given as it is: no markup, no emoji; the colours of styles, where `out` is a terminal."""
    from rich.console import Console

    return Console(file=out, markup=False, highlight=False, emoji=False, soft_wrap=True)


def marks_for(out: IO[str]) -> Marks:
    """ASCII where `out` cannot take more, or the locale says C or POSIX: Python writes UTF-8 there all the same."""
    return BLOCKS if "utf" in _encoding(out).lower() and not _plain_locale() else ASCII


def _plain_locale() -> bool:
    """Python itself may have set LC_CTYPE to C.UTF-8, where LANG says C (PEP 538); so that is not what counts then."""
    every, ctype, lang = (os.environ.get(name, "") for name in ("LC_ALL", "LC_CTYPE", "LANG"))
    coerced = ctype == "C.UTF-8" and lang in ("C", "POSIX")
    return (every or ("" if coerced else ctype) or lang) in ("C", "POSIX")


def write(shown: Sequence[Line], console: Console) -> None:
    for line in shown:
        console.print(styled(line, console))


def styled(line: Line, console: Console) -> Text:
    """In the colours of its style, and with `?` for what the console's encoding does not have."""
    from rich.text import Text

    encoding = _encoding(console.file)
    shown = line.text.encode(encoding, "replace").decode(encoding)
    if line.style != "bar":
        return Text(shown, style=line.style)
    text = Text(shown)
    for phase, colour in _BAR_COLOURS.items():
        text.highlight_regex(f"{getattr(BLOCKS, phase)}+", colour)
    return text


def _encoding(out: IO[str]) -> str:
    return getattr(out, "encoding", None) or "utf-8"
