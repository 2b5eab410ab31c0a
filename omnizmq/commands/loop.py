"""How a command runs what it asks a deployment: `asyncio.run`, and an interrupt is an interrupt at any moment."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Coroutine
from typing import Any, TypeVar

from omnizmq import interrupts

T = TypeVar("T")


def run(call: Coroutine[Any, Any, T]) -> T:
    """What it returns or raises; `KeyboardInterrupt` where it was interrupted, also while it failed by itself."""
    main = _interruptible(call)
    ours = interrupts.leave_to_asyncio()
    try:
        return asyncio.run(main)
    finally:
        if ours:
            interrupts.take_back()
        for coroutine in (main, call):
            if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:  # the interrupt was first
                coroutine.close()


async def _interruptible(call: Coroutine[Any, Any, T]) -> T:
    try:
        return await call
    except Exception:
        await asyncio.sleep(0)  # an interrupt that came while nothing was awaited is raised here
        raise
