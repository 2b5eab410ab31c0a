"""`omnizmq status`: what a deployment is doing."""

from __future__ import annotations

import json
from typing import Any

import click

from omnizmq.commands import loop, options
from omnizmq.trace.words import duration


@click.command()
@options.connect
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document; with --watch, one a line.")
@click.option("--watch", is_flag=True, help="Go on showing it, until Ctrl-C or until the deployment ends.")
@click.option(
    "--interval", "interval_s", type=click.FloatRange(0.1, 3600), metavar="S", help="Of --watch; default: 1 second."
)
def status(connect: str | None, as_json: bool, watch: bool, interval_s: float | None) -> None:
    """Show a deployment's replicas, requests, queues and counters."""
    if interval_s is not None and interval_s != interval_s:
        raise click.BadParameter("nan is no number of seconds: 0.1 to 3600 was expected", param_hint="--interval")
    if watch:
        from omnizmq.commands import watching

        loop.run(watching.watch(connect, interval_s or watching.INTERVAL_S, as_json=as_json))
    if interval_s is not None:
        raise click.UsageError("--interval S goes with --watch")
    document = loop.run(_ask(connect))
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
    "discarded": "discarded outputs",
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
        f"requests: {counts_of_requests(document)}",
    ]
    lines += [_replica(replica) for stage in document["stages"].values() for replica in stage["replicas"]]
    for ring in document["rings"]:
        used, capacity = ring["used_bytes"] / (1 << 20), ring["capacity_bytes"] / (1 << 20)
        beside = f", and {ring['spilled_bytes'] / (1 << 20):.1f} MiB beside it" if ring["spilled_bytes"] else ""
        lines.append(f"  {ring['edge']:<26} {used:.1f} of {capacity:.0f} MiB of the ring of {ring['replica']}{beside}")
    lines += [*tracing(document.get("trace", {})), *recording(document)]
    return "\n".join([*lines, counted(document)])


def counts_of_requests(document: dict[str, Any]) -> str:
    """As many as it tells of each kind."""
    told = [(document[key], name) for key, name in REQUESTS.items() if key in document]
    return ", ".join(f"{count} {name.removesuffix('s') if count == 1 else name}" for count, name in told)


def silence(replica: dict[str, Any]) -> str:
    """For how long nothing has been heard of a replica that should have told of itself; empty for one that has."""
    return f"SILENT for {duration(replica['heartbeat_age_s'] * 1000)}" if replica.get("silent") else ""


def counted(document: dict[str, Any]) -> str:
    """The counters that are not 0."""
    counts = {name: count for name, count in document["counters"].items() if count}
    return "counters: " + (", ".join(f"{name} {count}" for name, count in counts.items()) or "none yet")


def state_of(replica: dict[str, Any]) -> str:
    """As an operator calls it."""
    state: str = "restarting" if replica["state"] == "starting" and replica["restarts"] else replica["state"]
    return "drained" if state == "draining" and replica.get("drained") else state


def recording(document: dict[str, Any]) -> list[str]:
    """That it has ended, and why; nothing while it goes on, or where there is none."""
    ended = document.get("recording_ended")
    return [f"recording ended: {ended}"] if ended else []


def tracing(trace: dict[str, Any]) -> list[str]:
    """A line about what became of the facts of requests, where there is anything to say."""
    if not trace.get("on", True):
        return ["tracing: off (router.trace)"]
    counted = [f"{trace[key]} {name}" for key, name in TRACING.items() if trace.get(key)]
    failure = [f"the trace cannot be written: {trace['failure']}"] if trace.get("failure") else []
    return ["tracing: " + ", ".join(counted + failure)] if counted or failure else []


def _replica(replica: dict[str, Any]) -> str:
    state = state_of(replica)
    active, bound_to_it = replica.get("active", replica["inflight"]), replica["inflight"]
    bound = f" ({bound_to_it} bound)" if bound_to_it != active else ""
    restarts = f"{replica['restarts']} restart{'' if replica['restarts'] == 1 else 's'}"
    if state == "dead":
        return f"  {replica['id']:<16} {state:<10} {restarts} so far, the next one is due"
    silent = f"{said}, " if (said := silence(replica)) else ""
    return (
        f"  {replica['id']:<16} {state:<10} {silent}{active}/{replica['capacity']} in flight{bound}, "
        f"{replica['engine']} for {replica['engine_s']:.1f} s, pid {replica['pid']}, {restarts}"
    )
