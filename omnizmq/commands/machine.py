"""How much memory this machine and its GPUs have, found out without any library of theirs."""

from __future__ import annotations

import functools
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

_ASK_TIMEOUT_S = 20
_NVIDIA_SMI = ["nvidia-smi", "--query-gpu=index,uuid,memory.total", "--format=csv,noheader,nounits"]


def memory_of(device: str) -> int | None:
    """Bytes of `"cpu"` (what this process may use) or of a GPU such as `"cuda:1"`; None: it cannot be found out."""
    if device == "cpu":
        return min([os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), *cgroup_limits()])
    kind, _, number = device.partition(":")
    return _gpu(int(number or 0)) if kind == "cuda" else None


def cgroup_limits(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> Iterator[int]:
    """Of the process's control group and all above it, by either version of them; none of one without a limit."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        base, name = (root, "memory.max") if not controllers else (root / "memory", "memory.limit_in_bytes")
        folder = base / path.lstrip("/")
        for group in (folder, *folder.parents):
            if group.is_relative_to(base):
                yield from _limit(group / name)


def _limit(file: Path) -> Iterator[int]:
    try:
        text = file.read_text().strip()
    except OSError:
        return
    if text.isdecimal():
        yield int(text)


def _gpu(number: int) -> int | None:
    """As `cuda:NUMBER` is counted: among those that `CUDA_VISIBLE_DEVICES` names, by index or the begin of a UUID."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = [str(number)] if visible is None else [name.strip() for name in visible.split(",")][number:]
    if visible is None or names:
        for index, uuid, nbytes in gpus():
            if names[0] == index or (names[0] and uuid.startswith(names[0])):
                return nbytes
    return None


@functools.cache
def gpus() -> list[tuple[str, str, int]]:
    """Index, UUID and bytes of each that the driver lists; none without its tool."""
    try:
        done = subprocess.run(_NVIDIA_SMI, capture_output=True, text=True, timeout=_ASK_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    rows = [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines()]
    return [(row[0], row[1], int(row[2]) << 20) for row in rows if len(row) == 3 and row[2].isdecimal()]


def usable(device: str, stated_gib: Mapping[str, float]) -> int | None:
    """The lesser of what is found and what the configuration states; None: neither is known."""
    known = [memory_of(device)]
    if device in stated_gib:
        known.append(int(stated_gib[device] * (1 << 30)))
    return min((nbytes for nbytes in known if nbytes is not None), default=None)
