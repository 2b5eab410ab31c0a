"""`omnizmq trace`: where a request is or was, and why (T1, T2). Reads the command line; the parts are beside it.

`finding` says which request is meant, `listing` lists several, `following` shows one as it goes on.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from omnizmq.commands.untraced import untraced, why

if TYPE_CHECKING:
    from omnizmq.trace.finding import Found


@click.command()
@click.argument("id_", metavar="[ID]", required=False)
@click.option("--last", is_flag=True, help="The newest request.")
@click.option("--failed", is_flag=True, help="List the newest requests that failed or were refused.")
@click.option("--limit", type=click.IntRange(1, 1000), metavar="N", help="How many --failed lists; default: 10.")
@click.option("--slow", type=click.IntRange(1, 1000), metavar="N", help="List the N requests that took longest.")
@click.option("--follow", is_flag=True, help="Show it as it goes on, until it has ended.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@click.option(
    "--perfetto",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Also write the timeline to a file that ui.perfetto.dev opens.",
)
@click.option("--connect", metavar="NAME", help="Only this deployment: its name, or its endpoint while it runs.")
def trace(
    id_: str | None,
    last: bool,
    failed: bool,
    limit: int | None,
    slow: int | None,
    follow: bool,
    as_json: bool,
    perfetto: Path | None,
    connect: str | None,
) -> None:
    """Show the timeline of one request and say where it stands, or list requests.

    ID is the caller's own id or a request id. While the request runs and after it has ended, also after its deployment
    has. Times are milliseconds since the client's submit.
    The exit code says whether the request was found, not whether it went well, also with --follow.
    """
    _check(id_, last=last, failed=failed, limit=limit, slow=slow, follow=follow)
    if id_ is not None:
        from omnizmq.protocol import check_asked_id

        check_asked_id(id_)
    if failed or slow is not None:
        _list(connect, failed, limit, slow, as_json, perfetto)
        return
    from omnizmq.commands import following

    found = following.follow(id_, connect, as_json=as_json) if follow else _find(id_, connect)
    if found.others:
        where = f" (in {', '.join(found.elsewhere)})"
        click.echo(f"omnizmq trace: {found.others} other request{_bear(found.others)} this id{where}", err=True)
    written = _written(perfetto, [found])
    if as_json or not follow:
        _show(found, as_json=as_json, more=written)


def _find(id_: str | None, connect: str | None) -> Found:
    """In a trace; or, where no trace has a row of it, in a running router."""
    from omnizmq.commands import inspecting
    from omnizmq.errors import NotFoundError
    from omnizmq.trace.finding import unknown

    try:
        return inspecting.seek(id_, connect, inspecting.inspect, inspecting.complain)
    except NotFoundError as error:
        off = untraced(connect)
        raise NotFoundError(unknown(id_, connect) + why(off) if off else error.message) from error


def _check(id_: str | None, *, last: bool, failed: bool, limit: int | None, slow: int | None, follow: bool) -> None:
    """Raises `click.UsageError` for what cannot be meant."""
    meant = [id_ is not None, last, failed, slow is not None]
    if sum(meant) != 1:
        raise click.UsageError("name one request (an ID, or --last), or one list (--failed, or --slow N)")
    if limit is not None and not failed:
        raise click.UsageError("--limit N goes with --failed" + ("" if slow is None else "; --slow has its own N"))
    if follow and (failed or slow is not None):
        raise click.UsageError("--follow shows one request: name an ID, or --last")


def _list(
    connect: str | None, failed: bool, limit: int | None, slow: int | None, as_json: bool, perfetto: Path | None
) -> None:
    from omnizmq.commands import listing
    from omnizmq.errors import NotFoundError

    off = []
    try:
        listed = listing.failed(connect, limit or listing.LIMIT) if slow is None else listing.slow(connect, slow)
    except NotFoundError:  # a deployment that records nothing has no trace
        listed, off = [], untraced(connect)
        if not off:
            raise
    written = _written(perfetto, [one.found for one in listed])
    if as_json:
        click.echo(json.dumps({"requests": listing.documents(listed), **written}, indent=2))
    else:
        where = f" in the trace of {connect}" if connect else ""
        nothing = f"no request {'has failed' if failed else 'is stored'}{where}"
        listing.show(listed, nothing if listed else nothing + why(off or untraced(connect)))


def _written(perfetto: Path | None, requests: Sequence[Found]) -> dict[str, Any]:
    """The file, where one is wanted; and what the document says of it. Where it cannot be written, none is left."""
    if perfetto is None:
        return {}
    import time

    from omnizmq.commands.saving import save
    from omnizmq.trace.perfetto import encode

    names = ", ".join(dict.fromkeys(found.store.name for found in requests))
    now_ns = time.monotonic_ns() if any(found.running for found in requests) else None
    save(perfetto, encode([found.facts for found in requests], deployment=names or "omnizmq", now_ns=now_ns))
    click.echo(f"omnizmq trace: wrote {perfetto}; open it at https://ui.perfetto.dev", err=True)
    return {"perfetto": str(perfetto)}


def _show(found: Found, *, as_json: bool, more: dict[str, Any]) -> None:
    from omnizmq.commands.inspecting import look

    looked = look(found)
    if as_json:
        click.echo(json.dumps(looked.document() | more, indent=2))
        return
    found, summary = looked
    from omnizmq.commands.terminal.view import show
    from omnizmq.trace.timeline import Timeline

    show(summary, Timeline(found.facts), sys.stdout, origin=found.origin, now_ms=found.now_ms(summary))


def _bear(others: int) -> str:
    return "s bear" if others > 1 else " bears"
