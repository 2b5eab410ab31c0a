"""Where requests are now: their facts, and what their router and its workers answer (T1, T2)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

import click

from omnizmq.commands import loop
from omnizmq.commands.untraced import untraced
from omnizmq.errors import OmnizmqError, RouterLostError
from omnizmq.trace import looking
from omnizmq.trace.finding import Complain, Found
from omnizmq.trace.looking import ASKING_S, SILENT, UNASKED, Ask, Inspected, Look, joined

if TYPE_CHECKING:
    from omnizmq import AsyncClient

MAX_ASKED = 64
"""So many requests are asked about in one call; of the others the facts must do."""


def complain(text: str) -> None:
    """On stderr."""
    click.echo(f"omnizmq trace: {text}", err=True)


def look(found: Found, ask: Ask | None = None) -> Look:
    """At one request, now. `ask`: of an `Inspector` that is kept."""
    return look_at([found], ask)[0]


def look_at(requests: Sequence[Found], ask: Ask | None = None) -> list[Look]:
    """At each, in their order; each deployment is asked once."""
    live: dict[str, list[str]] = {}
    for found in requests:
        if found.may_be_live:
            live.setdefault(found.store.name, []).append(found.about.request_id)
    ask = ask or inspect
    answers = {
        (name, id_): answer for name, ids in live.items() for id_, answer in zip(ids, ask(name, ids), strict=True)
    }
    return [joined(found, answers.get((found.store.name, found.about.request_id), UNASKED)) for found in requests]


def seek(id_: str | None, connect: str | None, ask: Ask, complain: Complain) -> Found:
    """As `looking.seek`; of one without facts it says whether its deployment records any."""
    found = looking.seek(id_, connect, ask, complain)
    return found if found.facts else found._replace(traced=found.store.name not in untraced(connect))


def inspect(name: str, ids: Sequence[str]) -> list[Inspected]:
    """As `Inspector.ask`, over a connection of its own."""
    with Inspector() as inspector:
        return inspector.ask(name, ids)


class Inspector:
    """Asks routers, each over one connection, which is kept. Not to be used in an event loop."""

    def __init__(self) -> None:
        self._loop = loop.Loop()
        self._clients: dict[str, AsyncClient] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._loop:
            for client in self._clients.values():
                self._loop.run(client.close())

    def ask(self, name: str, ids: Sequence[str]) -> list[Inspected]:
        """What the router of the running deployment `name` says of these request ids (or external ids), in their order.

        Where it runs and does not answer in time, it is "silent"; where it cannot be asked (it takes no more clients,
        or is of another version), "unasked".
        """
        asked = ids[:MAX_ASKED]
        found = self._loop.run(self._ask(name, asked)) if asked else []
        return found + [UNASKED] * (len(ids) - len(asked))

    async def _ask(self, name: str, ids: Sequence[str]) -> list[Inspected]:
        try:
            async with asyncio.timeout(ASKING_S):
                client = await self._client(name)
                documents = await asyncio.gather(*(client.inspect(id_) for id_ in ids))
        except TimeoutError:
            return [SILENT] * len(ids)
        except OmnizmqError as error:
            if name in self._clients:  # it is of no use any more
                await self._clients.pop(name).close()
            return [SILENT if isinstance(error, RouterLostError) else UNASKED] * len(ids)
        return [Inspected.of(one) for one in documents]

    async def _client(self, name: str) -> AsyncClient:
        from omnizmq import AsyncClient

        if name not in self._clients:
            self._clients[name] = await AsyncClient.connect(name, operator=True).__aenter__()
        return self._clients[name]
