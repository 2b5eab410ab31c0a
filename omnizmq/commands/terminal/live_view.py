"""What the router and the workers say of a live request at this moment, as lines (`AsyncClient.inspect`). Pure."""

from __future__ import annotations

from omnizmq.commands.terminal.bars import Marks
from omnizmq.commands.terminal.layout import GAP, Column, Line, figure, fit, left_out, sized, table, wrapped
from omnizmq.trace.live import Caller, EdgeIn, EdgeOut, Live, LiveStage, Queued, WorkerAnswer
from omnizmq.trace.words import duration

_STATES = {
    "WAITING_FOR_CHUNK": "waits for a chunk",
    "WAITING_FOR_INPUT": "waits for input",
    "QUEUED": "waits for a slot",
    "RUNNING": "runs",
    "PARKED": "parked: no credit or room",
    "PAUSED": "its caller has to read",
    "SENDING": "sends what it has made",
    "ABORTING": "aborts",
    "GONE": "is not there",
}
_FULL = {
    "credit": "its window of chunks is full",
    "ring": "its part of the ring is full",
    "line": "others stand before it in the ring's line",
}


def live_lines(live: Live | None, width: int | None) -> list[Line]:
    """Nothing where there is no live document."""
    if live is None:
        return []
    caller = "its caller is connected" if live.caller else "its caller is gone"
    left = [] if live.deadline_ns is None else [f"{_until(live.deadline_ns, live.now_ns)} to its deadline"]
    head = ", ".join((f"now: {live.phase}", caller, *left, *_queue(live.queue, live.now_ns)))
    shown = [Line(text, "bold") for text in wrapped(head, width)]
    if live.stages:
        kept, gone = fit(_columns(live), width)
        heading, *rows = table(kept)
        shown.append(Line(heading, "bold"))
        for stage, row in zip(live.stages.values(), rows, strict=True):
            shown.append(Line(row))
            for text in _details(stage.answer, live.now_ns):
                shown += [Line(line, "dim") for line in wrapped(text, width, indent=GAP, hanging=GAP * 2)]
        shown += left_out(gone, width)
    said = [f"{name} {final.sent}{' (all)' if final.ended else ''}" for name, final in live.deliveries.items()]
    return shown + [Line(line) for line in wrapped(f"outputs sent to its caller: {', '.join(said)}", width)]


def present(live: Live | None, stage: str, attempt: int, now_ms: float, marks: Marks) -> tuple[float, str] | None:
    """What a stage does now and since when, as a bar shows it. `now_ms`: when that was asked, on the bar's axis."""
    known = live.stages.get(stage) if live is not None and live.attempt == attempt else None
    if live is None or known is None:
        return None
    if known.replica in live.silent:
        return now_ms - (live.now_ns - (known.heard_ns or 0)) / 1e6, marks.silent
    answer = known.answer
    if answer is None:
        return None
    moments = {
        "RUNNING": (answer.moved_ns, marks.waits if _lacks_chunks(answer) else marks.computes),
        "PARKED": (answer.since_ns, marks.held),
        "PAUSED": (answer.since_ns, marks.held),
        "QUEUED": (answer.since_ns, marks.waits),
        "WAITING_FOR_CHUNK": (answer.since_ns, marks.waits),
        "WAITING_FOR_INPUT": (answer.since_ns, marks.waits),
    }
    since_ns, mark = moments.get(answer.state, (0, ""))
    return (now_ms - (live.now_ns - since_ns) / 1e6, mark) if since_ns else None


def _queue(queue: Queued | None, now_ns: int) -> list[str]:
    if queue is None:
        return []
    lacks = ": ".join(filter(None, (queue.lacks, queue.replicas)))
    said = [f"queued for {_age(queue.since_ns, now_ns)} ({queue.why}{', ' + lacks if lacks else ''})"]
    return [*said, f"{queue.ahead} ahead of it"]


def _columns(live: Live) -> list[Column]:
    rows = [
        (
            stage.replica or name,
            _state(stage, live),
            _engine(stage, live.now_ns),
            *_slots(stage.answer),
            figure(stage.answer.outputs if stage.answer else None),
            _ago(stage.answer.moved_ns if stage.answer else None, live.now_ns),
        )
        for name, stage in live.stages.items()
    ]
    cells = list(zip(*rows, strict=True))
    return [
        Column("stage", cells[0]),
        Column("request", cells[1]),
        Column("engine", cells[2], drop=4),
        Column("slots", cells[3], right=True, drop=3),
        Column("wait", cells[4], right=True, drop=2),
        Column("out", cells[5], right=True, drop=5),
        Column("last moved", cells[6], right=True, drop=1),
    ]


def _state(stage: LiveStage, live: Live) -> str:
    answer = stage.answer
    if answer is not None:
        state = _STATES["WAITING_FOR_CHUNK"] if _lacks_chunks(answer) else _STATES.get(answer.state, answer.state)
        return f"{state} for {_age(answer.since_ns, live.now_ns)}" if answer.since_ns else state
    if stage.finished:
        return "finished"
    if stage.replica in live.silent:
        return f"DOES NOT ANSWER, heard {_age(stage.heard_ns, live.now_ns)} ago"
    return "not asked" if stage.submitted else "not submitted"


def _lacks_chunks(answer: WorkerAnswer) -> bool:
    """It runs as far as its slot goes, and its engine has taken all that came, with more to come."""
    taken = all(source.taken == source.received for source in answer.inputs)
    more = any(source.open for source in answer.inputs)
    return answer.state == "RUNNING" and answer.engine == "idle" and taken and more


def _engine(stage: LiveStage, now_ns: int) -> str:
    """Of the answer where there is one, else of its last heartbeat; and the replica's own state unless it is ready."""
    if stage.replica is None or stage.finished:
        return "-"
    said = stage.answer or stage
    engine = f"{said.engine} {_age(said.engine_since_ns, now_ns)}" if said.engine else "-"
    if stage.answer is not None and stage.answer.engaged is False and said.engine != "idle":
        engine += ", for others"
    return engine if stage.state == "ready" else f"{stage.state}: {engine}"


def _slots(answer: WorkerAnswer | None) -> tuple[str, str]:
    return ("-", "-") if answer is None else (f"{answer.running}/{answer.slots}", str(answer.waiting_for_slot))


def _details(answer: WorkerAnswer | None, now_ns: int) -> list[str]:
    """The edges and the caller of a stage that answers."""
    if answer is None:
        return []
    said = [_edge_in(edge, now_ns) for edge in answer.inputs]
    said += [_edge_out(edge, now_ns) for edge in answer.edges]
    return said + ([_caller(answer.caller, now_ns)] if answer.caller else [])


def _edge_in(edge: EdgeIn, now_ns: int) -> str:
    text = f"from {edge.replica or edge.source}: {edge.received} came, {edge.taken} taken"
    last = f", last {_ago(edge.last_ns, now_ns)}" if edge.last_ns else ""
    return text + last + _end(edge)


def _edge_out(edge: EdgeOut, now_ns: int) -> str:
    text = f"to {edge.replica or edge.target}: {edge.made} made, {edge.sent} sent ({sized(edge.bytes)})"
    text += f", {edge.sent - edge.consumed} of {edge.window} unconsumed"
    if edge.held_bytes:
        text += f", holds {sized(edge.held_bytes)} of {sized(edge.quota_bytes)}"
    if edge.full:
        age = f" for {_age(edge.full_since_ns, now_ns)}" if edge.full_since_ns else ""
        text += f"; FULL{age}: {_FULL.get(edge.full, edge.full)}"
        if edge.holders and edge.full in ("ring", "line"):
            text += f", held by {', '.join(edge.holders)}"
    return text + _end(edge)


def _caller(caller: Caller, now_ns: int) -> str:
    """How much is unread only where that stops it: a caller says what it has read an eighth of a window at a time."""
    text = f"to its caller: {caller.sent} sent"
    text += f", {caller.waiting} wait" if caller.waiting else ""
    if caller.full:
        unread = caller.sent - caller.consumed
        text += f"; FULL for {_age(caller.since_ns, now_ns)}: its caller has to read, {unread} of {caller.window}"
        text += f" unread, {sized(caller.unread_bytes)} of {sized(caller.window_bytes)}"
    return text


def _end(edge: EdgeIn | EdgeOut) -> str:
    return ", closed" if edge.closed else ", ended" if edge.ended else ""


def _age(since_ns: int | None, now_ns: int) -> str:
    return "?" if not since_ns else duration((now_ns - since_ns) / 1e6)


def _ago(at_ns: int | None, now_ns: int) -> str:
    return "-" if not at_ns else f"{_age(at_ns, now_ns)} ago"


def _until(at_ns: int, now_ns: int) -> str:
    return duration((at_ns - now_ns) / 1e6)
