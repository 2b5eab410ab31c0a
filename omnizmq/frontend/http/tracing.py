"""Where a request is or was: the document of `omnizmq trace ID --json`, of this deployment."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from omnizmq.errors import NotFoundError, RouterLostError
from omnizmq.frontend.client import AsyncClient
from omnizmq.trace.finding import Found, unknown
from omnizmq.trace.looking import ASKING_S, SILENT, UNASKED, Inspected, joined, seek

ANOTHER = "another request"
"""What is said instead of the id of somebody else's request."""

Owns = Callable[[str], bool]


async def trace(client: AsyncClient, id_: str, owns: Owns) -> dict[str, Any]:
    """By its request id, or the newest with this external id. `owns`: whether the caller may read of the request with
    that id. Raises `NotFoundError`. Traces are read in threads."""
    found = await _found(client, id_)
    answer = await _ask(client, found.about.request_id) if found.may_be_live else UNASKED
    if answer.document is not None:
        hide(answer.document, owns)
    look = await asyncio.to_thread(joined, found, answer)
    return look.document()


async def _found(client: AsyncClient, id_: str) -> Found:
    loop = asyncio.get_running_loop()

    def ask(_: str, ids: Sequence[str]) -> list[Inspected]:
        """From the thread that reads."""
        return [asyncio.run_coroutine_threadsafe(_ask(client, asked), loop).result() for asked in ids]

    try:
        return await asyncio.to_thread(seek, id_, client.name, ask)
    except NotFoundError as error:
        if (await client.status())["trace"]["on"]:
            raise
        # Where there is no trace, the error says where one would be: not for others to know.
        raise NotFoundError(f"{unknown(id_, client.name)}: tracing is off (router.trace)") from error


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
