"""How long the state directories of owned deployments stay: a deployment that a client starts has a name of its own,
so its traces and logs would pile up for ever.

`KEPT_STATES` of them stay at most, and none longer than a launch's `router.trace_max_age_days`. Directories of
deployments that were named are their owner's.
"""

from __future__ import annotations

import re
import shutil
import time
from pathlib import Path

from omnizmq import runtime

KEPT_STATES = 32
_OWN = re.compile(r"own-[0-9a-f]{8}")


def prune_own_states(max_age_s: float) -> None:
    """Remove what ended longest ago. A deployment that lives keeps its directory, however old it is."""
    runtime.running()  # removes what dead deployments left, so that who has a runtime directory lives
    root, alive = runtime.state_root(), runtime.runtime_root()
    found = [path for path in root.glob("own-*") if _OWN.fullmatch(path.name) and path.is_dir()]
    ended = [path for path in found if not (alive / path.name).exists()]
    ended.sort(key=_last_used, reverse=True)
    oldest = time.time() - max_age_s
    for number, path in enumerate(ended):
        if number >= KEPT_STATES or _last_used(path) < oldest:
            shutil.rmtree(path, ignore_errors=True)


def _last_used(path: Path) -> float:
    """Wall clock, seconds since the epoch: the newest of what lies in it. 0: another launch has just removed it."""
    try:
        return max(path.lstat().st_mtime, *(entry.lstat().st_mtime for entry in path.iterdir()), 0.0)
    except FileNotFoundError:
        return 0.0
