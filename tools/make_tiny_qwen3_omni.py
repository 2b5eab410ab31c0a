"""Writes a tiny Qwen3-Omni with random weights, in the real checkpoint's layout: `python tools/make_tiny_qwen3_omni.py
FOLDER [--seed N]`. Needs the extra `transformers`."""

from __future__ import annotations

import argparse
from pathlib import Path

from omnizmq.workers.engines.qwen3_omni import tiny


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="made if need be; files of the same names are replaced")
    parser.add_argument("--seed", type=int, default=0, help="of the weights (0)")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    tiny.build(given.folder, given.seed)
    size = sum(file.stat().st_size for file in given.folder.iterdir())
    print(f"wrote {given.folder} ({size / 1e6:.1f} MB)")


if __name__ == "__main__":
    main()
