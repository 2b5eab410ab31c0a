"""The files of an open trace, as its writer left them: whether somebody else has removed, truncated or replaced one.

SQLite holds them open and does not notice: it would go on writing where no reader looks. Looks by `stat` alone: to open
and close the database's file would drop the locks that this process holds on it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple


class Harm(NamedTuple):
    """What was done to which file. `of_database`: to the database itself, not to one of its companions."""

    text: str
    of_database: bool
    in_place: bool


class Files:
    """The database at `path`, and with `wal` its write-ahead log and the index of that, shared by all its readers."""

    def __init__(self, path: Path, *, wal: bool) -> None:
        """Raises `OSError` where one is missing."""
        self._database = path
        self._index = companion(path, "-shm")
        followed = (path, companion(path, "-wal"), self._index) if wal else (path,)
        self._left = {one: one.stat() for one in followed}

    def remember(self) -> None:
        """As they are now, after what the writer itself has done to them, is right."""
        for path, left in self._left.items():
            now = _stat(path)
            if now is not None and _is_same(now, left):
                self._left[path] = now

    def harm(self) -> Harm | None:
        """What somebody else has done since; None: nothing."""
        for path, left in self._left.items():
            now = _stat(path)
            if now is None:
                what = "was removed"
            elif not _is_same(now, left):
                what = "was replaced"
            elif now.st_size < left.st_size or (now.st_size > left.st_size and path != self._index):
                what = "was truncated" if now.st_size < left.st_size else "was overwritten"
            else:
                continue
            return Harm(f"{path.name} {what}", path == self._database, now is not None and _is_same(now, left))
        return None

    def restore_index(self) -> None:
        """Give it its length back: to touch memory beyond a file's end kills the process. Raises `OSError`.

        SQLite sees that it is empty, and makes it anew from the log.
        """
        left, now = self._left.get(self._index), _stat(self._index)
        if left is not None and now is not None and _is_same(now, left) and now.st_size < left.st_size:
            os.truncate(self._index, left.st_size)

    def drop_companions(self) -> None:
        """Those of a database that is gone; to another one at its path they would do harm. Raises `OSError`."""
        for path, left in self._left.items():
            now = _stat(path)
            if path != self._database and now is not None and _is_same(now, left):
                path.unlink(missing_ok=True)


def companion(path: Path, suffix: str) -> Path:
    """A file that SQLite keeps beside a database."""
    return path.with_name(path.name + suffix)


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:  # it, or its folder, is gone
        return None


def _is_same(one: os.stat_result, other: os.stat_result) -> bool:
    return (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
