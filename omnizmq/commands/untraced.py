"""Which of the running deployments record no facts (`router.trace = false`). Of one that has ended nobody can tell."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from omnizmq.commands import loop

LIMIT_S = 0.9
"""For all of them together."""


def untraced(connect: str | None) -> list[str]:
    """Their names; with `connect` (a name or an endpoint), of that one alone. Whoever does not answer in time is none.

    Not to be called in an event loop.
    """
    from omnizmq.runtime import running

    names = [one.name for one in running() if connect in (None, one.name, one.endpoint)]
    return loop.run(_off(names)) if names else []


def why(names: Sequence[str]) -> str:
    """What to add to a sentence that says that nothing was found; nothing without names."""
    if not names:
        return ""
    return f": tracing is off in deployment{'s' if len(names) > 1 else ''} {', '.join(names)} (router.trace)"


async def _off(names: Sequence[str]) -> list[str]:
    from omnizmq import AsyncClient
    from omnizmq.errors import OmnizmqError

    async def is_off(name: str) -> bool:
        try:
            async with asyncio.timeout(LIMIT_S), AsyncClient.connect(name, operator=True) as client:
                return (await client.status())["trace"].get("on") is False
        except (TimeoutError, OmnizmqError):
            return False

    answers = await asyncio.gather(*map(is_off, names))
    return [name for name, off in zip(names, answers, strict=True) if off]
