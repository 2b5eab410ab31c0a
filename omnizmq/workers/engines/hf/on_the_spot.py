"""Random checkpoints that are made where they are needed, once, by whichever process comes first."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from omnizmq.workers.engines.hf.locked import locked


def ensure(folder: Path, name: str, seed: int, build: Callable[[Path, int], None]) -> Path:
    """`folder`/`name`, built unless it is there. Processes may call this side by side."""
    made = folder / name
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / f".{name}.lock"):
        if not made.exists():
            building = Path(tempfile.mkdtemp(prefix=".building-", dir=folder))
            try:
                build(building, seed)
                building.rename(made)
            finally:
                shutil.rmtree(building, ignore_errors=True)
    return made
