"""Facts kept: a writer that never disturbs its caller, and a reader that works beside it and after it (T1).

`TraceWriter` promises its caller that `append` is O(1), waits for nothing and raises nothing. A thread of its own
writes in batches. What does not fit into the bounded queue, or does not reach the disk, is dropped and counted, and a
row about the loss is written as soon as one can be. `TraceReader` adds those losses to the facts of the requests that
ran meanwhile, so that a gap is never taken for something that did not happen.

Knows the facts and the database, nothing of sockets or engines.
"""

from __future__ import annotations

import logging
import os
import queue
import secrets
import sqlite3
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from omnizmq.errors import NotFoundError
from omnizmq.protocol import Value
from omnizmq.trace.database import Database, Loss, Row, is_corruption, open_readable, set_aside, unreadable
from omnizmq.trace.facts import Fact

BATCH_INTERVAL_S = 0.05
"""How long facts are gathered before they are written. Longer: fewer transactions, and a reader sees them later."""

BATCH_ROWS = 2000
"""The most rows of one transaction."""

MAX_DETAIL_CHARS = 4096
"""A longer text in a fact's detail (an error's message) is cut there."""

CLOSE_TIMEOUT_S = 5.0

WARNING_INTERVAL_S = 60.0
"""What fails again and again is complained of this often."""

_INT64 = 1 << 63
_DAY_NS = 24 * 3600 * 10**9

_logger = logging.getLogger(__name__)
_details = msgspec.json.Decoder(dict[str, Value])


class TraceWriter:
    """Appends facts to the trace database at `path`, which holds at most `max_mib` and nothing older than the age.

    The oldest requests go first. A database that cannot be opened is tried again every `retry_s`.
    """

    def __init__(
        self,
        path: Path,
        *,
        max_mib: int,
        max_age_days: float,
        queue_rows: int = 16384,
        retry_s: float = 1.0,
        vfs: str | None = None,
    ) -> None:
        """`queue_rows` facts may wait for the disk. `vfs` names one of SQLite's file system layers."""
        self._inbox: queue.SimpleQueue[tuple[int, Fact] | threading.Event | None] = queue.SimpleQueue()
        self._queue_rows = queue_rows
        self._hurry = threading.Event()
        self._closed = False
        self._losses = _Losses()
        self._disk = _Disk(path, self._losses, max_mib << 20, max_age_days, retry_s, vfs)
        self._retry_s = retry_s
        self._thread = threading.Thread(target=self._run, name="omnizmq-trace", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """Facts that did not reach the disk, so far."""
        return self._losses.total

    @property
    def journal_mode(self) -> str | None:
        """SQLite's: "wal", or what it fell back to where the file system does not allow that. None: not open yet."""
        return self._disk.journal_mode

    @property
    def failure(self) -> str | None:
        """Why nothing can be written at present; None: it can."""
        return self._disk.failure

    def append(self, fact: Fact) -> None:
        """Take a fact, or drop and count it. The fact's detail must not be changed afterwards. Thread-safe."""
        if self._closed:
            self._losses.add(1, "the trace was closed")
        elif self._inbox.qsize() >= self._queue_rows:
            self._losses.add(1, "the disk did not keep up", since_ns=_happened(fact))
        else:
            self._inbox.put((time.time_ns(), fact))

    def flush(self, timeout_s: float = 5.0) -> bool:
        """Wait until every fact appended so far is on disk or counted as dropped. False: it took too long."""
        done = threading.Event()
        self._hurry.set()  # before the marker, whose arrival clears it
        self._inbox.put(done)
        if not self._thread.is_alive():
            return True
        return done.wait(timeout_s)

    def close(self) -> None:
        """Write what is left and stop, in bounded time. May be repeated."""
        if not self._closed:
            self._closed = True
            self._hurry.set()
            self._inbox.put(None)
        self._thread.join(CLOSE_TIMEOUT_S)

    def _run(self) -> None:
        going = True
        while going:
            batch, marker, going = self._next_batch()
            self._disk.write(batch)
            if marker is not None:
                marker.set()
        self._disk.close()
        self._discard()

    def _discard(self) -> None:
        """What raced with the end: facts are counted, and nobody is left waiting."""
        while not self._inbox.empty():
            item = self._inbox.get_nowait()
            if isinstance(item, threading.Event):
                item.set()
            elif item is not None:
                self._losses.add(1, "the trace was closed")

    def _next_batch(self) -> tuple[list[tuple[int, Fact]], threading.Event | None, bool]:
        """What has come until the interval was over, a marker of `flush` came (its event), or the end (False)."""
        batch: list[tuple[int, Fact]] = []
        # A loss that could not be recorded is tried again, also when no more facts come.
        timeout = self._retry_s if self._losses.pending else None
        try:
            item = self._inbox.get(timeout=timeout)
            if isinstance(item, tuple):
                self._hurry.wait(BATCH_INTERVAL_S)
            while isinstance(item, tuple):
                batch.append(item)
                if len(batch) == BATCH_ROWS:
                    return batch, None, True
                item = self._inbox.get_nowait()
        except queue.Empty:
            return batch, None, True
        if item is not None:
            self._hurry.clear()
        return batch, item, item is not None


class _Losses:
    """Rows that did not reach the disk, by reason, until a row about them has. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_reason: dict[str, Loss] = {}
        self.total = 0

    @property
    def pending(self) -> bool:
        return bool(self._by_reason)

    def add(self, rows: int, why: str, *, since_ns: int | None = None) -> None:
        """Lost now. `since_ns`: when the first of what they tell happened (CLOCK_MONOTONIC), where that is known."""
        now = time.monotonic_ns()
        first = now if since_ns is None else max(0, min(now, since_ns))
        with self._lock:
            self.total += rows
            self._merge(Loss(rows, first, now, why))

    def take(self) -> list[Loss]:
        """All that are pending, which are then the caller's."""
        with self._lock:
            taken, self._by_reason = list(self._by_reason.values()), {}
            return taken

    def put_back(self, losses: Iterable[Loss]) -> None:
        with self._lock:
            for loss in losses:
                self._merge(loss)

    def _merge(self, new: Loss) -> None:
        old = self._by_reason.get(new.why, new)
        rows = new.rows if old is new else old.rows + new.rows
        first, last = min(old.first_ns, new.first_ns), max(old.last_ns, new.last_ns)
        self._by_reason[new.why] = Loss(rows, first, last, new.why)


class _Disk:
    """The writer thread's side: opens, writes, bounds, and opens again what failed."""

    def __init__(
        self, path: Path, losses: _Losses, max_bytes: int, max_age_days: float, retry_s: float, vfs: str | None
    ) -> None:
        self._path = path
        self._losses = losses
        self._max_bytes = max_bytes
        self._max_age_ns = int(max_age_days * _DAY_NS)
        self._retry_s = retry_s
        self._vfs = vfs
        self._token = secrets.token_hex(8)
        self._database: Database | None = None
        self._next_try = 0.0
        self._next_warning = 0.0
        self.journal_mode: str | None = None
        self.failure: str | None = None

    def write(self, batch: Sequence[tuple[int, Fact]]) -> None:
        """A batch, and the losses before it; what fails becomes a loss."""
        rows = self._rows(batch)
        if not rows and not self._losses.pending:
            return
        losses = self._losses.take()
        try:
            database = self._open()
            if database is not None:
                database.add(rows, losses)
        except (sqlite3.Error, OSError) as error:
            database = None
            self._fail(error)
        if database is None:
            self._losses.put_back(losses)
            if rows:
                since_ns = min((at_ns for _, fact in batch if (at_ns := _happened(fact)) is not None), default=None)
                self._losses.add(len(rows), self.failure or "it failed a moment ago", since_ns=since_ns)
            return
        self._recovered()
        self._prune(database)

    def _rows(self, batch: Sequence[tuple[int, Fact]]) -> list[Row]:
        rows = []
        for wall_ns, fact in batch:
            try:
                rows.append(_row(fact, wall_ns))
            except (TypeError, ValueError, OverflowError) as error:
                self._losses.add(1, "a fact could not be stored")
                self._warn(f"{fact.event!r} of {fact.request_id!r} cannot be stored: {error}")
        return rows

    def _open(self) -> Database | None:
        """The database. None: it failed a moment ago, and the next try is not due."""
        if self._database is not None and not self._database.is_in_place():
            self._warn(f"{self._path} was removed; what was in it is lost, and a new one is begun")
            self._shut(self._database)
        if self._database is None and time.monotonic() >= self._next_try:
            self._next_try = time.monotonic() + self._retry_s
            self._database = Database(self._path, token=self._token, pid=os.getpid(), vfs=self._vfs)
            if self.journal_mode is None and self._database.journal_mode != "wal":
                _logger.warning(
                    "trace: the file system of %s allows no write-ahead log; journal mode %s is used, in which a long "
                    "read can make the trace lose rows",
                    self._path,
                    self._database.journal_mode,
                )
            self.journal_mode = self._database.journal_mode
            self._next_try = 0.0
        return self._database

    def _fail(self, error: sqlite3.Error | OSError) -> None:
        self._warn(f"{self._path} cannot be written ({error}); rows are dropped until it can")
        self.failure = str(error)
        if self._database is not None:
            self._shut(self._database)
        if is_corruption(error):
            self._set_aside(self.failure)

    def _warn(self, text: str) -> None:
        if time.monotonic() >= self._next_warning:
            self._next_warning = time.monotonic() + WARNING_INTERVAL_S
            _logger.warning("trace: %s", text)

    def _set_aside(self, why: str) -> None:
        try:
            set_aside(self._path, why)
        except OSError as error:
            _logger.warning("trace: %s cannot be set aside: %s", self._path, error)

    def _recovered(self) -> None:
        if self.failure is not None:
            _logger.info("trace: %s is written again; %d rows were dropped so far", self._path, self._losses.total)
        self.failure = None

    def _prune(self, database: Database) -> None:
        try:
            database.prune(max_bytes=self._max_bytes, oldest_wall_ns=time.time_ns() - self._max_age_ns)
        except sqlite3.Error as error:
            self._fail(error)

    def close(self) -> None:
        if self._database is None:
            return
        try:
            self._database.end_run()
        except sqlite3.Error as error:
            _logger.warning("trace: the end of the run could not be written to %s: %s", self._path, error)
        self._shut(self._database)

    def _shut(self, database: Database) -> None:
        self._database = None
        try:
            database.close()
        except sqlite3.Error as error:
            _logger.warning("trace: %s could not be closed: %s", self._path, error)


def _happened(fact: Fact) -> int | None:
    """When, by this machine's clock; a client's may be another's."""
    return None if fact.owner == "client" else fact.at_ns


def _row(fact: Fact, wall_ns: int) -> Row:
    """The fact as it is stored. Raises `ValueError`, `TypeError` or `OverflowError` for one that cannot be."""
    for number in (fact.at_ns, fact.attempt):
        if not -_INT64 <= number < _INT64:
            raise OverflowError(f"{number} has more than 64 bits")
    detail = {key: value[:MAX_DETAIL_CHARS] if isinstance(value, str) else value for key, value in fact.detail.items()}
    row = Row(
        fact.request_id,
        fact.external_id,
        wall_ns,
        fact.attempt,
        fact.at_ns,
        fact.owner,
        fact.event,
        fact.stage,
        fact.engine_id,
        msgspec.json.encode(detail).decode(),
    )
    for text in row:
        if isinstance(text, str):
            text.encode()  # a lone surrogate is the one text that SQLite refuses
    return row


@dataclass(frozen=True, slots=True)
class Traced:
    """What the store knows about a request besides its facts.

    `wall_ns`: nanoseconds since 1970 at which its deployment first heard of it. `pid`: the process that wrote it.
    `ended`: that process has stopped in good order. One that was killed could not say so.
    """

    request_id: str
    external_id: str
    wall_ns: int
    pid: int
    ended: bool


class TraceReader:
    """Reads a trace database, also while its writer runs. Use it as a context manager, in one thread.

    Raises `NotFoundError` where there is no database, and `ConfigError` where there is one that cannot be read: not a
    database, not a trace, of another version, damaged.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection = open_readable(path)

    def __enter__(self) -> TraceReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def find(self, id_: str) -> list[str]:
        """The request ids of the requests that bear exactly this request id or external id, the newest first."""
        query = "SELECT request_id FROM requests WHERE request_id = ? OR external_id = ? ORDER BY id DESC"
        return [row[0] for row in self._all(query, id_, id_)]

    def last(self, n: int) -> list[str]:
        """The request ids of the newest `n` requests, the newest first."""
        return [row[0] for row in self._all("SELECT request_id FROM requests ORDER BY id DESC LIMIT ?", n)]

    def about(self, request_id: str) -> Traced:
        """Raises `NotFoundError` for an unknown request id."""
        found = self._all(
            "SELECT request_id, external_id, wall_ns, pid, ended"
            " FROM requests JOIN runs ON runs.id = run WHERE request_id = ?",
            request_id,
        )
        if not found:
            raise NotFoundError(f"no trace of request {request_id!r} in {self._path}")
        external_id, wall_ns, pid, ended = found[0][1:]
        return Traced(request_id, external_id, wall_ns, pid, bool(ended))

    def facts(self, request_id: str) -> list[Fact]:
        """In the order in which they were recorded; none for an unknown request id.

        Where rows were lost while the request ran (from its first fact to its last, or to the end of its run when it
        has no terminal), a `dropped` fact for each such loss comes after them.
        """
        found = self._all(
            "SELECT request_id, external_id, attempt, at_ns, owner, event, stage, engine_id, detail"
            " FROM facts JOIN requests ON requests.id = request WHERE request_id = ? ORDER BY facts.id",
            request_id,
        )
        try:
            facts = [Fact(*(*row[:-1], _details.decode(row[-1]))) for row in found]
        except msgspec.MsgspecError as error:
            raise unreadable(self._path, error) from error
        return facts + self._dropped(facts)

    def _dropped(self, facts: list[Fact]) -> list[Fact]:
        times = [at_ns for fact in facts if (at_ns := _happened(fact)) is not None] or [fact.at_ns for fact in facts]
        if not times:
            return []
        ended = any(fact.event in ("terminal", "refused") for fact in facts)
        losses = self._all(
            "SELECT losses.rows, losses.last_ns, why FROM losses JOIN requests USING (run)"
            " WHERE request_id = ? AND last_ns >= ? AND first_ns <= ? ORDER BY losses.id",
            facts[0].request_id,
            min(times),
            max(times) if ended else _INT64 - 1,
        )
        ids = (facts[0].request_id, facts[0].external_id, max(fact.attempt for fact in facts))
        return [Fact(*ids, at_ns, "trace", "dropped", detail={"rows": rows, "why": why}) for rows, at_ns, why in losses]

    def _all(self, query: str, *parameters: str | int) -> list[tuple[Any, ...]]:
        try:
            return self._connection.execute(query, parameters).fetchall()
        except sqlite3.Error as error:
            raise unreadable(self._path, error) from error
