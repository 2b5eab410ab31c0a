"""The stress of the data plane: real deployments, one after another, in which processes are stopped and killed.

    cd tests && python -m support.stress --chunks 100000 --kills 100 --seed 7

Every life of a deployment has its own windows, ring sizes, edge modes and replicas; every second one ends by a kill of
its router. What must hold in the end: no chunk was corrupt, on arrival or when its views were let go; every request had
one end within a limit, and a good one unless a kill met it; then all tables were empty, no byte of a ring was in use,
nobody held more descriptors than before; nothing was left behind. The first life in which something does not hold is
the last. The seed decides what is asked and whom a fault strikes; the machine decides when.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from support.stress_figures import Figures
from support.stress_life import Life, Share

PLUGIN = Path(__file__).with_name("stress_plugin")


def run(home: Path, *, seed: int, chunks: int, kills: int, lives: int, say: Callable[[str], object]) -> Figures:
    """So many chunks and kills, in so many lives, or more. `home` is where runtime and state directories are."""
    figures = Figures(seed)
    started = time.monotonic()
    with visible():
        while not figures.problems and (figures.lives < lives or figures.chunks < chunks or figures.kills < kills):
            left = max(1, lives - figures.lives)
            share = Share(-(-(chunks - figures.chunks) // left), -(-(kills - figures.kills) // left))
            figures.lives += 1
            Life(home, figures, share, ends_by_kill=figures.lives % 2 == 0).run()
            figures.seconds = time.monotonic() - started
            say(json.dumps(figures.document(), ensure_ascii=False))
    return figures


@contextmanager
def visible(**more: str) -> Iterator[None]:
    """Workers that are started in here find the engines of `stress_plugin`. `more` are environment variables."""
    paths = [str(PLUGIN), str(PLUGIN.parent.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    with patch.dict(os.environ, {"PYTHONPATH": os.pathsep.join(paths), **more}):
        yield


def main() -> int:
    """0: all was well. Figures so far go to stderr after each life, the last ones to stdout."""
    parser = argparse.ArgumentParser(description="Stress of the data plane; prints one JSON document at its end.")
    parser.add_argument("--chunks", type=int, default=100_000, help="that arrive and are verified, at least")
    parser.add_argument("--kills", type=int, default=100, help="of workers and routers, at least")
    parser.add_argument("--lives", type=int, default=8, help="deployments, at least")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    asked = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="oz-"))
    (home / "run").mkdir(mode=0o700)
    sys.stderr.write(f"seed {asked.seed}, in {home}\n")
    with patch.dict(os.environ, {"XDG_RUNTIME_DIR": str(home / "run"), "XDG_STATE_HOME": str(home / "state")}):
        figures = run(home, **vars(asked), say=lambda text: sys.stderr.write(text + "\n"))
    sys.stdout.write(json.dumps(figures.document(), indent=2, ensure_ascii=False) + "\n")
    if figures.problems:
        sys.stderr.write(f"failed; logs, configurations and counts are in {home}\n")
        return 1
    sys.stderr.write("passed: nothing corrupt, nothing stuck, nothing left behind\n")
    shutil.rmtree(home)
    return 0


if __name__ == "__main__":
    sys.exit(main())
