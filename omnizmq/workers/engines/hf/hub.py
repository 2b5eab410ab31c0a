"""Where a model's files are on this machine: a directory, or a hub's name that was downloaded before. No network.

The hub's cache has `models--ORG--NAME/snapshots/REVISION`, and `refs/main` with the revision that is the newest
(https://huggingface.co/docs/huggingface_hub/guides/manage-cache). It lies where the hub's own variables say.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from omnizmq.errors import ModelNotFoundError

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def find(model: str) -> Path:
    """The directory of `model`, a path or a hub's name. Raises `ModelNotFoundError`: it has the command that helps."""
    path = Path(model).expanduser()
    if model and path.is_dir():
        return path
    if not _NAME.fullmatch(model):
        raise ModelNotFoundError(f'model = "{model}": no such directory; it must be that of a checkpoint')
    cache = _cache(os.environ)
    folder = cache / f"models--{model.replace('/', '--')}"
    snapshot = _snapshot(folder)
    if snapshot is None:
        raise ModelNotFoundError(
            f'model = "{model}": neither a directory nor in the hub\'s cache {cache}; '
            f'"hf download {model}" brings it there'
        )
    return snapshot


def _cache(environ: Mapping[str, str]) -> Path:
    if own := environ.get("HF_HUB_CACHE"):
        return Path(own).expanduser()
    if home := environ.get("HF_HOME"):
        return Path(home).expanduser() / "hub"
    return Path(environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "huggingface" / "hub"


def _snapshot(folder: Path) -> Path | None:
    """The revision that `main` is, or the only one."""
    try:
        main = folder / "snapshots" / (folder / "refs" / "main").read_text().strip()
    except OSError:
        there = sorted((folder / "snapshots").glob("*/"))
        return there[0] if len(there) == 1 else None
    return main if main.is_dir() else None
