"""A file that a command writes: whole, or not at all."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

from omnizmq.errors import OmnizmqError


def save(path: Path, data: bytes) -> None:
    """Write it beside `path`, then put it in its place; what stood there before stays until then.

    What is no ordinary file (`/dev/stdout`, a pipe) is written to as it is. Raises `OmnizmqError` in one line where it
    cannot be written, and leaves no half file.
    """
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(data)
            return
        beside = path.with_name(f".{path.name[:100]}.{secrets.token_hex(4)}")
        try:
            beside.write_bytes(data)
            os.replace(beside, path)
        except BaseException:
            with suppress(OSError):
                beside.unlink()
            raise
    except OSError as error:
        raise OmnizmqError(f"{path} cannot be written: {error.strerror}") from error
