"""`omnizmq trace`: where a request is or was, and why (T1, T2).

Searches the traces of the running deployments, then all that are stored; among those, the newest request wins, and the
others that bear the id are counted. Finds, and leaves judging and drawing to `omnizmq.trace`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

if TYPE_CHECKING:
    from omnizmq.trace.facts import Fact
    from omnizmq.trace.store import Traced, TraceReader


class _Store(NamedTuple):
    """A deployment's trace. `pid`: its router's; None when it does not run."""

    name: str
    path: Path
    pid: int | None


class _Found(NamedTuple):
    """The newest request of a store that matches, and how many of that store do."""

    store: _Store
    reader: TraceReader
    about: Traced
    matches: int

    @property
    def rank(self) -> tuple[bool, int]:
        """Of a running deployment first, then by age; the highest is the one that is meant."""
        return self.store.pid is not None, self.about.wall_ns

    @property
    def may_go_on(self) -> bool:
        """Whether the process that traced it is the deployment's router, and runs."""
        return not self.about.ended and self.about.pid == self.store.pid


@click.command()
@click.argument("id_", metavar="[ID]", required=False)
@click.option("--last", is_flag=True, help="The newest request.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@click.option("--connect", metavar="NAME", help="Only this deployment: its name, or its endpoint while it runs.")
def trace(id_: str | None, last: bool, as_json: bool, connect: str | None) -> None:
    """Show the timeline of one request and say where it stands.

    ID is the caller's own id or a request id. While the request runs and after it has ended, also after its deployment
    has. Times are milliseconds since the client's submit.
    """
    if (id_ is None) != last:
        raise click.UsageError("name one request: an ID, or --last")
    from omnizmq.errors import NotFoundError

    with ExitStack() as readers:
        found = list(_search(_stores(connect), id_, readers))
        if not found:
            raise NotFoundError(_unknown(id_, connect))
        chosen = max(found, key=lambda one: one.rank)
        facts = chosen.reader.facts(chosen.about.request_id)
    others = 0 if last else sum(one.matches for one in found) - 1
    _show(chosen, facts, others=others, as_json=as_json)


def _stores(connect: str | None) -> list[_Store]:
    """The traces to search; with `connect`, the one that it names."""
    from omnizmq.errors import InvalidRequestError, NotFoundError
    from omnizmq.runtime import check_name, running, state_root
    from omnizmq.trace.database import FILE_NAME

    if connect is not None and connect.endswith(".json"):
        raise InvalidRequestError("traces stay on the machine of their deployment: run `omnizmq trace` there")
    root = state_root()
    deployments = running()
    pids = {deployment.name: deployment.pid for deployment in deployments}
    stored = {path.parent.name: path for path in sorted(root.glob(f"*/{FILE_NAME}"))}
    if connect is None:
        return [_Store(name, path, pids.get(name)) for name, path in stored.items()]
    by_endpoint = {deployment.endpoint: deployment.name for deployment in deployments}
    name = check_name(by_endpoint.get(connect, connect))
    if name not in pids and name not in stored:
        known = ", ".join(stored) or "none"
        raise NotFoundError(f"no deployment {name!r} runs or has left a trace; those that have: {known}")
    return [_Store(name, root / name / FILE_NAME, pids.get(name))]


def _search(stores: Sequence[_Store], id_: str | None, readers: ExitStack) -> Iterator[_Found]:
    """What each trace has of the id, or its newest request. One that cannot be read does not hide the others."""
    from omnizmq.errors import NotFoundError, OmnizmqError
    from omnizmq.trace.store import TraceReader

    for store in stores:
        try:
            reader = readers.enter_context(TraceReader(store.path))
            request_ids = reader.last(1) if id_ is None else reader.find(id_)
            about = reader.about(request_ids[0]) if request_ids else None
        except OmnizmqError as error:
            if len(stores) == 1:
                raise NotFoundError(error.message) from error
            click.echo(f"omnizmq trace: {error.message}", err=True)
            continue
        if about is not None:
            yield _Found(store, reader, about, len(request_ids))


def _unknown(id_: str | None, connect: str | None) -> str:
    where = f" in the trace of {connect}" if connect else ""
    if id_ is None:
        return f"no request is stored{where}"
    shown = id_ if len(id_) <= 200 else id_[:200] + "…"
    return f"no request with id {shown!r} is known{where}"


def _show(found: _Found, facts: Sequence[Fact], *, others: int, as_json: bool) -> None:
    import datetime
    import json
    import time

    from omnizmq.trace.summary import summarize

    document = summarize(facts, live=found.may_go_on)
    started = datetime.datetime.fromtimestamp(found.about.wall_ns / 1e9, datetime.UTC)
    if as_json:
        extra = {"deployment": found.store.name, "started_at": started.isoformat(), "other_matches": others}
        click.echo(json.dumps(document | extra, indent=2))
    else:
        from omnizmq.trace.view import show

        origin = f"deployment {found.store.name}, {started.astimezone():%Y-%m-%d %H:%M:%S}"
        show(document, sys.stdout, origin=origin, now_ms=_now_ms(facts, time.monotonic_ns()))
    if others:
        click.echo(f"omnizmq trace: {others} other request{'s bear' if others > 1 else ' bears'} this id", err=True)


def _now_ms(facts: Sequence[Fact], now_ns: int) -> float | None:
    from omnizmq.trace.timeline import Timeline

    return Timeline(facts).ms(now_ns)
