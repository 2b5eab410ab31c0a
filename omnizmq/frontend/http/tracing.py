"""Where a request is or was: the document of `omnizmq trace ID --json`, of this deployment."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from omnizmq.errors import NotFoundError, RouterLostError
from omnizmq.frontend.client import AsyncClient
from omnizmq.trace.finding import Found, find, stores, unknown
from omnizmq.trace.looking import ASKING_S, ENDS_WRITTEN_S, SILENT, UNASKED, Inspected, joined, unwritten

ANOTHER = "another request"
"""What is said instead of the id of somebody else's request."""

_POLL_S = 0.1

Owns = Callable[[str], bool]


async def trace(client: AsyncClient, id_: str, owns: Owns, *, made: bool) -> dict[str, Any]:
    """By its request id, or the newest with this external id. `owns`: whether the caller may read of the request with
    that id; `made`: it was asked here, so that its first facts are waited for. Raises `NotFoundError`. Traces are read
    in threads."""
    found, answer = await _found(client, id_, time.monotonic() + ENDS_WRITTEN_S if made else 0.0)
    if answer.document is not None:
        hide(answer.document, owns)
    look = await asyncio.to_thread(joined, found, answer, time.monotonic() + ENDS_WRITTEN_S)
    return look.document()


async def _found(client: AsyncClient, id_: str, until: float) -> tuple[Found, Inspected]:
    """Facts are written some time after they have happened: what is not on disk yet the router may hold, and what it
    holds no more is on disk before `until`."""
    while True:
        try:
            found = await asyncio.to_thread(find, id_, client.name)
        except NotFoundError as error:
            answer = await _ask(client, id_)
            if answer.document is not None:
                (store,) = await asyncio.to_thread(stores, client.name)
                return unwritten(store, answer.document), answer
            off = not (await client.status())["trace"]["on"]
            if off:  # where there is no trace, the error says where one would be: not for others to know
                raise NotFoundError(f"{unknown(id_, client.name)}: tracing is off (router.trace)") from error
            if time.monotonic() >= until:
                raise
            await asyncio.sleep(_POLL_S)
        else:
            return found, await _ask(client, found.about.request_id) if found.may_be_live else UNASKED


async def _ask(client: AsyncClient, id_: str) -> Inspected:
    try:
        async with asyncio.timeout(ASKING_S):
            return Inspected.of(await client.inspect(id_))
    except (TimeoutError, RouterLostError):
        return SILENT


def hide(live: dict[str, Any], owns: Owns) -> None:
    """In a live answer, the names of other callers' requests: those that hold a part of a ring that this one needs."""
    for stage in live["stages"].values():
        for edge in (stage["answer"] or {}).get("edges", ()):
            edge["holders"] = [id_ if owns(id_) else ANOTHER for id_ in edge["holders"]]
