"""Stories in which something did not hold once, shrunk: what the simulator has found stays found.

`python -m sim.replay SEED --shrink --write stories/NAME.json` adds one.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.story import read
from sim.telling import without_logs
from sim.world import run

STORIES = sorted((Path(__file__).parent / "stories").glob("*.json"))


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_a_story_that_went_wrong_goes_well(path: Path) -> None:
    with without_logs():
        violation = run(read(path.read_bytes()))
    assert violation is None, violation
