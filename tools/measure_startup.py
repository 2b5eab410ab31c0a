"""Times what a person waits for at every command: bare Python, `import omnizmq`, `omnizmq --help`, in turns.

    python tools/measure_startup.py [--runs 21]

Prints medians in milliseconds. The design asks for less than 200 ms for the last two.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time

CALLS = {
    "bare python": ["-c", "pass"],
    "import omnizmq": ["-c", "import omnizmq"],
    "omnizmq --help": ["-m", "omnizmq", "--help"],
}


def milliseconds(arguments: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    return (time.perf_counter() - start) * 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=21)
    runs = parser.parse_args().runs
    turns = [{name: milliseconds(arguments) for name, arguments in CALLS.items()} for _ in range(runs)]
    for name in CALLS:
        print(f"{name}: {statistics.median(turn[name] for turn in turns):.0f} ms")


if __name__ == "__main__":
    main()
