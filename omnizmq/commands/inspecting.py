"""Where requests are now: their facts, and what their router and its workers answer (T1, T2).

The router is asked within `LIMIT_S`, whatever it does: one that has been stopped must not keep anybody from the facts.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from omnizmq.commands import loop
from omnizmq.commands.finding import Found, Store, again

if TYPE_CHECKING:
    from omnizmq import AsyncClient
    from omnizmq.trace.verdict import RouterIs

LIMIT_S = 0.9
"""For all questions to one deployment, closing apart. Its router gives workers half a second."""

MAX_ASKED = 64
"""So many requests are asked about in one call; of the others the facts must do."""

WRITTEN_S = 1.0
"""How long the last facts of requests that have just ended may take to be written, all of one call together."""

_POLL_S = 0.05


class Inspected(NamedTuple):
    """The live document of a request, if its router is "answering"; or why there is none."""

    document: dict[str, Any] | None
    router: RouterIs


_UNASKED = Inspected(None, "unasked")


Ask = Callable[[str, Sequence[str]], list[Inspected]]


class Look(NamedTuple):
    """`document`: that of `summarize`; `found` has the facts that it was made of."""

    found: Found
    document: dict[str, Any]


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
    until = time.monotonic() + WRITTEN_S
    return [
        _look(found, answers.get((found.store.name, found.about.request_id), _UNASKED), until) for found in requests
    ]


def _look(found: Found, answer: Inspected, until: float) -> Look:
    from omnizmq.errors import OmnizmqError
    from omnizmq.trace.summary import summarize

    if answer.router == "unknowing":
        found = _written(found, until)
    elif answer is not _UNASKED:
        with suppress(OmnizmqError):  # its trace may hold no row of it
            found = again(found)  # what has happened while it was asked
    router = "lost" if found.lost else answer.router
    document = summarize(found.facts, running=found.running, live=answer.document, router=router)
    return Look(found, document)


def _written(found: Found, until: float) -> Found:
    """Its router holds it no more: with the facts of its end, as soon as they are there."""
    from omnizmq.errors import OmnizmqError

    with suppress(OmnizmqError):  # its trace may have been removed meanwhile
        while (found := again(found)).may_be_live and time.monotonic() < until:
            time.sleep(_POLL_S)
    return found


def held(id_: str, connect: str | None, ask: Ask | None = None) -> Found | None:
    """A request of which no trace has a row, because none could be written or none has been yet, and a router holds."""
    from omnizmq.runtime import running, state_dir
    from omnizmq.trace.database import FILE_NAME
    from omnizmq.trace.store import Traced

    for deployment in running():
        if connect not in (None, deployment.name, deployment.endpoint):
            continue
        document = (ask or inspect)(deployment.name, [id_])[0].document
        if document is not None:
            store = Store(deployment.name, state_dir(deployment.name) / FILE_NAME, deployment.pid)
            about = Traced(document["request_id"], document["external_id"], time.time_ns(), deployment.pid, ended=False)
            return Found(store, about, [])
    return None


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
        return found + [_UNASKED] * (len(ids) - len(asked))

    async def _ask(self, name: str, ids: Sequence[str]) -> list[Inspected]:
        from omnizmq.errors import OmnizmqError, RouterLostError

        try:
            async with asyncio.timeout(LIMIT_S):
                client = await self._client(name)
                documents = await asyncio.gather(*(client.inspect(id_) for id_ in ids))
        except TimeoutError:
            return [Inspected(None, "silent")] * len(ids)
        except OmnizmqError as error:
            if name in self._clients:  # it is of no use any more
                await self._clients.pop(name).close()
            return [Inspected(None, "silent") if isinstance(error, RouterLostError) else _UNASKED] * len(ids)
        return [Inspected(one, "unknowing" if one is None else "answering") for one in documents]

    async def _client(self, name: str) -> AsyncClient:
        from omnizmq import AsyncClient

        if name not in self._clients:
            self._clients[name] = await AsyncClient.connect(name, operator=True).__aenter__()
        return self._clients[name]
