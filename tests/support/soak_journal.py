"""What the clients of a soak write and its driver reads: a line when a request begins, and one when it has ended.

A line is one write, so a client that is killed leaves whole lines, but perhaps the last.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec


class Began(msgspec.Struct, frozen=True, tag=True):
    """`at`: CLOCK_MONOTONIC in seconds, as everywhere here."""

    external_id: str
    at: float


class Ended(msgspec.Struct, frozen=True, tag=True):
    """`how`: a finish reason, an error's code, `cancelled`, or `stuck`: it had no end for too long. `wrong`: what was
    heard that cannot be. `first_s`: until the first
    output."""

    external_id: str
    began: float
    at: float
    how: str
    outputs: int = 0
    stage: str | None = None
    replica: str | None = None
    message: str = ""
    incomplete: tuple[str, ...] = ()
    wrong: str | None = None
    first_s: float | None = None


Line = Began | Ended
_decoder = msgspec.json.Decoder(Line)


class Writer:
    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def write(self, line: Line) -> None:
        os.write(self._file, msgspec.json.encode(line) + b"\n")

    def close(self) -> None:
        os.close(self._file)


class Reader:
    """`read` gives what has come since it was called last."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def read(self) -> list[Line]:
        if not self._path.exists():
            return []
        with open(self._path, "rb") as file:
            file.seek(self._offset)
            whole, _, _ = file.read().rpartition(b"\n")
        if not whole:
            return []
        self._offset += len(whole) + 1
        return [_decoder.decode(line) for line in whole.split(b"\n")]
