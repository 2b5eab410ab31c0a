"""Measures what the runtime adds to the tiny Qwen3-Omni: three processes beside the same stages in one.

    python tools/measure_qwen3_omni.py [--runs 11] [--json]

Both take turns within one run, so their ratio means something on a busy machine. The model is tiny and its steps take
milliseconds: of a real one the runtime's share is far smaller. Below 1 the processes win, since they work side by side.
Needs the extra `transformers`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
from pathlib import Path

from measure_embedded import HEAD, Floor, deployed

from omnizmq import AsyncClient, config

CONFIG = "qwen3_omni_tiny"
PROMPT = "Hello!"


async def measure(runs: int) -> dict[str, dict[str, float]]:
    """Medians in milliseconds, and the median of the ratios of neighbours."""
    with tempfile.TemporaryDirectory(prefix="oz-") as folder:
        floor = Floor(config.load(CONFIG), Path(folder))
        pairs = []
        async with AsyncClient.launch(CONFIG) as client:
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
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=11)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    measured = asyncio.run(measure(given.runs))
    if given.json:
        print(json.dumps(measured))
        return
    for head, row in measured.items():
        one, three = f"one process {row['one_process']:8.1f}", f"deployment {row['deployment']:8.1f}"
        print(f"{head:<16} {one}   {three}   x{row['ratio']:.2f}")


if __name__ == "__main__":
    main()
