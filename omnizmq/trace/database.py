"""The trace's SQLite database: its schema, how it is opened, and what is written to it in one transaction (T1).

Four tables: `runs` (one a writer: its process, and whether it ended in good order), `requests` (in the order of
arrival, each with the wall-clock time at which its first facts were written, since monotonic clocks restart at boot,
and how it ended), `facts` (of a request, in blocks; they go with it), and `losses` (rows that never reached the disk).
The version of the schema is SQLite's `user_version`; `application_id` tells a trace from any other database.

Here are a writer's statements (a reader's are in `store`) and nothing else: no threads, no queue, no policy. Errors of
SQLite pass through a writer's functions as they are; a reader's become `NotFoundError` or `ConfigError` in one line.
"""

from __future__ import annotations

import itertools
import logging
import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import msgspec

from omnizmq.errors import ConfigError, NotFoundError
from omnizmq.trace.files import Files, Harm, companion
from omnizmq.trace.packing import Block

VERSION = 3
APPLICATION_ID = 0x6F7A7472
FILE_NAME = "trace.db"

BUSY_TIMEOUT_S = 2.0
"""How long another process's lock is waited for. Longer loses fewer rows to a slow reader without WAL."""

MAX_LOSSES = 1000
"""Rows about losses that are kept; older ones go."""

_PAGE_BYTES = 8192
"""Larger: fewer pages to write for many requests at once, and more of them for few."""

_WAL_BYTES = 4 << 20

_SCHEMA = (
    """CREATE TABLE runs (
        id INTEGER PRIMARY KEY, token TEXT NOT NULL UNIQUE, pid INTEGER NOT NULL, journal_mode TEXT NOT NULL,
        ended INTEGER NOT NULL DEFAULT 0)""",
    """CREATE TABLE requests (
        id INTEGER PRIMARY KEY AUTOINCREMENT, run INTEGER NOT NULL, request_id TEXT NOT NULL,
        external_id TEXT NOT NULL, wall_ns INTEGER NOT NULL, began_ns INTEGER NOT NULL, ended_ns INTEGER,
        finish_reason TEXT, error_code TEXT, over INTEGER NOT NULL)""",
    "CREATE UNIQUE INDEX requests_live ON requests (request_id) WHERE NOT over",
    "CREATE INDEX requests_failed ON requests (id) WHERE error_code IS NOT NULL",
    """CREATE TABLE facts (
        id INTEGER PRIMARY KEY, request INTEGER NOT NULL REFERENCES requests (id) ON DELETE CASCADE,
        block BLOB NOT NULL)""",
    "CREATE INDEX facts_request ON facts (request)",
    """CREATE TABLE losses (
        id INTEGER PRIMARY KEY, run INTEGER NOT NULL, rows INTEGER NOT NULL, first_ns INTEGER NOT NULL,
        last_ns INTEGER NOT NULL, why TEXT NOT NULL)""",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {VERSION}",
)

# One statement for all rows of a batch: after each step of SQLite its thread has to get the interpreter's lock again,
# and beside a busy router that costs both more than the step. json_each makes rows of one parameter, in their order.
_FIND_LIVE = """
    SELECT json_group_object(request_id, requests.id), (SELECT max(seq) FROM sqlite_sequence WHERE name = 'requests')
    FROM json_each(?) CROSS JOIN requests ON request_id = value AND NOT over"""
_ADD_REQUESTS = """
    INSERT INTO requests
        (run, wall_ns, id, request_id, external_id, began_ns, ended_ns, finish_reason, error_code, over)
    SELECT ?, ?, json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'),
        json_extract(value, '$[3]'), json_extract(value, '$[4]'), json_extract(value, '$[5]'),
        json_extract(value, '$[6]'), json_extract(value, '$[7]')
    FROM json_each(?) WHERE true
    ON CONFLICT (id) DO UPDATE SET over = excluded.over, ended_ns = coalesce(ended_ns, excluded.ended_ns),
        finish_reason = coalesce(finish_reason, excluded.finish_reason),
        error_code = coalesce(error_code, excluded.error_code)"""
_ADD_FACTS = """
    INSERT INTO facts (request, block)
    SELECT json_extract(value, '$[0]'), substr(?, json_extract(value, '$[1]'), json_extract(value, '$[2]'))
    FROM json_each(?)"""
_ADD_LOSS = "INSERT INTO losses (run, rows, first_ns, last_ns, why) VALUES (?, ?, ?, ?, ?)"
_NO_END = (None, None, None)

_logger = logging.getLogger(__name__)


_json = msgspec.json.Encoder().encode


class Loss(NamedTuple):
    """Rows that were lost for one reason between two moments of CLOCK_MONOTONIC."""

    rows: int
    first_ns: int
    last_ns: int
    why: str


class Database:
    """A trace, open for one writer. Made and used in one thread. Every method raises `sqlite3.Error` as it comes."""

    def __init__(self, path: Path, *, token: str, pid: int, vfs: str | None = None) -> None:
        """Open, and create where nothing is; `token` names the run again after a reopening.

        A file that is no trace, is corrupt or has another version is set aside, not overwritten. `vfs` is the name of
        one of SQLite's file system layers. Raises `OSError` where the folder cannot be made.
        """
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            self._open(path, vfs, token, pid)
        except (_UnusableError, sqlite3.DatabaseError) as error:
            if not isinstance(error, _UnusableError) and not is_corruption(error):
                raise
            set_aside(path, str(error))
            self._open(path, vfs, token, pid)

    def _open(self, path: Path, vfs: str | None, token: str, pid: int) -> None:
        self._connection = connect(path, mode="rwc", **({"vfs": vfs} if vfs else {}))
        try:
            _make_or_check(self._connection)
            self.journal_mode = _journal_mode(self._connection)
            self._run = self._begin_run(token, pid)
            self._path, self._files = path, Files(path, wal=self.journal_mode == "wal")
        except (_UnusableError, sqlite3.Error, OSError):
            self._connection.close()
            raise

    def harm(self) -> Harm | None:
        """What somebody else has done to the files that are open here, so that it must be opened again."""
        return self._files.harm()

    def abandon(self, harm: Harm) -> None:
        """Close it after that, so that it can be opened again. Raises `OSError` as well."""
        try:
            self._files.restore_index()
            if harm.of_database and harm.in_place:
                set_aside(self._path, f"is damaged ({harm.text})")
            elif harm.of_database:
                self._files.drop_companions()
        finally:
            self.close()

    def _begin_run(self, token: str, pid: int) -> int:
        execute = self._connection.execute
        (run,) = execute("SELECT max(id) FROM runs WHERE token = ?", (token,)).fetchone()
        self.is_new = run is None  # this run has stored nothing in it so far
        if run is None:
            row = (token, pid, self.journal_mode)
            run = execute("INSERT INTO runs (token, pid, journal_mode) VALUES (?, ?, ?)", row).lastrowid
        return int(run)

    def add(self, blocks: Sequence[Block], losses: Sequence[Loss], *, wall_ns: int) -> None:
        """All of it in one transaction, or none of it and the error. `wall_ns`: nanoseconds since 1970, now."""
        with _Transaction(self._connection) as connection:
            requests, places, start = [], [], 1
            for row, block in zip(self._rows_of(blocks), blocks, strict=True):
                end = block.end or _NO_END
                requests.append((row, block.request_id, block.external_id, block.began_ns, *end, block.over))
                places.append((row, start, len(block.data)))
                start += len(block.data)
            connection.execute(_ADD_REQUESTS, (self._run, wall_ns, _json(requests)))
            connection.execute(_ADD_FACTS, (b"".join(block.data for block in blocks), _json(places)))
            connection.executemany(_ADD_LOSS, [(self._run, *loss) for loss in losses])
        self._files.remember()

    def _rows_of(self, blocks: Sequence[Block]) -> list[int]:
        """The ids of their requests: those that are there, or new ones, in order."""
        asked = _json([block.request_id for block in blocks])
        found, last = self._connection.execute(_FIND_LIVE, (asked,)).fetchone()
        rows = msgspec.json.decode(found, type=dict[str, int])
        new = itertools.count((last or 0) + 1)
        return [rows.get(block.request_id) or rows.setdefault(block.request_id, next(new)) for block in blocks]

    def drop_old(self, oldest_wall_ns: int) -> None:
        """Drop requests that arrived before then. Looks at all of them: an index would cost each request more."""
        self._drop("SELECT id FROM requests WHERE wall_ns < ?", oldest_wall_ns)

    def shrink(self, max_bytes: int) -> None:
        """Drop the oldest requests until the file has at most `max_bytes`.

        The file itself shrinks. Its write-ahead log comes on top, a few MiB.
        """
        while self._bytes() > max_bytes:
            (count,) = self._connection.execute("SELECT count(*) FROM requests").fetchone()
            if not count:
                break
            self._drop("SELECT id FROM requests ORDER BY id LIMIT ?", -(-count // 10))

    def _drop(self, which: str, parameter: int) -> None:
        execute = self._connection.execute
        if execute(which, (parameter,)).fetchone() is None:
            return
        with _Transaction(self._connection):
            execute(f"DELETE FROM requests WHERE id IN ({which})", (parameter,))
            execute("DELETE FROM runs WHERE id <> ? AND id NOT IN (SELECT run FROM requests)", (self._run,))
            execute("DELETE FROM losses WHERE run NOT IN (SELECT id FROM runs)")
            execute("DELETE FROM losses WHERE id <= (SELECT max(id) FROM losses) - ?", (MAX_LOSSES,))
        # As a script, because `execute` would stop after the first page.
        self._connection.executescript("PRAGMA incremental_vacuum")
        self._files.remember()

    def _bytes(self) -> int:
        """What is in use of the file."""
        tables = "pragma_page_count, pragma_freelist_count, pragma_page_size"
        query = f"SELECT (page_count - freelist_count) * page_size FROM {tables}"
        return int(self._connection.execute(query).fetchone()[0])

    def end_run(self) -> None:
        """Its requests cannot become more: the writer stops in good order."""
        self._connection.execute("UPDATE runs SET ended = 1 WHERE id = ?", (self._run,))

    def close(self) -> None:
        self._connection.close()


class _UnusableError(Exception):
    """A file that is not a trace of this version. The message says what it is instead."""


class _Transaction:
    """`BEGIN IMMEDIATE … COMMIT`; whatever fails, also the commit, is rolled back."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def __enter__(self) -> sqlite3.Connection:
        self._connection.execute("BEGIN IMMEDIATE")
        return self._connection

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._connection.execute("COMMIT")
        finally:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")


def connect(path: Path, **parameters: str) -> sqlite3.Connection:
    """A connection without implicit transactions; `parameters` are those of SQLite's file URIs (mode, vfs, …)."""
    query = "&".join(f"{key}={value}" for key, value in parameters.items())
    uri = f"file:{quote(os.path.abspath(path))}?{query}"
    return sqlite3.connect(uri, uri=True, isolation_level=None, timeout=BUSY_TIMEOUT_S)


def _make_or_check(connection: sqlite3.Connection) -> None:
    """Make the tables where nothing is. Raises `_UnusableError` for what is no trace of this version."""
    if _is_empty(connection):
        # Before anything else is written: neither can be set later. The second lets the file shrink.
        connection.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        with _Transaction(connection):
            for statement in _SCHEMA:
                connection.execute(statement)
    elif other := _otherness(connection):
        raise _UnusableError(other)
    connection.execute("PRAGMA foreign_keys = ON")


def _journal_mode(connection: sqlite3.Connection) -> str:
    """Write-ahead log where the file system allows it (readers then never block the writer), else a rollback journal.

    In both modes what was committed survives the death of every process, and a power cut may cost the latest rows.
    """
    try:
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    except sqlite3.OperationalError:
        (mode,) = connection.execute("PRAGMA journal_mode = DELETE").fetchone()
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute(f"PRAGMA wal_autocheckpoint = {_WAL_BYTES // _PAGE_BYTES}")
    connection.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES}")
    return str(mode)


def open_readable(path: Path) -> sqlite3.Connection:
    """A read-only connection to a trace. Raises `NotFoundError` where none is, `ConfigError` where it is not usable."""
    if not path.exists():
        raise NotFoundError(f"no trace database at {path}")
    try:
        try:
            return _checked(path, mode="ro")
        except sqlite3.OperationalError:
            # In a folder that cannot be written to, WAL's companion files cannot be made; nor can anyone be writing.
            if companion(path, "-wal").exists() or os.access(path.parent, os.W_OK):
                raise
            return _checked(path, mode="ro", immutable="1")
    except sqlite3.Error as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: Exception) -> ConfigError:
    """What a reader raises when SQLite fails."""
    return ConfigError(f"{path} cannot be read as a trace database: {error}")


def _checked(path: Path, **parameters: str) -> sqlite3.Connection:
    connection = connect(path, **parameters)
    try:
        if _is_empty(connection):
            raise NotFoundError(f"the trace database {path} is still empty")
        if other := _otherness(connection):
            raise ConfigError(f"{path} {other}: name a trace of this version, or delete the file")
    except (sqlite3.Error, NotFoundError, ConfigError):
        connection.close()
        raise
    return connection


def _is_empty(connection: sqlite3.Connection) -> bool:
    (count,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    return int(count) == 0


def _otherness(connection: sqlite3.Connection) -> str | None:
    """What the database is instead of a trace of this version; None for a good one."""
    if connection.execute("PRAGMA application_id").fetchone() != (APPLICATION_ID,):
        return "is a database, but no trace of omnizmq"
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version != VERSION:
        return f"is a trace of schema version {version}, and this omnizmq knows version {VERSION}"
    return None


def is_corruption(error: Exception) -> bool:
    """Whether SQLite says that the file itself is damaged, or is none of its own."""
    # Extended codes keep the primary one in their low byte.
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT)


def set_aside(path: Path, why: str) -> None:
    """Rename the database so that a new one can take its place. One is kept; the one before it is replaced."""
    aside = path.with_name(path.name + ".aside")
    _logger.warning("%s %s; it is kept as %s, and a new trace begins", path, why, aside.name)
    for suffix in ("-wal", "-shm", "-journal"):
        companion(aside, suffix).unlink(missing_ok=True)
    path.replace(aside)
    for suffix in ("-wal", "-journal"):
        if companion(path, suffix).exists():
            companion(path, suffix).replace(companion(aside, suffix))
    companion(path, "-shm").unlink(missing_ok=True)
