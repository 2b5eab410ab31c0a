"""Asks a running router, and through it the bound workers, where requests are now (T1).

Within `LIMIT_S`, whatever the router does: one that has been stopped must not keep anybody from the facts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from omnizmq.trace.verdict import Router

LIMIT_S = 1.2
"""For all questions of one call together. The router gives its workers half a second."""

MAX_ASKED = 64
"""So many requests are asked about in one call; of the others the facts must do."""


class Inspected(NamedTuple):
    """The live document of a request, or why there is none."""

    document: dict[str, Any] | None
    router: Router


_UNASKED = Inspected(None, "unasked")


def inspect(name: str, ids: Sequence[str]) -> list[Inspected]:
    """What the router of the running deployment `name` says of these request ids (or external ids), in their order.

    Where it runs and does not answer in time, it is "silent"; where it cannot be asked (it takes no more clients, or is
    of another version), "unasked". Not to be called in an event loop.
    """
    import asyncio

    asked = ids[:MAX_ASKED]
    found = asyncio.run(_inspect(name, asked)) if asked else []
    return found + [_UNASKED] * (len(ids) - len(asked))


async def _inspect(name: str, ids: Sequence[str]) -> list[Inspected]:
    import asyncio

    from omnizmq import AsyncClient
    from omnizmq.errors import OmnizmqError, RouterLostError

    async def ask() -> list[Inspected]:
        async with AsyncClient.connect(name, operator=True) as client:
            documents = await asyncio.gather(*(client.inspect(id_) for id_ in ids))
        return [Inspected(one, "unasked" if one is not None else "unknowing") for one in documents]

    try:
        return await asyncio.wait_for(ask(), LIMIT_S)
    except (TimeoutError, RouterLostError):
        return [Inspected(None, "silent")] * len(ids)
    except OmnizmqError:
        return [_UNASKED] * len(ids)
