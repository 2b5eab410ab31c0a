"""Tell one story again: `python -m sim.replay SEED [--trace] [--shrink] [--write FILE]`, from `tests/`.

Instead of a seed, a file that `--write` wrote. Exit status 1 when something does not hold.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from sim.shrink import shrink
from sim.story import Story, read, write
from sim.teller import tell
from sim.telling import traced, without_logs
from sim.world import run


def _story(source: str) -> Story:
    return tell(int(source)) if source.isdecimal() else read(Path(source).read_bytes())


def main() -> int:
    parser = argparse.ArgumentParser(description="One simulated deployment.")
    parser.add_argument("story", help="a seed, or a file")
    parser.add_argument("--trace", action="store_true", help="print every event")
    parser.add_argument("--shrink", action="store_true", help="look for a smaller story that fails in the same way")
    parser.add_argument("--write", type=Path, help="write the story to this file")
    asked = parser.parse_args()
    story = _story(asked.story)
    with without_logs():
        violation = run(story)
        if violation is not None and asked.shrink:
            story = shrink(story, violation.name, lambda step: sys.stderr.write(f"{step}\n"))
            sys.stdout.write(write(story).decode() + "\n")
        if asked.trace or asked.shrink:
            violation = traced(story, sys.stdout.write)
    if asked.write is not None:
        asked.write.write_bytes(write(story))
    sys.stdout.write(f"{violation}\n" if violation is not None else "all holds\n")
    return 1 if violation is not None else 0


if __name__ == "__main__":
    sys.exit(main())
