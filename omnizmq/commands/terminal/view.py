"""A summary for people: coloured on a terminal, plain text when piped.

What it shows is a function of the document of `summarize`, of the timeline that it was made of, and of the width alone.
Where a terminal is narrow, texts wrap and the least important columns go, with a note that says which.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import IO, Any

from omnizmq.commands.terminal.bars import BLOCKS, Axis, Marks, bar
from omnizmq.commands.terminal.console import console_for, marks_for, write
from omnizmq.commands.terminal.layout import GAP, MIN_FREE, Column, Line, figure, fit, left_out, sized, table, wrapped
from omnizmq.commands.terminal.live_view import live_lines, present
from omnizmq.commands.terminal.queueing import Document, Stretch, stretches, told
from omnizmq.trace.live import Live, read
from omnizmq.trace.phases import Run, stage_runs
from omnizmq.trace.timeline import Timeline
from omnizmq.trace.words import duration

_PIPED_BAR = 40
_MOST_BAR = 120
INSTEAD = " (a wider terminal, or --json)"
_TIMES = {"submit": "submitted_ms", "input": "input_ready_ms", "first": "first_output_ms", "end": "finished_ms"}


def show(
    document: Document, timeline: Timeline, out: IO[str], *, origin: str = "", now_ms: float | None = None
) -> None:
    """Write the document to `out`.

    `origin` says where it is from (deployment, date). `now_ms`, on the document's clock, is where the bars of a live
    request end; without it they end at its last event.
    """
    console = console_for(out)
    width = console.width if out.isatty() else None
    write(lines(document, timeline, width, marks_for(out), origin=origin, now_ms=now_ms), console)


def lines(
    document: Document,
    timeline: Timeline,
    width: int | None,
    marks: Marks = BLOCKS,
    *,
    origin: str = "",
    now_ms: float | None = None,
) -> list[Line]:
    """All that is shown, in at most `width` cells a line; None: as wide as it is, and no text wraps."""
    end_ms, live = _end(document, now_ms), read(document["live"])
    parts = [
        _head(document, width, origin),
        [*_stages(document, timeline, live, width, marks, end_ms), *_queued(document, live, width, end_ms)],
        _edges(document, width),
        live_lines(live, width),
        _ids(document, width),
        _usage(document, width),
        [*_terminal(document, width), *_verdict(document, width, now_ms)],
    ]
    shown: list[Line] = []
    for part in filter(None, parts):
        shown += [Line(""), *part] if shown else part
    return shown


# --- Head ----------------------------------------------------------------------------------------------------------


def _head(document: Document, width: int | None, origin: str) -> list[Line]:
    title = f"{document['external_id']}  request {document['request_id']}"
    state = ", ".join(filter(None, (document["state"], origin, *_wishes(document))))
    return _styled(wrapped(title, width), "bold") + _styled(wrapped(state, width), "dim")


def _wishes(document: Document) -> list[str]:
    """What was asked for beside the prompt, as far as it was anything."""
    received: Document = next((event for event in document["events"] if event["event"] == "received"), {})
    said = [f"modalities {received['modalities']}"] if received.get("modalities") else []
    said += [f"deadline {figure(received['deadline_s'])} s"] if received.get("deadline_s") is not None else []
    return said + [f"{key} {received[key]}" for key in ("priority", "traceparent") if received.get(key)]


def _styled(texts: Sequence[str], style: str) -> list[Line]:
    return [Line(text, style) for text in texts]


# --- Stages --------------------------------------------------------------------------------------------------------


def _end(document: Document, now_ms: float | None) -> float:
    """The end of the time axis, in milliseconds: the terminal, or the last that is known, or now."""
    terminal = document["terminal"]
    times: list[float] = [terminal["at_ms"]] if terminal else [event["at_ms"] for event in document["events"]]
    if document["state"] == "live" and now_ms is not None:
        times.append(now_ms)
    return max(times, default=0.0)


def _stages(
    document: Document, timeline: Timeline, live: Live | None, width: int | None, marks: Marks, end_ms: float
) -> list[Line]:
    """A row a replica; where there were several attempts, a table each, with the same columns and the same axis."""
    if not document["stages"]:
        return []
    attempts = document["attempts"] or [{"number": 1, "why": None, "stages": document["stages"]}]
    rows = [(attempt["number"], name, stage) for attempt in attempts for name, stage in attempt["stages"].items()]
    columns, gone, bars = _columns(document, timeline, live, rows, width, marks, end_ms)
    heading, *drawn = table(columns)
    shown = [Line(heading, "bold")]
    for attempt in attempts:
        if len(attempts) > 1:
            after = f" after {attempt['why'] or 'a failure'}" if attempt["number"] > attempts[0]["number"] else ""
            shown += _styled(wrapped(f"attempt {attempt['number']}{after}", width), "bold")
        shown += [Line(drawn.pop(0), "bar") for _ in attempt["stages"]]
    legend = ", ".join(filter(None, ("times in ms since it was asked", marks.legend(bars))))
    return shown + _styled(wrapped(legend, width), "dim") + left_out(gone, width, instead=INSTEAD)


def _columns(
    document: Document,
    timeline: Timeline,
    live: Live | None,
    rows: Sequence[tuple[int, str, Document]],
    width: int | None,
    marks: Marks,
    end_ms: float,
) -> tuple[list[Column], list[str], list[str]]:
    """The columns that have room, the names of those that have not, and the bars."""
    names = Column("stage", [stage["replica"] or name for _, name, stage in rows])
    others = [
        Column(title, [figure(stage[key]) for _, _, stage in rows], right=True, drop=drop)
        for (title, key), drop in zip(_TIMES.items(), (2, 1, 3, 5), strict=True)
    ]
    others.append(Column("out", [figure(stage["outputs"]) for _, _, stage in rows], right=True, drop=4))
    others.append(Column("reason", [_reason(document, *row) for row in rows], drop=6))
    least = Column("", [" " * MIN_FREE])
    kept, gone = fit([names, least, *others], width)
    kept.remove(least)
    taken = sum(column.width + len(GAP) for column in kept)
    queued = stretches(document, end_ms)
    cells = _PIPED_BAR if width is None else min(_MOST_BAR, max(MIN_FREE, width - taken))
    runs = _runs(document, timeline, end_ms)
    bars = [
        bar(
            runs.get((attempt, name)),
            Axis(timeline.zero_ns, end_ms, cells),
            marks,
            until_ms=_given_up(document, attempt),
            queued=[(one.begin_ms, one.end_ms) for one in queued if _waited(document, one, name, attempt)],
            now=present(live, name, attempt, end_ms, marks),
        )
        for attempt, name, _ in rows
    ]
    axis = Column("0" + duration(end_ms).rjust(cells - 1), bars)
    return [kept[0], axis, *kept[1:]], gone, bars


def _runs(document: Document, timeline: Timeline, end_ms: float) -> dict[tuple[int, str], Run]:
    """By attempt and stage. Of an attempt that has ended, or was given up, nothing more will be known."""
    over = timeline.attempt if document["state"] == "ended" else timeline.attempt - 1
    runs = stage_runs(timeline, timeline.zero_ns + round(end_ms * 1e6), over=over)
    return {(run.attempt, run.story.name): run for run in runs if run.story is not None}


def _of(document: Document, stage: str, attempt: int) -> list[Document]:
    return [event for event in document["events"] if event.get("stage") == stage and event["attempt"] == attempt]


def _given_up(document: Document, attempt: int) -> float:
    """When the next attempt began."""
    return min((event["at_ms"] for event in document["events"] if event["attempt"] > attempt), default=math.inf)


def _waited(document: Document, stretch: Stretch, stage: str, attempt: int) -> bool:
    """Whether the stage was to have a part in what was queued then."""
    planned = next((event.get("stages") for event in document["events"] if event["event"] == "received"), None)
    return stretch.attempt == attempt and (planned is None or stage in planned.split(","))


def _queued(document: Document, live: Live | None, width: int | None, end_ms: float) -> list[Line]:
    """How long and why; of one that still is, the live answer tells instead, where there is one."""
    found = stretches(document, end_ms)
    if found and found[-1].open and live is not None and live.queue:
        return []
    return [Line(text) for text in wrapped(told(found), width)] if found else []


def _reason(document: Document, attempt: int, name: str, stage: Document) -> str:
    """In brackets the stage whose error it ended with, where that is another's."""
    reports = [event for event in _of(document, name, attempt) if event["event"] == "finished"]
    origin = reports[0].get("error_stage") if reports else None
    return f"({origin})" if origin not in (None, name) else stage["finish_reason"] or "-"


# --- Edges ---------------------------------------------------------------------------------------------------------


def _edges(document: Document, width: int | None) -> list[Line]:
    edges: Sequence[Document] = document["edges"]
    if not edges:
        return []
    parked = _parked(document)
    columns = [
        Column("edge", [f"{edge['from']} to {edge['to']}" for edge in edges]),
        Column("chunks", [figure(edge["chunks"]) for edge in edges], right=True, drop=5),
        Column("bytes", [_bytes(edge["bytes"]) for edge in edges], right=True, drop=3),
        Column("first", [figure(edge["first_ms"]) for edge in edges], right=True, drop=1),
        Column("last", [figure(edge["last_ms"]) for edge in edges], right=True, drop=2),
    ]
    if any(parked.values()):
        cells = [_parked_for(parked.get((edge["from"], edge["to"]))) for edge in edges]
        columns.append(Column("parked", cells, right=True, drop=4))
    kept, gone = fit(columns, width)
    heading, *rows = table(kept)
    return [Line(heading, "bold"), *map(Line, rows), *left_out(gone, width, instead=INSTEAD)]


def _bytes(value: int | None) -> str:
    return "-" if value is None else sized(value)


def _parked(document: Document) -> dict[tuple[str, str], float]:
    """For how many milliseconds in all each edge of the last attempt was without credit or room."""
    last = max((event["attempt"] for event in document["events"]), default=0)
    return {
        (event["stage"], event["to"]): event["parked_ms"]
        for event in document["events"]
        if event["event"] == "edge" and event["attempt"] == last and {"stage", "to", "parked_ms"} <= event.keys()
    }


def _parked_for(ms: float | None) -> str:
    return "-" if not ms else duration(ms)


# --- Ids, usage, end -----------------------------------------------------------------------------------------------


def _ids(document: Document, width: int | None) -> list[Line]:
    attempts = document["attempts"] or [{"stages": document["stages"]}]
    engine_ids = [stage["engine_id"] for attempt in attempts for stage in attempt["stages"].values()]
    return [
        line
        for engine_id in filter(None, engine_ids)
        for line in _styled(wrapped(f"engine id {engine_id}", width, hanging=GAP), "dim")
    ]


def _usage(document: Document, width: int | None) -> list[Line]:
    """What the stages of the last attempt counted, as far as their reports say."""
    last = max((event["attempt"] for event in document["events"]), default=0)
    shown = []
    for event in document["events"]:
        if event["event"] == "finished" and event["attempt"] == last:
            counts = {key.removeprefix("usage_"): value for key, value in event.items() if key.startswith("usage_")}
            if counts:
                counted = ", ".join(f"{name} {figure(value)}" for name, value in counts.items())
                shown += wrapped(f"usage of {event.get('stage')}: {counted}", width, hanging=GAP)
    return [Line(text) for text in shown]


def _terminal(document: Document, width: int | None) -> list[Line]:
    terminal = document["terminal"]
    if terminal is None:
        return []
    error = terminal["error"]
    if error is None:
        how = f", finish reason {terminal['finish_reason']}"
    else:
        where = error["replica"] or error["stage"]
        how = f": {error['code']}{f' in {where}' if where else ''}"
    return [Line(text) for text in wrapped(f"ended at {figure(terminal['at_ms'])} ms{how}", width)]


def _verdict(document: Document, width: int | None, now_ms: float | None) -> list[Line]:
    """Whose move it is, and last the sentence."""
    verdict = document["verdict"]
    shown = [Line(text) for text in wrapped(move, width)] if (move := _move(document, now_ms)) else []
    return shown + _styled(wrapped(verdict["text"], width), verdict_style(document))


def _move(document: Document, now_ms: float | None) -> str:
    verdict = document["verdict"]
    if document["state"] != "live" or verdict["owner"] is None:
        return ""
    since = verdict["since_ms"]
    age = "" if since is None or now_ms is None else f", for {duration(now_ms - since)}"
    cause = f" ({verdict['cause']})" if verdict.get("cause") else ""
    return f"whose move it is: {verdict['owner']}{age}{cause}"


def verdict_style(document: Mapping[str, Any]) -> str:
    if document["verdict"]["complete"]:
        return "bold green"
    return "bold yellow" if document["state"] == "live" else "bold red"
