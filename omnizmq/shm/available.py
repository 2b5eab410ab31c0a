"""How much memory may still be allocated, and what limits it.

Shared memory in an anonymous file has no limit of its own: who asks for too much is not refused, the kernel kills a
process. So this is asked first. The smallest counts of what the machine has available and what each control group
(version 1 or 2) that this process is in leaves to it, file cache that can be given back not counted as used.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")
_UNLIMITED = 1 << 60


class _Version(NamedTuple):
    """The names of the files of a memory control group."""

    limit: str
    usage: str
    cache: tuple[str, ...]


_V1 = _Version("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_active_file", "total_inactive_file"))
_V2 = _Version("memory.max", "memory.current", ("active_file", "inactive_file"))


def available_bytes(proc: Path = PROC) -> tuple[int, str]:
    """Bytes that may still be allocated, and what limits them, in words. `proc` is where procfs is mounted."""
    rooms = [(room, "this machine") for room in _fields(proc / "meminfo", "MemAvailable:", unit=1024).values()]
    rooms += [
        (room, f"its control group ({version.limit} of {directory})")
        for version, directory in _groups(proc)
        if (room := _room(version, directory)) is not None
    ]
    if not rooms:
        return 0, f"{proc}/meminfo, which cannot be read"
    room, what = min(rooms)
    return max(room, 0), what


def _room(version: _Version, directory: Path) -> int | None:
    limit = _text(directory / version.limit).strip()
    if not limit.isdecimal() or int(limit) >= _UNLIMITED:  # "max", or the root group, which has no such file
        return None
    usage = _text(directory / version.usage).strip()
    if not usage.isdecimal():
        return None
    cache = sum(_fields(directory / "memory.stat", *version.cache).values())
    return int(limit) - max(int(usage) - cache, 0)


@cache
def _groups(proc: Path) -> tuple[tuple[_Version, Path], ...]:
    """The memory control group of this process and its ancestors, as far as they are mounted. Looked up once."""
    return tuple(_find_groups(proc))


def _find_groups(proc: Path) -> Iterator[tuple[_Version, Path]]:
    mounts = list(_mounts(proc))
    for line in _text(proc / "self/cgroup").splitlines():
        number, controllers, path = line.split(":", 2)
        if number != "0" and "memory" not in controllers.split(","):
            continue
        version = _V2 if number == "0" else _V1
        for mounted, root, point in mounts:
            if mounted is version:
                yield from ((version, directory) for directory in _upwards(path, root, point))


def _upwards(path: str, root: str, point: Path) -> Iterator[Path]:
    """The directories of the group `path` and its ancestors below the mount of the group `root` at `point`.

    A container may see a path of the host that is not below its mount; then the mount itself is its group.
    """
    inside = Path(path).is_relative_to(root) and ".." not in Path(path).parts
    directory = point / Path(path).relative_to(root) if inside else point
    while directory != point:
        yield directory
        directory = directory.parent
    yield point


def _mounts(proc: Path) -> Iterator[tuple[_Version, str, Path]]:
    """Version, the group that is mounted, and where, of each mount that has memory control groups."""
    for line in _text(proc / "self/mountinfo").splitlines():
        mount, _, source = line.partition(" - ")
        kind, *_, options = source.split(" ")
        root, point = (_unescaped(name) for name in mount.split(" ")[3:5])
        if kind == "cgroup2":
            yield _V2, root, Path(point)
        elif kind == "cgroup" and "memory" in options.split(","):
            yield _V1, root, Path(point)


def _unescaped(name: str) -> str:
    """Spaces and the like are octal in mountinfo."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), name)


def _fields(file: Path, *names: str, unit: int = 1) -> dict[str, int]:
    """The named lines `name value …` of a file, in bytes; what is not there is left out."""
    rows = (line.split() for line in _text(file).splitlines())
    return {row[0]: int(row[1]) * unit for row in rows if len(row) > 1 and row[0] in names}


def _text(file: Path) -> str:
    """A file's content; nothing, where there is no such file here."""
    try:
        return file.read_text()
    except OSError:
        return ""
