"""A deployment's status as a screen shows it: replicas, requests, rings, rates. Pure lines, for a width."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from omnizmq.commands.status import counted, counts_of_requests, recording, silence, state_of, tracing
from omnizmq.commands.terminal.bars import Marks
from omnizmq.commands.terminal.layout import GAP, Column, Line, fit, left_out, sized, table, wrapped
from omnizmq.trace.words import duration

Document = dict[str, Any]

_GAUGE = 12
_RATES = {"requests_per_s": "requests/s", "ended_per_s": "ended/s", "outputs_per_s": "outputs/s"}
_STATES = {"ready": "", "stuck": "bold red", "dead": "bold red"}


def lines(document: Document, width: int | None, marks: Marks) -> list[Line]:
    """What matters most comes first, since a screen may be low. `width` None: no text wraps."""
    parts = [
        _head(document, width),
        _slowest(document["slowest"], width),
        _replicas(document, width, marks),
        _rings(document["rings"], width, marks),
        [
            Line(line, "dim")
            for text in (*tracing(document.get("trace", {})), *recording(document), counted(document))
            for line in wrapped(text, width, hanging=GAP)
        ],
    ]
    shown: list[Line] = []
    for part in filter(None, parts):
        shown += [Line(""), *part] if shown else part
    return shown


def cut(shown: Sequence[Line], height: int) -> list[Line]:
    """What fits on a screen, and how much does not."""
    if len(shown) <= height:
        return list(shown)
    left = len(shown) - max(0, height - 1)
    return [*shown[: max(0, height - 1)], Line(f"{left} more lines: a higher terminal has room for them", "dim")]


def _head(document: Document, width: int | None) -> list[Line]:
    ready = "ready" if document["ready"] else "NOT READY"
    title = f"{document['name']}: {document['state']}, {ready}, at {document['at'][11:19]}"
    rates = ", ".join(f"{_rate(document['rates'][key])} {name}" for key, name in _RATES.items())
    if not any(value is not None for value in document["rates"].values()):
        rates = "measuring…"
    shown = [Line(text, "bold green" if document["ready"] else "bold red") for text in wrapped(title, width)]
    texts = (f"requests: {counts_of_requests(document)}", f"rates: {rates}")
    return shown + [Line(line) for text in texts for line in wrapped(text, width, hanging=GAP)]


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _slowest(requests: Sequence[Document], width: int | None) -> list[Line]:
    if not requests:
        return []
    columns = [
        Column("oldest requests", [one["external_id"] for one in requests]),
        Column("age", [duration(one["age_s"] * 1000) for one in requests], right=True),
        Column("phase", [one["phase"] for one in requests]),
        Column("attempt", [str(one["attempt"]) for one in requests], right=True, drop=1),
    ]
    heading, *rows = table(fit(columns, width)[0])
    shown = [Line(heading, "bold")]
    for one, row in zip(requests, rows, strict=True):
        shown.append(Line(row))
        if one["verdict"] is not None:
            shown += [Line(text, "yellow") for text in wrapped(one["verdict"], width, indent=GAP, hanging=GAP)]
    return shown


def _replicas(document: Document, width: int | None, marks: Marks) -> list[Line]:
    replicas = [replica for stage in document["stages"].values() for replica in stage["replicas"]]
    columns = [
        Column("replica", [replica["id"] for replica in replicas]),
        Column("state", [state_of(replica) for replica in replicas]),
        Column("", [_gauge(replica["active"], replica["capacity"], marks) for replica in replicas], drop=3),
        Column("in flight", [f"{replica['active']}/{replica['capacity']}" for replica in replicas], right=True),
        Column("bound", [str(replica["inflight"]) for replica in replicas], right=True, drop=2),
        Column("engine", [f"{one['engine']} {duration(one['engine_s'] * 1000)}" for one in replicas], drop=5),
        Column("heard", [_heard(one) for one in replicas], right=True, drop=6),
        Column("pid", [str(replica["pid"]) for replica in replicas], right=True, drop=1),
        Column("restarts", [str(replica["restarts"]) for replica in replicas], right=True, drop=4),
    ]
    kept, gone = fit(columns, width)
    heading, *rows = table(kept)
    shown = [Line(heading, "bold")]
    shown += [Line(row, _style(one)) for one, row in zip(replicas, rows, strict=True)]
    return shown + left_out(gone, width)


def _heard(replica: Document) -> str:
    return silence(replica) or f"{duration(replica['heartbeat_age_s'] * 1000)} ago"


def _style(replica: Document) -> str:
    return "bold red" if silence(replica) else _STATES.get(replica["state"], "yellow")


def _rings(rings: Sequence[Document], width: int | None, marks: Marks) -> list[Line]:
    if not rings:
        return []
    columns = [
        Column("ring of", [ring["replica"] for ring in rings], drop=1),
        Column("edge", [ring["edge"] for ring in rings]),
        Column("", [_gauge(ring["used_bytes"], ring["capacity_bytes"], marks) for ring in rings]),
        Column("used", [sized(ring["used_bytes"]) for ring in rings], right=True),
        Column("of", [sized(ring["capacity_bytes"]) for ring in rings], right=True),
    ]
    if any(ring["spilled_bytes"] for ring in rings):
        columns.append(Column("beside it", [sized(ring["spilled_bytes"]) for ring in rings], right=True))
    heading, *rows = table(fit(columns, width)[0])
    return [Line(heading, "bold"), *map(Line, rows)]


def _gauge(used: int, capacity: int, marks: Marks) -> str:
    """Something that is not empty shows at least one cell."""
    full = 0 if capacity <= 0 else min(_GAUGE, -(-used * _GAUGE // capacity))
    return marks.gives * full + marks.waits * (_GAUGE - full)
