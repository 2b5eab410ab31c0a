"""What a recording costs the router: its CPU for an output, beside the same deployment without one.

    python tools/bench/record.py [--turns 5] [--json]

User and system time of the router's whole process for each output, at 1 request with an output every 2 ms and at 64
every 20 ms, as in `hop.py`; two deployments, in turns. `bytes` are those of the recording for each output. A minute.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from common import deployment, directories, median, print_report, turns
from hop import CONFIG, LOADS, Load, Routed, Turn


def measure(n: int) -> dict[str, Any]:
    loop = asyncio.new_event_loop()
    with ExitStack() as stack:
        stack.callback(loop.close)
        stack.enter_context(directories())
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ozb-")))
        config = directory / "hop.toml"
        config.write_text(CONFIG)
        rows = {f"{load.requests} at once": _row(loop, config, load, n) for load in LOADS.values()}
    return {
        "bench": "record",
        "turns": n,
        "figures": rows,
        "verdicts": [f"router CPU an output with a recording, {load}: {row['ratio']} x" for load, row in rows.items()],
    }


def _row(loop: asyncio.AbstractEventLoop, config: Path, load: Load, n: int) -> dict[str, float]:
    recording = config.parent / f"{load.requests}.jsonl"
    sets = [f"stage.speaker.options.outputs={load.outputs}", f"stage.speaker.options.interval_ms={load.interval_ms}"]
    with ExitStack() as stack:
        opponents: dict[str, Callable[[], Turn]] = {}
        for name, options in (("plain", ()), ("recorded", ("--record", str(recording)))):
            ready = stack.enter_context(deployment(config, *sets, options=("--name", name, *options)))
            routed = Routed(loop, ready["pid"], ready["name"])
            stack.callback(routed.close)
            opponents[name] = partial(routed.turn, load)
        turns(opponents, 1)  # warm
        found = turns(opponents, n)
    cpu = {name: median([turn.cpu_ns for turn in of]) / 1000 for name, of in found.items()}
    return {
        "plain_cpu_us": round(cpu["plain"], 2),
        "recorded_cpu_us": round(cpu["recorded"], 2),
        "ratio": round(cpu["recorded"] / cpu["plain"], 2),
        "bytes": round(recording.stat().st_size / ((n + 1) * load.requests * load.outputs)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="the document alone, without the verdict lines")
    args = parser.parse_args()
    print_report(measure(args.turns), as_json=args.json)


if __name__ == "__main__":
    main()
