"""Measures what the runtime adds to a tiny model of the `transformers` engine: a process a stage beside the same stages
in one.

    python tools/measure_stages.py [--config qwen3_omni_tiny] [--runs 11] [--json]

It takes one to two minutes. Both take turns within one run, so their ratio means something on a busy machine. The model
is tiny and its steps take milliseconds: of a real one the runtime's share is far smaller. Below 1 the processes win,
since they work side by side. Needs the extra `transformers`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import statistics
import tempfile
from pathlib import Path

from measure_embedded import HEAD, Floor, deployed

from omnizmq import AsyncClient, config

PROMPT = "Hello!"


async def measure(name: str, runs: int) -> dict[str, dict[str, float]]:
    """Medians in milliseconds, and the median of the ratios of neighbours."""
    with tempfile.TemporaryDirectory(prefix="oz-") as folder:
        floor = Floor(config.load(name), Path(folder))
        pairs = []
        async with AsyncClient.launch(name) as client:
            for run in range(runs + 1):
                pair = floor.run(PROMPT), await deployed(client, PROMPT)
                pairs += [pair] if run else []  # the first of each warms up
        floor.close()
    return {
        head: {
            "one_process": statistics.median(one[n] for one, _ in pairs),
            "deployment": statistics.median(three[n] for _, three in pairs),
            "ratio": statistics.median(three[n] / one[n] for one, three in pairs),
        }
        for n, head in enumerate(HEAD)
        if not math.isnan(pairs[0][0][n])  # a voice makes no text
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="qwen3_omni_tiny", choices=("qwen3_omni_tiny", "csm_tiny"))
    parser.add_argument("--runs", type=int, default=11)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    measured = asyncio.run(measure(given.config, given.runs))
    if given.json:
        print(json.dumps(measured))
        return
    for head, row in measured.items():
        one, three = f"one process {row['one_process']:8.1f}", f"deployment {row['deployment']:8.1f}"
        print(f"{head:<16} {one}   {three}   x{row['ratio']:.2f}")


if __name__ == "__main__":
    main()
