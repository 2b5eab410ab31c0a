"""Tell the stories of many seeds: `python -m sim.run --seeds 100000 --from 0`, from `tests/`.

Exit status 1 when something did not hold; each such seed is named as it is found.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from sim.fate import Violation
from sim.teller import tell
from sim.telling import failure, without_logs
from sim.world import run

SAY_EVERY_S = 10.0


def run_seeds(seeds: range, *, stop: bool) -> list[tuple[int, Violation]]:
    found: list[tuple[int, Violation]] = []
    said = started = time.monotonic()
    for seed in seeds:
        violation = run(tell(seed))
        if violation is not None:
            found.append((seed, violation))
            sys.stderr.write(failure(seed, violation))
            if stop:
                break
        if time.monotonic() - said > SAY_EVERY_S:
            said = time.monotonic()
            done = seed - seeds.start + 1
            sys.stderr.write(f"{done} seeds, {(said - started) / done * 1000:.1f} ms each, {len(found)} failed\n")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Simulated deployments, one a seed.")
    parser.add_argument("--seeds", type=int, default=100_000)
    parser.add_argument("--from", type=int, default=0, dest="first")
    parser.add_argument("--stop", action="store_true", help="at the first that fails")
    asked = parser.parse_args()
    seeds = range(asked.first, asked.first + asked.seeds)
    started = time.process_time()
    with without_logs():
        found = run_seeds(seeds, stop=asked.stop)
    each_ms = (time.process_time() - started) / max(1, asked.seeds) * 1000
    names = Counter(violation.name for _, violation in found)
    for name, count in names.most_common():
        first = next(seed for seed, violation in found if violation.name == name)
        sys.stdout.write(f"{count} times, first with seed {first}: {name}\n")
    sys.stdout.write(f"{asked.seeds} seeds from {asked.first}, {each_ms:.1f} ms CPU each: {len(found)} failed\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
