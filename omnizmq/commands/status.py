"""`omnizmq status`: what a deployment is doing."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import click

from omnizmq.commands.failure import one_document


@click.command()
@click.option("--connect", metavar="NAME", help="The deployment's name or endpoint; default: the only one.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def status(connect: str | None, as_json: bool) -> None:
    """Show a deployment's replicas, requests, queues and counters."""
    with one_document(as_json):
        document = asyncio.run(_ask(connect))
    click.echo(json.dumps(document, indent=2) if as_json else _render(document))


async def _ask(connect: str | None) -> dict[str, Any]:
    from omnizmq import AsyncClient

    async with AsyncClient.connect(connect) as client:
        return await client.status()


def _render(document: dict[str, Any]) -> str:
    lines = [
        f"{document['name']}: {document['state']}, {'ready' if document['ready'] else 'not ready'}",
        f"requests: {document['live_requests']} live, {document['queued']} queued, {document['bindings']} bindings, "
        f"{document['leftovers']} leftovers",
    ]
    for stage in document["stages"].values():
        for replica in stage["replicas"]:
            lines.append(
                f"  {replica['id']:<16} {replica['state']:<9} {replica['inflight']}/{replica['capacity']} in flight, "
                f"{replica['engine']} for {replica['engine_s']:.1f} s, pid {replica['pid']}, "
                f"{replica['restarts']} restarts"
            )
    for ring in document["rings"]:
        used, capacity = ring["used_bytes"] / (1 << 20), ring["capacity_bytes"] / (1 << 20)
        beside = f", and {ring['spilled_bytes'] / (1 << 20):.1f} MiB beside it" if ring["spilled_bytes"] else ""
        lines.append(f"  {ring['edge']:<26} {used:.1f} of {capacity:.0f} MiB of the ring of {ring['replica']}{beside}")
    counted = {name: count for name, count in document["counters"].items() if count}
    lines.append("counters: " + (", ".join(f"{name} {count}" for name, count in counted.items()) or "none yet"))
    return "\n".join(lines)
