"""`omnizmq restart`: new processes for a stage, without losing a request."""

from __future__ import annotations

import json

import click

from omnizmq.commands import options
from omnizmq.commands.operating import TIMEOUT_S, carry_out


@click.command()
@click.argument("target", metavar="STAGE[/N]")
@click.option(
    "--timeout",
    type=click.FloatRange(0),
    default=TIMEOUT_S,
    show_default=True,
    metavar="S",
    help="How long the requests of a replica may take to end.",
)
@click.option("--force", is_flag=True, help="End there what has not ended by then; it is driven anew where it can be.")
@options.connect
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def restart(target: str, timeout: float, force: bool, connect: str | None, as_json: bool) -> None:
    """Replace the process of each replica of STAGE, one after the other, or that of replica STAGE/N alone.

    A replica takes no new requests, the requests that it has end, its process ends, and another one is ready before
    the next replica goes; meanwhile requests wait for it. A request that has not ended in time stops the restart, and
    loses nothing by it. What has been begun goes on when this command ends before.
    """
    document = carry_out(
        "restart", target, connect, lambda client: client.restart(target, timeout_s=timeout, force=force)
    )
    if as_json:
        click.echo(json.dumps(document))
    else:
        replicas = ", ".join(f"{replica['id']} (pid {replica['pid']})" for replica in document["replicas"])
        click.echo(f"restarted {replicas} in {document['seconds']:.1f} s")
