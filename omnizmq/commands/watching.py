"""`omnizmq status --watch`: the deployment as it goes on, until it ends or whoever looks has seen enough.

Asks the router every interval, and about the oldest requests also their workers and their traces. On a terminal the
screen is drawn anew in place; piped, a block an interval; with `--json`, a line an interval.
"""

from __future__ import annotations

import asyncio
import datetime
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

import click

if TYPE_CHECKING:
    from omnizmq import AsyncClient

Document = dict[str, Any]
Draw = Callable[[Document], None]

INTERVAL_S = 1.0

RATES = {
    "requests_per_s": ("requests",),
    "ended_per_s": ("finished", "aborted", "failed"),
    "outputs_per_s": ("outputs",),
}
"""Each with the counters whose growth it is."""


async def watch(connect: str | None, interval_s: float, *, as_json: bool) -> NoReturn:
    """Raises `RouterLostError` when the deployment has ended, and what a connection raises."""
    from omnizmq import AsyncClient

    async with AsyncClient.connect(connect, operator=True) as client:
        with _drawing(as_json) as draw:
            await _look(client, interval_s, draw)


async def _look(client: AsyncClient, interval_s: float, draw: Draw) -> NoReturn:
    """Every interval, however long an answer takes."""
    rates = Rates()
    while True:
        began = time.monotonic()
        document = await client.status()
        document["at"] = datetime.datetime.now().astimezone().isoformat(timespec="milliseconds")
        document["rates"] = rates.of(document["counters"], began)
        texts = await asyncio.gather(*(_verdict(client, one["request_id"]) for one in document["slowest"]))
        for one, text in zip(document["slowest"], texts, strict=True):
            one["verdict"] = text
        draw(document)
        await asyncio.sleep(max(0.0, began + interval_s - time.monotonic()))


async def _verdict(client: AsyncClient, request_id: str) -> str | None:
    """The sentence of `omnizmq trace`; None: it has ended meanwhile. A trace that is not here says no more than it."""
    from omnizmq.errors import OmnizmqError
    from omnizmq.trace.finding import find
    from omnizmq.trace.summary import summarize

    live = await client.inspect(request_id)
    if live is None:
        return None
    try:
        facts = (await asyncio.to_thread(find, request_id, client.name)).facts
    except OmnizmqError:
        facts = ()
    text: str = summarize(facts, running=True, live=live, router="answering")["verdict"]["text"]
    return text


class Rates:
    """What has happened a second since the last look."""

    def __init__(self) -> None:
        self._before: tuple[float, dict[str, int]] | None = None

    def of(self, counters: dict[str, int], now_s: float) -> dict[str, float | None]:
        """None each at the first look."""
        before, self._before = self._before, (now_s, counters)
        if before is None or now_s <= before[0]:
            return dict.fromkeys(RATES)
        return {
            name: round(sum(counters[key] - before[1][key] for key in keys) / (now_s - before[0]), 1)
            for name, keys in RATES.items()
        }


# --- Drawing -------------------------------------------------------------------------------------------------------


@contextmanager
def _drawing(as_json: bool) -> Iterator[Draw]:
    """How each look is shown. On a terminal the last one stays."""
    from omnizmq.commands.terminal.board import cut, lines
    from omnizmq.commands.terminal.console import console_for, marks_for, styled, write
    from omnizmq.commands.terminal.layout import Line

    out = sys.stdout
    console, marks = console_for(out), marks_for(out)
    if as_json:
        yield lambda document: click.echo(json.dumps(document))
    elif not out.isatty() or console.is_dumb_terminal:

        def block(document: Document) -> None:
            write([*lines(document, None, marks), Line("")], console)
            out.flush()

        yield block
    else:
        from rich.console import Group
        from rich.live import Live

        latest: list[Line] = []

        def draw(document: Document) -> None:
            latest[:] = cut(lines(document, console.width, marks), console.height)
            live.update(Group(*(styled(line, console) for line in latest)), refresh=True)

        try:
            with Live(console=console, auto_refresh=False, screen=True) as live:
                yield draw
        finally:
            write(latest, console)
