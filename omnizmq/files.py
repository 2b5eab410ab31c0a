"""Files that a user names: each may be anything, also without an end."""

from __future__ import annotations

import errno
from pathlib import Path


def read(path: str | Path, most: int) -> bytes:
    """All of the file. Raises `OSError` where it cannot be read, also where it has more than `most` bytes."""
    with open(path, "rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"larger than {most} bytes", str(path))
    return data
