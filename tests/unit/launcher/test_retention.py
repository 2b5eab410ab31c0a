"""State directories of deployments that a client started for itself do not pile up."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from omnizmq import runtime
from omnizmq.launcher.retention import KEPT_STATES, prune_own_states
from omnizmq.runtime import RuntimeDir

WEEK_S = 7 * 24 * 3600.0


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return runtime.state_root()


def left(name: str, age_s: float) -> Path:
    """What a deployment of that name left, last written to so long ago."""
    path = runtime.state_dir(name)
    (path / "logs").mkdir()
    (path / "trace.db").touch()
    for entry in (path / "trace.db", path / "logs", path):
        os.utime(entry, (time.time() - age_s,) * 2)
    return path


def names(state: Path) -> set[str]:
    return {path.name for path in state.iterdir()}


def test_old_ones_go_and_named_ones_stay(state: Path) -> None:
    left("own-00000001", WEEK_S + 60)
    left("own-00000002", WEEK_S - 60)
    left("own-service", 10 * WEEK_S)
    left("demo", 10 * WEEK_S)
    prune_own_states(WEEK_S)
    assert names(state) == {"own-00000002", "own-service", "demo"}


def test_of_too_many_the_oldest_go(state: Path) -> None:
    for number in range(KEPT_STATES + 5):
        left(f"own-{number:08x}", 1000.0 - number)
    prune_own_states(WEEK_S)
    assert names(state) == {f"own-{number:08x}" for number in range(5, KEPT_STATES + 5)}


def test_one_is_as_old_as_the_newest_that_lies_in_it(state: Path) -> None:
    path = left("own-00000001", 2 * WEEK_S)
    os.utime(path / "trace.db")
    os.utime(path, (0, 0))
    prune_own_states(WEEK_S)
    assert names(state) == {"own-00000001"}


def test_a_deployment_that_lives_keeps_its_own(state: Path) -> None:
    left("own-00000001", 2 * WEEK_S)
    left("own-00000002", 2 * WEEK_S)
    living = RuntimeDir.create("own-00000001")
    prune_own_states(WEEK_S)
    assert names(state) == {"own-00000001"}
    living.remove()
    prune_own_states(WEEK_S)
    assert names(state) == set()


def test_without_any_state_there_is_nothing_to_do(state: Path) -> None:
    prune_own_states(WEEK_S)
    assert not state.exists()
