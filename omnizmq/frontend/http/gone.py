"""Work that ends when the caller goes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

Receive = Callable[[], Awaitable[Any]]
T = TypeVar("T")


class CallerGoneError(Exception):
    """Nobody reads any more."""


async def while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The work's result. It is cancelled, and heard to its end, when the caller disconnects: raises `CallerGoneError`.

    The request's body has been read, so that the next message is its end.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
    finally:
        gone.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait((task,))
    if task.cancelled():
        raise CallerGoneError
    return task.result()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
