"""`omnizmq drain`: a replica out of service, without losing a request, and back."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from omnizmq.commands import options
from omnizmq.commands.operating import TIMEOUT_S, carry_out

if TYPE_CHECKING:
    from omnizmq import AsyncClient


@click.command()
@click.argument("target", metavar="STAGE/N")
@click.option(
    "--timeout",
    type=click.FloatRange(0),
    metavar="S",
    help=f"How long the requests that it has may take to end; default: {TIMEOUT_S:g}.",
)
@click.option("--undo", is_flag=True, help="Let it take requests again.")
@options.connect
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def drain(target: str, timeout: float | None, undo: bool, connect: str | None, as_json: bool) -> None:
    """Let replica STAGE/N take no new requests, and wait until those that it has have ended.

    Its process goes on, and serves again after `--undo` or a restart. Without another replica of its stage, new
    requests that need the stage are refused as unavailable meanwhile. What has been begun goes on when this command
    ends before.
    """
    if undo and timeout is not None:
        raise click.UsageError("--undo waits for nothing: leave --timeout out")

    async def order(client: AsyncClient) -> None:
        if undo:
            await client.resume(target)
        else:
            await client.drain(target, timeout_s=TIMEOUT_S if timeout is None else timeout)

    document = carry_out("resume" if undo else "drain", target, connect, order)
    if as_json:
        click.echo(json.dumps(document))
    elif undo:
        click.echo(f"{target} takes requests again")
    else:
        click.echo(f"drained {target}: it takes no new requests until `omnizmq drain {target} --undo`")
