"""Ten thousand stories, each of a seed of its own: whatever happens to a deployment, the promises of `checks` hold.

`python -m sim.run` tells more; a seed that fails belongs, shrunk, in a test of the core at fault.
"""

from __future__ import annotations

import pytest

from sim.teller import tell
from sim.telling import failure, traced, without_logs
from sim.world import run

SEEDS = 10_000
CHUNK = 1_000


@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_every_story_ends_as_promised(first: int) -> None:
    """C1-C5, A1-A8, B1, B3, F1-F3, I1, P4, R2, S1-S4: see `checks`."""
    with without_logs():
        for seed in range(first, first + CHUNK):
            violation = run(tell(seed))
            assert violation is None, failure(seed, violation)


def test_a_seed_is_always_the_same_run() -> None:
    """To the last event: else no failure could be looked at."""
    for seed in range(20):
        runs: list[list[str]] = []
        for _ in range(2):
            lines: list[str] = []
            with without_logs():
                traced(tell(seed), lines.append)
            runs.append(lines)
        assert runs[0] == runs[1]
