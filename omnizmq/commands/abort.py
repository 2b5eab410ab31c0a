"""`omnizmq abort`: ends a request."""

from __future__ import annotations

import json

import click

from omnizmq.commands import loop, options


@click.command()
@click.argument("id")
@options.connect
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def abort(id: str, connect: str | None, as_json: bool) -> None:
    """End all live requests with the external id ID, or the one with the request id ID.

    An id that is not live is no error: there is nothing to end.
    """
    ended = loop.run(_abort(id, connect))
    if as_json:
        click.echo(json.dumps({"id": id, "aborted": ended}))
    else:
        click.echo(f"ended {ended} request{'' if ended == 1 else 's'}" if ended else f"no live request {id}")


async def _abort(id_: str, connect: str | None) -> int:
    from omnizmq import AsyncClient

    async with AsyncClient.connect(connect, operator=True) as client:
        return await client.abort(id_)
