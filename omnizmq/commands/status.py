"""`omnizmq status`: what a deployment is doing."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import click

from omnizmq.commands import options


@click.command()
@options.connect
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def status(connect: str | None, as_json: bool) -> None:
    """Show a deployment's replicas, requests, queues and counters."""
    document = asyncio.run(_ask(connect))
    click.echo(json.dumps(document, indent=2) if as_json else _render(document))


async def _ask(connect: str | None) -> dict[str, Any]:
    from omnizmq import AsyncClient

    async with AsyncClient.connect(connect, operator=True) as client:
        return await client.status()


REQUESTS = {
    "live_requests": "live",
    "queued": "queued",
    "paused": "paused",
    "bindings": "bindings",
    "leftovers": "leftovers",
    "discarded": "outputs discarded",
}
"""Keys of the document, and what their counts are called."""

TRACING = {
    "rows_dropped": "facts not stored",
    "spans_exported": "spans exported",
    "spans_dropped": "spans dropped",
}
"""Of its `trace`."""


def _render(document: dict[str, Any]) -> str:
    lines = [
        f"{document['name']}: {document['state']}, {'ready' if document['ready'] else 'not ready'}",
        "requests: " + ", ".join(f"{document[key]} {name}" for key, name in REQUESTS.items() if key in document),
    ]
    lines += [_replica(replica) for stage in document["stages"].values() for replica in stage["replicas"]]
    for ring in document["rings"]:
        used, capacity = ring["used_bytes"] / (1 << 20), ring["capacity_bytes"] / (1 << 20)
        beside = f", and {ring['spilled_bytes'] / (1 << 20):.1f} MiB beside it" if ring["spilled_bytes"] else ""
        lines.append(f"  {ring['edge']:<26} {used:.1f} of {capacity:.0f} MiB of the ring of {ring['replica']}{beside}")
    lines += _tracing(document.get("trace", {}))
    counted = {name: count for name, count in document["counters"].items() if count}
    lines.append("counters: " + (", ".join(f"{name} {count}" for name, count in counted.items()) or "none yet"))
    return "\n".join(lines)


def _tracing(trace: dict[str, Any]) -> list[str]:
    """A line about what became of the facts of requests, where there is anything to say."""
    counted = [f"{trace[key]} {name}" for key, name in TRACING.items() if trace.get(key)]
    failure = [f"the trace cannot be written: {trace['failure']}"] if trace.get("failure") else []
    return ["tracing: " + ", ".join(counted + failure)] if counted or failure else []


def _replica(replica: dict[str, Any]) -> str:
    state = "restarting" if replica["state"] == "starting" and replica["restarts"] else replica["state"]
    state = "drained" if state == "draining" and replica.get("drained") else state
    active = replica.get("active", replica["inflight"])
    registered = replica.get("registered", replica["inflight"])
    bound = f" ({registered} bound)" if registered != active else ""
    restarts = f"{replica['restarts']} restart{'' if replica['restarts'] == 1 else 's'}"
    if state == "dead":
        return f"  {replica['id']:<16} {state:<10} {restarts} so far, the next one is due"
    return (
        f"  {replica['id']:<16} {state:<10} {active}/{replica['capacity']} in flight{bound}, "
        f"{replica['engine']} for {replica['engine_s']:.1f} s, pid {replica['pid']}, {restarts}"
    )
