"""Where a request is or was: the document of `omnizmq trace ID --json`, of this deployment."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar

from omnizmq.errors import ConfigError, NotFoundError, RouterLostError
from omnizmq.frontend.client import AsyncClient
from omnizmq.trace.finding import Found, unknown
from omnizmq.trace.looking import ASKING_S, SILENT, UNASKED, Inspected, joined, seek

ANOTHER = "another request"
"""What is said instead of the id of somebody else's request."""

Owns = Callable[[str], bool]
P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger(__name__)


async def trace(client: AsyncClient, id_: str, owns: Owns) -> dict[str, Any]:
    """By its request id, or the newest with this external id. `owns`: whether the caller may read of the request with
    that id. Raises `NotFoundError`, and `RouterLostError` where the router alone could say. Traces are read in threads.
    """
    router = _Router(client)
    found = await _found(router, id_, client.name)
    answer = await router.inspect(found.about.request_id) if found.may_be_live else UNASKED
    if answer.document is not None:
        hide(answer.document, owns)
    look = await asyncio.to_thread(joined, found, answer)
    return look.document()


async def _found(router: _Router, id_: str, name: str) -> Found:
    """`name`: the deployment's."""
    loop = asyncio.get_running_loop()

    def ask(_: str, ids: Sequence[str]) -> list[Inspected]:
        """From the thread that reads."""
        return [asyncio.run_coroutine_threadsafe(router.inspect(asked), loop).result() for asked in ids]

    try:
        return await asyncio.to_thread(seek, id_, name, ask)
    except (NotFoundError, ConfigError) as error:
        told = unknown(id_, name)
        if not await router.traces():
            raise NotFoundError(f"{told}: tracing is off (router.trace)") from error
        if error.message.startswith(told):
            raise
        log.warning("a trace cannot be read: %s", error.message)  # which says where it is: not for callers to know
        raise NotFoundError(f"{told}: its trace cannot be read") from error


class _Router:
    """What is asked of it. Once it has not answered in time it is not asked again, so that nobody waits twice."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._silent = False

    async def inspect(self, id_: str) -> Inspected:
        try:
            return Inspected.of(await self._answer(self._client.inspect, id_))
        except RouterLostError:
            return SILENT

    async def traces(self) -> bool:
        """Whether it records facts. Raises `RouterLostError`."""
        status = await self._answer(self._client.status)
        return bool(status["trace"]["on"])

    async def _answer(self, ask: Callable[P, Awaitable[T]], *about: P.args, **named: P.kwargs) -> T:
        if not self._silent:
            with suppress(TimeoutError):
                async with asyncio.timeout(ASKING_S):
                    return await ask(*about, **named)
            self._silent = True
        raise RouterLostError(f"the router did not answer within {ASKING_S:g} s")


def hide(live: dict[str, Any], owns: Owns) -> None:
    """In a live answer, the names of other callers' requests: those that hold a part of a ring that this one needs."""
    for stage in live["stages"].values():
        for edge in (stage["answer"] or {}).get("edges", ()):
            edge["holders"] = [id_ if owns(id_) else ANOTHER for id_ in edge["holders"]]
