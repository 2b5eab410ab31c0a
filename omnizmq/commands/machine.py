"""How much memory this machine and its GPUs have, found out without any library of theirs."""

from __future__ import annotations

import functools
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from omnizmq.launcher import visibility

_ASK_TIMEOUT_S = 20
_NVIDIA_SMI = ["nvidia-smi", "--query-gpu=index,uuid,memory.total", "--format=csv,noheader,nounits"]


def memory_of(device: str) -> int | None:
    """Bytes of `"cpu"` (what this process may use) or of a GPU (`"cuda:1"`, a UUID); None: it cannot be found out."""
    if device == "cpu":
        return min([os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), *cgroup_limits()])
    return next((nbytes for index, uuid, nbytes in gpus() if _means(_entry(device), index, uuid)), None)


def identity(device: str) -> str:
    """What two names of one GPU have in common: its UUID, where the driver tells it."""
    entry = _entry(device)
    return next((uuid for index, uuid, _ in gpus() if _means(entry, index, uuid)), entry or device)


def _entry(device: str) -> str | None:
    """The driver's number of a GPU, or the begin of its UUID; None: it is none, or one that is not visible."""
    kind, _, number = device.partition(":")
    if kind != "cuda":
        return device if device.startswith(("GPU-", "MIG-")) else None
    visible = visibility.visible_entries(os.environ)
    if visible is None:
        return str(int(number))
    return visible[int(number)] if int(number) < len(visible) else None


def _means(entry: str | None, index: str, uuid: str) -> bool:
    return entry is not None and (entry == index or uuid.startswith(entry))


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
    stated = [int(has * (1 << 30)) for name, has in stated_gib.items() if identity(name) == identity(device)]
    known = [memory_of(device), *stated]
    return min((nbytes for nbytes in known if nbytes is not None), default=None)
