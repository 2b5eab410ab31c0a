"""Writes a recording beside a running router, and never holds it up.

Lines are made where the event was handled, and written by a thread. A gap would make all that follows useless: when the
disk does not keep up, is full, or the file has its size, the recording ends there, and says so in its last line.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Sequence
from pathlib import Path

from omnizmq.errors import ConfigError
from omnizmq.recording import file
from omnizmq.recording.file import End, Header
from omnizmq.router.messages import Effect, Input

BUFFER_BYTES = 32 << 20
"""What may wait for the disk."""

BATCH_INTERVAL_S = 0.05
"""How long lines are gathered before they are written."""

CLOSE_TIMEOUT_S = 5.0

log = logging.getLogger(__name__)


class Recorder:
    """A recording at `path`, which must not exist yet, of at most `max_mib`.

    `ended`: why nothing more is recorded; None: it goes on. Raises `ConfigError` where the file cannot be made.
    """

    def __init__(self, path: Path, header: Header, *, max_mib: int) -> None:
        self._path = path
        self._max_bytes = max_mib << 20
        self._max_mib = max_mib
        self._disk = _Disk(path)
        self._inbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._hurry = threading.Event()
        self._put = 0  # bytes; the thread counts those that it has written
        self._events = 0
        self.ended: str | None = None
        self._lock = threading.Lock()
        self._enqueue(file.encoded(header))
        self._thread = threading.Thread(target=self._run, name="omnizmq-recording", daemon=True)
        self._thread.start()

    def add(self, event: Input, now: float, effects: Sequence[Effect], *, other: bool) -> None:
        """What the core was told, and what it ordered. Raises nothing, waits for nothing. `other`: the event is an
        output that says something else than its caller has."""
        if self.ended is not None:
            return
        try:
            line = file.line(self._events + 1, now, event, effects, other=other)
        except Exception as error:
            log.exception("an event cannot be recorded")
            self._end(f"an event cannot be recorded: {type(error).__name__}: {error}")
            return
        if self._put + len(line) > self._max_bytes:
            self._end(f"it has its {self._max_mib} MiB (--record-max-mib)")
        elif self._put - self._disk.written + len(line) > BUFFER_BYTES:
            self._end(f"the disk of {self._path} does not keep up")
        else:
            self._events += 1
            self._enqueue(line)

    def close(self, why: str) -> None:
        """Write what is left and why it ends here, in bounded time. May be repeated."""
        if self._claim_end(why):
            self._finish(why)
        self._thread.join(CLOSE_TIMEOUT_S)

    def _enqueue(self, line: bytes) -> None:
        self._put += len(line)
        self._inbox.put(line)

    def _end(self, why: str) -> None:
        if self._claim_end(why):
            log.warning("the recording ended: %s", why)
            self._finish(why)

    def _claim_end(self, why: str) -> bool:
        """Whether it had not ended before: the router and the writer may both find a reason."""
        with self._lock:
            first = self.ended is None
            self.ended = self.ended or why
        return first

    def _finish(self, why: str) -> None:
        self._inbox.put(file.encoded(End(why)))
        self._inbox.put(None)
        self._hurry.set()

    # --- The writer's thread ---------------------------------------------------------------------------------------

    def _run(self) -> None:
        going = True
        while going:
            first = self._inbox.get()
            self._hurry.wait(BATCH_INTERVAL_S)
            going = self._write(first)
        self._disk.close()

    def _write(self, item: bytes | None) -> bool:
        """All that waits, from this on. False: that was the last."""
        batch: list[bytes] = []
        while item is not None:
            batch.append(item)
            try:
                item = self._inbox.get_nowait()
            except queue.Empty:
                break
        try:
            self._disk.write(b"".join(batch))
        except OSError as error:
            why = f"{self._path} cannot be written: {error.strerror}"
            self._disk.end_with(file.encoded(End(why)))
            if self._claim_end(why):
                log.warning("the recording ended: %s", why)
            return False
        return item is not None


class _Disk:
    """The file. `written`: bytes that are there."""

    def __init__(self, path: Path) -> None:
        try:
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            raise ConfigError(f"--record {path}: it exists already; name a new file") from None
        except OSError as error:
            raise ConfigError(f"--record {path}: cannot be made: {error.strerror}") from None
        self.written = 0

    def write(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            left = left[os.write(self._descriptor, left) :]
        self.written += len(data)

    def end_with(self, line: bytes) -> None:
        """What was written in part goes, and makes room for a last line where there is none."""
        try:
            os.ftruncate(self._descriptor, self.written)
            os.lseek(self._descriptor, self.written, os.SEEK_SET)
            os.write(self._descriptor, line)
        except OSError as error:
            log.warning("the end of a recording cannot be written: %s", error.strerror)

    def close(self) -> None:
        os.close(self._descriptor)
