"""The trace writer's disk: opens, writes, bounds, and opens again what failed; and the losses meanwhile (T1).

`Losses` is shared by all threads, `Disk` is the writer thread's own. Nothing here raises for a bad disk: what fails
becomes a loss, which is written as soon as something can be.
"""

from __future__ import annotations

import logging
import os
import secrets
import sqlite3
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from omnizmq.trace.database import Database, Loss, is_corruption, set_aside
from omnizmq.trace.facts import Fact
from omnizmq.trace.packing import Block, pack

WARNING_INTERVAL_S = 60.0
"""What fails again and again is complained of this often."""

AGING_INTERVAL_S = 60.0
"""How often requests past their age are looked for."""

_DAY_NS = 24 * 3600 * 10**9

_logger = logging.getLogger(__name__)


class Losses:
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


class Disk:
    """The writer thread's side: opens, writes, bounds, and opens again what failed."""

    def __init__(
        self, path: Path, losses: Losses, max_bytes: int, max_age_days: float, retry_s: float, vfs: str | None
    ) -> None:
        self._path = path
        self._losses = losses
        self._max_bytes = max_bytes
        self._max_age_ns = int(max_age_days * _DAY_NS)
        self._retry_s = retry_s
        self._vfs = vfs
        self._token = secrets.token_hex(8)
        self._began_ns = time.monotonic_ns()
        self._database: Database | None = None
        self._stored = 0  # rows of this run in the database
        self._harm: str | None = None  # what became of the database that was open before
        self._next_try = 0.0
        self._next_warning = 0.0
        self._next_aging = 0.0
        self._warned_of_journal = False
        self.failure: str | None = None

    def write(self, batch: Sequence[Fact]) -> None:
        """A batch, and the losses before it; what fails becomes a loss. An empty one is a look at the files alone."""
        wall_ns = time.time_ns()
        blocks = self._blocks(batch)
        if self._database is None and not blocks and not self._losses.pending:
            return
        rows = sum(block.rows for block in blocks)
        losses: list[Loss] = []
        try:
            database = self._open()
            if database is not None:
                losses = self._losses.take()
                if not blocks and not losses:
                    return
                database.add(blocks, losses, wall_ns=wall_ns)
                self._stored += rows
        except (sqlite3.Error, OSError) as error:
            database = None
            self._fail(error)
        if database is None:
            self._losses.put_back(losses)
            if blocks:
                self._losses.add(rows, self.failure or "it failed a moment ago", since_ns=_first(batch))
            return
        self._recovered()
        self._prune(database)

    def _blocks(self, batch: Sequence[Fact]) -> list[Block]:
        """One for each request, in the order of their first facts."""
        by_request: defaultdict[str, list[Fact]] = defaultdict(list)
        for fact in batch:
            by_request[fact.request_id].append(fact)
        blocks = []
        for facts in by_request.values():
            try:
                blocks.append(pack(facts))
            except (TypeError, ValueError, OverflowError):
                since_ns = _first(facts)  # the bad one's own time may be what is bad
                good = [fact for fact in facts if self._can_be_stored(fact, since_ns)]
                if good:
                    blocks.append(pack(good))
        return blocks

    def _can_be_stored(self, fact: Fact, since_ns: int | None) -> bool:
        """A fact that cannot is counted, and complained of."""
        try:
            pack([fact])
        except (TypeError, ValueError, OverflowError) as error:
            self._losses.add(1, "a fact could not be stored", since_ns=since_ns)
            self._warn(f"{fact.event!r} of {fact.request_id!r} cannot be stored: {error}")
            return False
        return True

    def _open(self) -> Database | None:
        """The database. None: it failed a moment ago, and the next try is not due."""
        if self._database is not None and (harm := self._database.harm()) is not None:
            self._warn(f"{self._path}: {harm.text} by somebody else; what was in it may be lost, and it is begun anew")
            self._harm = harm.text
            database, self._database = self._database, None
            database.abandon(harm)
        if self._database is None and time.monotonic() >= self._next_try:
            self._next_try = time.monotonic() + self._retry_s
            self._database = Database(self._path, token=self._token, pid=os.getpid(), vfs=self._vfs)
            if not self._warned_of_journal and self._database.journal_mode != "wal":
                self._warned_of_journal = True
                _logger.warning(
                    "trace: the file system of %s allows no write-ahead log; journal mode %s is used, in which a long "
                    "read can make the trace lose rows",
                    self._path,
                    self._database.journal_mode,
                )
            self._next_try = 0.0
            self._count_lost(self._database)
        return self._database

    def _count_lost(self, database: Database) -> None:
        """Rows that this run had stored, where they are in this database no more; or may be, after some harm."""
        rows = self._stored if database.is_new else int(self._harm is not None)
        if rows:
            self._losses.add(rows, self._harm or "the trace database was begun anew", since_ns=self._began_ns)
        if database.is_new:
            self._stored = 0
        self._harm = None

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
        self._harm = "trace.db was damaged and set aside"
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
            if time.monotonic() >= self._next_aging:
                self._next_aging = time.monotonic() + AGING_INTERVAL_S
                database.drop_old(time.time_ns() - self._max_age_ns)
            database.shrink(self._max_bytes)
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


def happened(fact: Fact) -> int | None:
    """When, by this machine's clock; a client's may be another's."""
    return None if fact.owner == "client" else fact.at_ns


def _first(facts: Iterable[Fact]) -> int | None:
    """When the earliest of them happened, as far as it is known."""
    return min((at_ns for fact in facts if (at_ns := happened(fact)) is not None), default=None)
