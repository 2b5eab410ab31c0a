"""What `omnizmq restart` and `omnizmq drain` share: an order to the router, and what can be seen of it meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import click

from omnizmq.commands import loop

if TYPE_CHECKING:
    from omnizmq import AsyncClient

POLL_S = 0.5
TIMEOUT_S = 30.0
"""How long the requests of a replica may take to end, unless the operator says otherwise."""

SHOWN = ("id", "pid", "state", "restarts")

Order = Callable[["AsyncClient"], Awaitable[None]]


def carry_out(action: str, target: str, connect: str | None, order: Order) -> dict[str, Any]:
    """The document of the command with `--json`. What changes at the target's replicas is said on stderr meanwhile.

    Raises the `OmnizmqError` that the router answers, or that it is gone.
    """
    start = time.monotonic()
    replicas = loop.run(_watched(target, connect, order))
    shown = [{key: replica[key] for key in SHOWN} for replica in replicas]
    return {"action": action, "target": target, "replicas": shown, "seconds": round(time.monotonic() - start, 3)}


async def _watched(target: str, connect: str | None, order: Order) -> list[dict[str, Any]]:
    """The target's replicas as they are when the order has been carried out."""
    from omnizmq import AsyncClient

    async with AsyncClient.connect(connect, operator=True) as client:
        changes = Changes(replicas_of(await client.status(), target))
        doing = asyncio.ensure_future(order(client))
        await asyncio.sleep(0)  # the order goes first, so that what it begins is seen at once
        try:
            while True:
                done = doing.done()
                replicas = replicas_of(await client.status(), target)
                for line in changes.to(replicas):
                    click.echo(line, err=True)
                if done:
                    await doing
                    return replicas
                await asyncio.wait([doing], timeout=POLL_S)
        finally:
            doing.cancel()
            await asyncio.gather(doing, return_exceptions=True)


def replicas_of(document: dict[str, Any], target: str) -> list[dict[str, Any]]:
    """What `status` says of the replicas of a stage, or of the one that is named; an unknown target has none."""
    stage = document["stages"].get(target.partition("/")[0], {"replicas": []})
    return [replica for replica in stage["replicas"] if "/" not in target or replica["id"] == target]


class Changes:
    """What happens to replicas, seen from one `status` to the next; each thing is said once."""

    def __init__(self, replicas: list[dict[str, Any]]) -> None:
        self._known = {replica["id"]: _seen(replica) for replica in replicas}

    def to(self, replicas: list[dict[str, Any]]) -> list[str]:
        """A line for each replica that is not as it was."""
        lines = []
        for replica in replicas:
            seen = _seen(replica)
            if self._known.get(replica["id"]) != seen:
                self._known[replica["id"]] = seen
                lines.append(f"{replica['id']}: {seen[0]}")
        return lines


def _seen(replica: dict[str, Any]) -> tuple[str, int]:
    """What it does, and in which of its processes: two that are ready are not the same."""
    match replica["state"]:
        case "draining":
            left = replica.get("registered", replica["inflight"])
            what = f"draining, {left} request{'' if left == 1 else 's'} left"
        case "starting":
            what = "loading"
        case "dead":
            what = "ended"
        case state:
            what = str(state)
    return what, replica["incarnation"]
