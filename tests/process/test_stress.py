"""The data plane under stops and kills, for a short while: `make stress` does the same for long.

What must hold is said in `support.stress`; the seed is printed when a test fails.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pytest
from support.stress import run, visible
from support.stress_content import SOURCE, arrays_of, difference, laid_out
from support.stress_control import RELEASE_EARLY

pytestmark = pytest.mark.usefixtures("no_leaks")

SEED = 7
CHUNKS = 8000
KILLS = 8


def test_w3_f6_chunks_stay_whole_and_nothing_is_left_whoever_dies(home: Path) -> None:
    figures = run(home, seed=SEED, chunks=CHUNKS, kills=KILLS, lives=2, say=print)
    assert figures.problems == [], figures.document()
    assert (figures.corrupt, figures.deadlocks, figures.leaks) == (0, 0, 0)
    assert figures.chunks >= CHUNKS
    assert (figures.worker_kills, figures.router_kills) == (KILLS - 1, 1)
    assert figures.peak_ring_bytes > 0
    assert 0 < figures.released <= figures.chunks


def test_b4_control_a_view_that_is_given_back_early_is_found(home: Path) -> None:
    """The same with engines that release what they still read: it has to go red, or green means nothing."""
    with visible(**{RELEASE_EARLY: "1"}):
        figures = run(home, seed=SEED, chunks=1, kills=0, lives=1, say=print)
    assert figures.corrupt > 0
    assert figures.ends["corrupt"] > 0
    assert any(problem.startswith("CORRUPT at release") for problem in figures.problems), figures.document()
    assert (figures.deadlocks, figures.leaks) == (0, 0)


class TestTheCheckItself:
    """It knows every array again, however it lay in memory, and tells any difference."""

    NUMBERS = range(60)

    @staticmethod
    def arrived(number: int) -> dict[str, np.ndarray]:
        arrays = laid_out(arrays_of("x", SOURCE, number), Random(number))
        arrived = {name: array.astype(array.dtype.newbyteorder("<"), order="C") for name, array in arrays.items()}
        for array in arrived.values():
            array.flags.writeable = False
        return arrived

    def test_it_knows_what_was_sent(self) -> None:
        for number in self.NUMBERS:
            arrived = self.arrived(number)
            assert difference(arrived, "x", SOURCE, number) is None
            tails = {name: array.reshape(-1)[3:] for name, array in arrived.items()}
            assert difference(tails, "x", SOURCE, number, skip=3) is None

    def test_it_tells_one_bit(self) -> None:
        for number in self.NUMBERS:
            arrived = self.arrived(number)
            for name, array in arrived.items():
                changed = array.copy()
                if changed.nbytes:
                    changed.reshape(-1).view(np.uint8)[changed.nbytes // 2] ^= 1
                    changed.flags.writeable = False
                    found = difference({**arrived, name: changed}, "x", SOURCE, number)
                    assert found is not None
                    assert found.startswith(f"array {name} of chunk {number} of source: {array.nbytes} bytes differ")

    def test_it_tells_other_dtypes_shapes_names_and_chunks(self) -> None:
        number = next(number for number in self.NUMBERS if self.arrived(number).get("a0", np.empty(0)).size > 1)
        arrived = self.arrived(number)
        first = arrived["a0"]
        for wrong in (first[..., :-1], first.reshape(1, *first.shape), first.astype(np.complex64), first.copy()):
            assert difference({**arrived, "a0": wrong}, "x", SOURCE, number) is not None
        assert difference({}, "x", SOURCE, number) is not None
        assert difference(arrived, "y", SOURCE, number) is not None
