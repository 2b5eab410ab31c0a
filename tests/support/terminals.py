"""Terminals of a known size, for commands that draw on them."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import termios
from collections.abc import Iterator, Sequence
from contextlib import contextmanager


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, process: subprocess.Popen[bytes], controller: int) -> None:
        self.process = process
        self._controller = controller
        self.shown = b""

    def until(self, wanted: bytes, times: int = 1) -> None:
        """Read until it has shown that text so often."""
        while self.shown.count(wanted) < times:
            assert self._read(), self.shown

    def end(self) -> str:
        """All that it showed, once it has ended."""
        while self._read():
            pass
        self.process.wait(20)
        return self.shown.decode().replace("\r\n", "\n")

    def _read(self) -> bool:
        """False: nobody has the other end open any more."""
        try:
            more = os.read(self._controller, 65536)
        except OSError:
            return False
        self.shown += more
        return bool(more)


@contextmanager
def on_terminal(command: Sequence[str], *, rows: int, columns: int) -> Iterator[Terminal]:
    controller, terminal = pty.openpty()
    try:
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        environment = os.environ | {"TERM": "xterm-256color", "LANG": "C.UTF-8", "PYTHONUTF8": "1"}
        for name in ("NO_COLOR", "COLUMNS", "LINES"):
            environment.pop(name, None)
        process = subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, env=environment)
    finally:
        os.close(terminal)
    try:
        yield Terminal(process, controller)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(controller)
