"""`omnizmq trace --failed` and `--slow`: a line a request, over the running and the stored traces."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

from omnizmq.commands.inspecting import MAX_ASKED, complain, inspect, look_at
from omnizmq.commands.terminal.console import console_for, write
from omnizmq.commands.terminal.layout import GAP, Column, Line, clean, fit, left_out, table, wrapped
from omnizmq.errors import NotFoundError, OmnizmqError
from omnizmq.trace.finding import Found, Store, each, stores
from omnizmq.trace.store import Outcome, TraceReader
from omnizmq.trace.words import duration

LIMIT = 10
"""How many failed requests are listed unless it is said otherwise."""

ASKING_HELD_S = 3.0
"""How long routers may be asked which of the requests without an end they hold, before the others count as live."""

_VERDICT_COLUMNS = 40
"""Where less room than that is left beside the other columns, a verdict has lines of its own."""


class Listed(NamedTuple):
    """A request of a list. `outcome` is its error's code, its finish reason, "live", or "unended" where its deployment
    is gone and its end is not known; then the duration is that until the last that is known of it."""

    found: Found
    duration_ms: float
    outcome: str


def failed(connect: str | None, limit: int) -> list[Listed]:
    """The newest requests that failed, were refused or have no end though their run is over; the newest first."""

    def look(store: Store, reader: TraceReader) -> list[Listed]:
        return _ended(store, reader, reader.failed(limit, pid=store.pid))

    found = _gathered(connect, look)
    return sorted(found, key=lambda one: one.found.about.wall_ns, reverse=True)[:limit]


def slow(connect: str | None, limit: int) -> list[Listed]:
    """The requests that took longest, or have taken longest so far, the longest first."""

    def look(store: Store, reader: TraceReader) -> list[Listed]:
        listed = _ended(store, reader, reader.slow(limit))
        return listed + (_live(store, reader, limit) if store.pid is not None else [])

    return sorted(_gathered(connect, look), key=attrgetter("duration_ms"), reverse=True)[:limit]


def _gathered(connect: str | None, look: Callable[[Store, TraceReader], list[Listed]]) -> list[Listed]:
    def opened(store: Store) -> list[Listed]:
        with TraceReader(store.path) as reader:
            return look(store, reader)

    return [one for found in each(stores(connect), opened, complain) for one in found]


def _ended(store: Store, reader: TraceReader, outcomes: Sequence[Outcome]) -> list[Listed]:
    listed = []
    for outcome in outcomes:
        found = _found(store, reader, outcome.request_id)
        if found is not None:
            reason = outcome.error_code or outcome.finish_reason
            if outcome.duration_ms is None:
                listed.append(Listed(found, _known_ms(found), reason or "unended"))
            else:
                listed.append(Listed(found, outcome.duration_ms, reason or "unknown"))
    return listed


def _known_ms(found: Found) -> float:
    """From its first fact to its last."""
    times = [fact.at_ns for fact in found.facts]
    return (max(times, default=0) - min(times, default=0)) / 1e6


def _found(store: Store, reader: TraceReader, request_id: str) -> Found | None:
    """None: it has been given up meanwhile, for newer ones; or cannot be read, which does not hide the others."""
    try:
        return Found(store, reader.about(request_id), reader.facts(request_id))
    except NotFoundError:
        return None
    except OmnizmqError as error:
        complain(f"{request_id}: {error.message}")
        return None


def _live(store: Store, reader: TraceReader, limit: int) -> list[Listed]:
    """The oldest that its router holds; the clock of their facts is this machine's."""
    now_ns, listed = time.monotonic_ns(), []
    for request_id in islice(_held(store, reader.unended()), limit):
        found = _found(store, reader, request_id)
        if found is not None and found.running and found.facts:
            began_ns = min(fact.at_ns for fact in found.facts)
            listed.append(Listed(found, (now_ns - began_ns) / 1e6, "live"))
    return listed


def _held(store: Store, ids: Sequence[str]) -> Iterator[str]:
    """Those of which the router does not say that it holds them no more: where rows were lost, so were their ends.

    One that does not answer cannot say so; it is not asked again, nor for longer than `ASKING_HELD_S`.
    """
    deadline, answers = time.monotonic() + ASKING_HELD_S, True
    for start in range(0, len(ids), MAX_ASKED):
        batch = ids[start : start + MAX_ASKED]
        answers = answers and time.monotonic() < deadline
        found = inspect(store.name, batch) if answers else [None] * len(batch)
        answers = any(one is not None and (one.document or one.router == "unknowing") for one in found)
        yield from (id_ for id_, one in zip(batch, found, strict=True) if one is None or one.router != "unknowing")


def documents(listed: Sequence[Listed]) -> list[dict[str, Any]]:
    """Of JSON types alone: what a line shows."""
    shown = []
    for one, (_, summary) in zip(listed, look_at([one.found for one in listed]), strict=True):
        shown.append(
            {
                "request_id": one.found.about.request_id,
                "external_id": one.found.about.external_id,
                "deployment": one.found.store.name,
                "started_at": one.found.started.isoformat(),
                "duration_ms": round(one.duration_ms, 3),
                "state": summary["state"],
                "outcome": one.outcome,
                "verdict": summary["verdict"],
            }
        )
    return shown


def show(listed: Sequence[Listed], nothing: str) -> None:
    """A line each on stdout; on a terminal, verdicts wrap. `nothing` is said where the list is empty."""
    out = sys.stdout
    console = console_for(out)
    width = console.width if out.isatty() else None
    write(lines(listed, documents(listed), width) if listed else [Line(nothing)], console)


def lines(listed: Sequence[Listed], shown: Sequence[dict[str, Any]], width: int | None) -> list[Line]:
    """`shown`: their documents. In at most `width` cells a line; None: a line each. Pure."""
    columns = [
        Column("when", [f"{one.found.started.astimezone():%Y-%m-%d %H:%M:%S}" for one in listed], drop=2),
        Column("id", list(map(itemgetter("external_id"), shown))),
        Column("deployment", list(map(itemgetter("deployment"), shown)), drop=1),
        Column("took", [duration(one.duration_ms) for one in listed], right=True),
        Column("outcome", [one["verdict"].get("cause") or one["outcome"] for one in shown]),
    ]
    kept, gone = fit(columns, width)
    heading, *rows = table(kept)
    begin = sum(column.width + len(GAP) for column in kept)
    if width is None:
        texts = [f"{row.ljust(begin)}{clean(one['verdict']['text'])}" for row, one in zip(rows, shown, strict=True)]
        return [Line(f"{heading.ljust(begin)}verdict", "bold"), *map(Line, texts)]
    made = [Line(heading if width - begin < _VERDICT_COLUMNS else f"{heading.ljust(begin)}verdict", "bold")]
    for row, one in zip(rows, shown, strict=True):
        if width - begin < _VERDICT_COLUMNS:
            made.append(Line(row))
            made += [Line(text, "dim") for text in wrapped(one["verdict"]["text"], width, indent=GAP, hanging=GAP)]
        else:
            first, *more = wrapped(one["verdict"]["text"], width - begin)
            made += [Line(f"{row.ljust(begin)}{first}"), *(Line(" " * begin + text) for text in more)]
    return made + left_out(gone, width)
