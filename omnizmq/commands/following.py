"""`omnizmq trace --follow`: one request as it goes on, until it has ended.

On a terminal the whole view is drawn anew in place; piped, a line for each event as it becomes known, and one whenever
it is somebody else's move.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import click

from omnizmq.commands.inspecting import Inspector, complain, look, seek
from omnizmq.commands.terminal.console import console_for, marks_for, styled
from omnizmq.commands.terminal.layout import clean
from omnizmq.commands.terminal.view import lines, show
from omnizmq.commands.untraced import untraced, why
from omnizmq.errors import NotFoundError, OmnizmqError
from omnizmq.runtime import running
from omnizmq.trace.finding import Found, again, as_now, ignore, stores, unknown
from omnizmq.trace.looking import Ask
from omnizmq.trace.timeline import Timeline

POLL_S = 0.5
WAIT_S = 60.0
"""How long a request that nobody knows yet is waited for."""

Summary = dict[str, Any]
Draw = Callable[[Found, Summary], None]


def follow(id_: str | None, connect: str | None, *, as_json: bool) -> Found:
    """The request once it has ended; with `as_json` nothing is shown. Raises `NotFoundError` where none comes."""
    with Inspector() as inspector:
        found = _awaited(id_, connect, inspector.ask)
        console = console_for(sys.stdout)
        if as_json:
            return _until_ended(found, lambda _found, _summary: None, inspector.ask)
        if sys.stdout.isatty() and not console.is_dumb_terminal:
            return _in_place(found, inspector.ask)
        return _until_ended(found, Lines(), inspector.ask)


def _awaited(id_: str | None, connect: str | None, ask: Ask) -> Found:
    stores(connect)  # a deployment that there is not does not come
    deadline = time.monotonic() + WAIT_S
    said = False
    while True:
        try:
            return seek(id_, connect, ask, ignore if said else complain)
        except NotFoundError as error:
            if time.monotonic() >= deadline:
                raise
            off = [] if said else untraced(connect)
            if off and (connect or len(off) == len(running())):  # it cannot come
                raise NotFoundError(unknown(id_, connect) + why(off)) from error
            if not said:
                click.echo(f"omnizmq trace: {error.message}; waiting for it for up to {WAIT_S:.0f} s", err=True)
            said = True
        time.sleep(POLL_S)


def _until_ended(found: Found, draw: Draw, ask: Ask) -> Found:
    while True:
        found, summary = look(found, ask)
        draw(found, summary)
        if summary["state"] == "ended":
            return found
        time.sleep(POLL_S)
        found = _again(found)


def _again(found: Found) -> Found:
    """With what its trace tells by now. Where that is gone, or has no row of it, its router must do."""
    try:
        return again(found)
    except OmnizmqError:
        return found._replace(store=as_now(found.store))


def _in_place(found: Found, ask: Ask) -> Found:
    """The view at its whole length is left on the screen, also when it is interrupted."""
    from rich.console import Group
    from rich.live import Live

    console = console_for(sys.stdout)
    latest: tuple[Found, Summary] = look(found, ask)

    def draw(now: Found, summary: Summary) -> None:
        nonlocal latest
        latest = now, summary
        width, marks, now_ms = console.width, marks_for(sys.stdout), now.now_ms(summary)
        shown = lines(summary, Timeline(now.facts), width, marks, origin=now.origin, now_ms=now_ms)
        seen = shown[-console.height :]  # the verdict is last
        live.update(Group(*(styled(line, console) for line in seen)), refresh=True)

    try:
        with Live(console=console, auto_refresh=False, screen=True) as live:
            return _until_ended(found, draw, ask)
    finally:
        now, summary = latest
        show(summary, Timeline(now.facts), sys.stdout, origin=now.origin, now_ms=now.now_ms(summary))


class Lines:
    """Prints what is new since the last time."""

    def __init__(self) -> None:
        self._begun = False
        self._seen: set[str] = set()
        self._move: object = None

    def __call__(self, found: Found, summary: Summary) -> None:
        if not self._begun:
            self._begun = True
            click.echo(f"{summary['external_id']}  request {summary['request_id']}, {found.origin}")
        for event in summary["events"]:
            key = json.dumps(event)
            if key not in self._seen:
                self._seen.add(key)
                click.echo(event_line(event))
        verdict = summary["verdict"]
        move = (verdict["last_boundary"], verdict["waiting_for"], verdict["owner"], summary["state"])
        if move != self._move:
            self._move = move
            click.echo(f"{'' if summary['state'] == 'ended' else 'now: '}{clean(verdict['text'])}")


def event_line(event: dict[str, Any]) -> str:
    """Its time, who recorded it, what it was, and what else is known of it."""
    own = ("at_ms", "owner", "event", "attempt", "stage")
    detail = ", ".join(f"{key} {value}" for key, value in event.items() if key not in own and value not in (None, ""))
    what = " ".join(filter(None, (event["event"], event.get("stage"))))
    attempt = f" (attempt {event['attempt']})" if event["attempt"] > 1 else ""
    line = f"{event['at_ms']:>10.1f} ms  {event['owner']:<12}  {what}{attempt}{': ' + detail if detail else ''}"
    return clean(line)
