"""Options about recordings that would have no effect are refused; a scenario is written whole, or not at all."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest

from omnizmq.commands.launch import launch
from omnizmq.commands.replay import replay

SCENARIO = Path(__file__).parents[2] / "scenarios" / "text_and_audio.jsonl"


def test_a_size_without_a_recording_is_refused() -> None:
    with pytest.raises(click.UsageError, match="--record-max-mib 5 goes with --record FILE: nothing is recorded"):
        launch.main(["--config", "synthetic", "--record-max-mib", "5"], standalone_mode=False)


@pytest.mark.parametrize("others", [[], ["--json"], ["--show", "1"], ["--until", "3"]])
def test_a_request_that_selects_nothing_is_refused(others: list[str]) -> None:
    with pytest.raises(click.UsageError, match="--request one goes with --commands or --scenario OUT"):
        replay.main([str(SCENARIO), "--request", "one", *others], standalone_mode=False)


SMALL_DISK = """
import resource, sys
from omnizmq import cli
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
sys.argv = ["omnizmq", "replay", sys.argv[1], "--scenario", sys.argv[2]]
cli.main()
"""


def test_a_full_disk_costs_no_scenario_that_was_there(tmp_path: Path) -> None:
    made = tmp_path / "made.jsonl"
    made.write_bytes(SCENARIO.read_bytes())
    done = subprocess.run(
        [sys.executable, "-c", SMALL_DISK, str(made), str(made)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert f"{made} cannot be written: File too large" in done.stderr
    assert made.read_bytes() == SCENARIO.read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == ["made.jsonl"]
