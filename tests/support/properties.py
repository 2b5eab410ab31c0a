"""How property tests run here: the same examples each time, so that a red test is red again.

To search further, set OMNIZMQ_EXAMPLES to a factor: the examples are then random, and that many times as many.

`dice` are for tests that make hundreds of choices in an example: one seed makes them all, evenly. (Drawn one by one,
they would be slow, and most examples short and simple: what is rare, or late, would hardly be reached.)
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

T = TypeVar("T")

_FACTOR = int(os.environ.get("OMNIZMQ_EXAMPLES", "0"))


def checked(examples: int) -> Callable[[Any], Any]:
    """Hypothesis' settings for a test of that many examples."""
    return settings(
        max_examples=examples * max(1, _FACTOR),
        derandomize=not _FACTOR,
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
    )


class Dice:
    """Even choices, all from one seed."""

    def __init__(self, seed: bytes) -> None:
        self._seed = seed
        self._random = random.Random(seed)

    def __repr__(self) -> str:
        return f"Dice({self._seed!r})"

    def pick(self, items: Sequence[T]) -> T:
        return self._random.choice(items)

    def shuffled(self, items: Sequence[T]) -> list[T]:
        return self._random.sample(items, len(items))

    def number(self, low: int, high: int) -> int:
        """From low to high, both included."""
        return self._random.randint(low, high)


dice = st.binary(min_size=8, max_size=8).map(Dice)
