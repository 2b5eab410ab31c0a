"""Writes a tiny model with random weights, in the real checkpoint's layout: `python tools/make_tiny.py csm FOLDER
[--seed N]`. Needs the extra `transformers`."""

from __future__ import annotations

import argparse
from pathlib import Path

from omnizmq.workers.engines.hf.engine import MODELS

NAMES = {model.tiny.removeprefix("tiny-"): model for model in MODELS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=NAMES)
    parser.add_argument("folder", type=Path, help="where a folder of its own is made, unless it is there")
    parser.add_argument("--seed", type=int, default=0, help="of the weights (0)")
    given = parser.parse_args()
    made = NAMES[given.model].make_tiny(given.folder, given.seed)
    size = sum(file.stat().st_size for file in made.iterdir())
    print(f"{made} ({size / 1e6:.1f} MB)")


if __name__ == "__main__":
    main()
