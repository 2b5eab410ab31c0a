"""How a command runs what it asks a deployment: as `asyncio.run` does, and an interrupt is one at any moment."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from omnizmq import interrupts

T = TypeVar("T")


def run(call: Coroutine[Any, Any, T]) -> T:
    """What it returns or raises; `KeyboardInterrupt` where it was interrupted, also while it failed by itself."""
    with Loop() as loop:
        return loop.run(call)


class Loop:
    """For several calls, one after another. What one of them has begun goes on in the next."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._runner.close()

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        """As the function does."""
        main = _interruptible(call)
        ours = interrupts.leave_to_asyncio()
        try:
            return self._runner.run(main)
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
