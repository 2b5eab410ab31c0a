"""Facts kept: a writer that never disturbs its caller, and a reader that works beside it and after it (T1).

`TraceWriter` promises its caller that `append` is O(1), waits for nothing and raises nothing. A thread of its own
writes in batches. What does not fit into the bounded queue, or does not reach the disk, is dropped and counted, and a
row about the loss is written as soon as one can be. `TraceReader` adds those losses to the facts of the requests that
ran meanwhile, so that a gap is never taken for something that did not happen.

Knows the facts and the database, nothing of sockets or engines.
"""

from __future__ import annotations

import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from omnizmq import protocol as wire
from omnizmq.errors import NotFoundError
from omnizmq.trace.database import Loss, open_readable, unreadable
from omnizmq.trace.disk import Disk, Losses, happened
from omnizmq.trace.events import BEGINS, ENDS
from omnizmq.trace.facts import Fact
from omnizmq.trace.packing import unpack

BATCH_INTERVAL_S = 0.4
"""How long facts are gathered before they are written. Longer: fewer transactions, a reader sees them later, and more
of them are lost with a router that is killed."""

BATCH_ROWS = 8192
"""The most rows of one transaction."""

LOOK_INTERVAL_S = 1.0
"""How often, while no facts come, it is made sure that nobody has removed or changed the files."""

CLOSE_TIMEOUT_S = 5.0

_INT64 = 1 << 63

# A file may have been written by anybody, and a column of SQLite holds anything: all that is read is checked.
_Positive = Annotated[int, msgspec.Meta(ge=1)]
_ROWS = list[tuple[int, str]]
_REQUEST_IDS = list[tuple[str]]
_OUTCOMES = list[tuple[str, str, int, float | None, str | None, str | None]]
_LOSSES = list[tuple[_Positive, int, int, str]]
_ABOUT = list[tuple[str, str, int, int, int]]
_BLOCKS = list[tuple[str, bytes]]
_LOST = list[tuple[_Positive, int, str]]


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
        self._inbox: deque[Fact] = deque()
        self._room = queue_rows
        self._awaited: deque[Callable[[], None]] = deque()
        self._idle = False
        self._wake, self._hurry = threading.Event(), threading.Event()
        self._closed = False
        self._losses = Losses()
        self._disk = Disk(path, self._losses, max_mib << 20, max_age_days, retry_s, vfs)
        self._retry_s = retry_s
        self._thread = threading.Thread(target=self._run, name="omnizmq-trace", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """Facts that did not reach the disk, so far."""
        return self._losses.total

    @property
    def failure(self) -> str | None:
        """Why nothing can be written at present; None: it can."""
        return self._disk.failure

    def append(self, fact: Fact) -> None:
        """Take a fact, or drop and count it. The fact's detail must not be changed afterwards. Thread-safe."""
        if len(self._inbox) >= self._room:
            why = "the trace was closed" if self._closed else "the disk did not keep up"
            self._losses.add(1, why, since_ns=happened(fact))
        else:
            self._inbox.append(fact)
            if self._idle:  # the thread says so before it looks at the inbox for the last time
                self._wake.set()

    def flush(self, timeout_s: float = 5.0) -> bool:
        """Wait until every fact appended so far is on disk or counted as dropped. False: it took too long."""
        done = threading.Event()
        self.when_written(done.set)
        return done.wait(timeout_s)

    def when_written(self, call: Callable[[], None]) -> None:
        """At once, and `call` when every fact appended so far is on disk or counted as dropped: from the writer's
        thread, or from this one where that has ended. It must be short and raise nothing. Waits for nothing;
        thread-safe. A disk that does not answer keeps it waiting."""
        self._awaited.append(call)
        self._hurry_up()
        if not self._thread.is_alive():
            self._tell(_all_of(self._awaited))

    def close(self) -> None:
        """Write what is left and stop, in bounded time. May be repeated."""
        self._closed, self._room = True, 0
        self._hurry_up()
        self._thread.join(CLOSE_TIMEOUT_S)

    def _hurry_up(self) -> None:
        self._hurry.set()
        self._wake.set()

    def _run(self) -> None:
        going = True
        while going:
            going = not self._closed
            if going:
                self._gather()
            awaited = _all_of(self._awaited)
            self._write(len(self._inbox))
            self._tell(awaited)
        self._disk.close()
        for _ in _all_of(self._inbox):  # what raced with the end
            self._losses.add(1, "the trace was closed")
        self._tell(_all_of(self._awaited))

    def _tell(self, awaited: Sequence[Callable[[], None]]) -> None:
        for call in awaited:
            call()

    def _gather(self) -> None:
        """Until something has come and the interval after it is over, or somebody waits for the disk."""
        self._idle = True
        if not self._inbox:
            # Also when no more facts come, a loss that could not be recorded is tried again, and the files looked at.
            self._wake.wait(self._retry_s if self._losses.pending else LOOK_INTERVAL_S)
        self._idle = False
        self._wake.clear()
        self._hurry.wait(BATCH_INTERVAL_S)
        self._hurry.clear()

    def _write(self, rows: int) -> None:
        """So many of the inbox; where there are none, losses that could not be recorded before."""
        take = self._inbox.popleft
        while True:
            batch = [take() for _ in range(min(rows, BATCH_ROWS))]
            self._disk.write(batch)
            rows -= len(batch)
            if not rows:
                return


T = TypeVar("T")


def _all_of(items: deque[T]) -> list[T]:
    """Taken out; what is put in meanwhile stays."""
    return [items.popleft() for _ in range(len(items))]


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


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a request ended, without its facts. `duration_ms`: from its first fact, None where it has no end;
    `finish_reason` is its terminal's, or "refused"; `error_code` is None where it was no error."""

    request_id: str
    external_id: str
    wall_ns: int
    duration_ms: float | None
    finish_reason: str | None
    error_code: str | None


class TraceReader:
    """Reads a trace database, also while its writer runs. Use it as a context manager, in one thread.

    Raises `NotFoundError` where there is no database, and `ConfigError` where there is one that cannot be read: not a
    database, not a trace, of another version, damaged.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection = open_readable(path)
        self._rows: dict[str, list[int]] = {}  # of requests that were found

    def __enter__(self) -> TraceReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def find(self, id_: str) -> list[str]:
        """The request ids of the requests that bear exactly this request id or external id, the newest first."""
        query = "SELECT id, request_id FROM requests WHERE ?1 IN (request_id, external_id) ORDER BY id DESC"
        found: dict[str, list[int]] = {}
        for row, request_id in self._all(_ROWS, query, id_):
            found.setdefault(request_id, []).append(row)
        self._rows |= found
        return list(found)

    def _rows_of(self, request_id: str) -> str:
        """Its rows, as JSON. All requests are looked at, but once for each: an index of ids, which come in no order,
        would cost the writer more than all the rest. More than one row: its id came again, or it was dropped midway."""
        if request_id not in self._rows:
            self.find(request_id)
        return wire.encode_json(self._rows.get(request_id, [])).decode()

    def last(self, n: int) -> list[str]:
        """The request ids of the newest `n` requests, the newest first."""
        return [
            row[0] for row in self._all(_REQUEST_IDS, "SELECT request_id FROM requests ORDER BY id DESC LIMIT ?", n)
        ]

    def failed(self, limit: int, *, pid: int | None) -> list[Outcome]:
        """The newest `limit` requests that were refused, ended with an error, or have no end though their run is over,
        the newest first. `pid`: the process of the run that goes on; None: none does."""
        over = "run NOT IN (SELECT id FROM runs WHERE pid = ? AND NOT ended)"
        which = f"WHERE error_code IS NOT NULL OR ended_ns IS NULL AND {over} ORDER BY id DESC"
        return self._outcomes(which, -1 if pid is None else pid, limit)

    def slow(self, limit: int) -> list[Outcome]:
        """The `limit` requests that took longest, however they ended, the longest first."""
        return self._outcomes("WHERE ended_ns IS NOT NULL ORDER BY ended_ns - began_ns DESC", limit)

    def unended(self) -> list[str]:
        """The request ids of all requests of the newest run that have no end, the oldest first."""
        query = (
            "SELECT request_id FROM requests WHERE run = (SELECT max(id) FROM runs) AND ended_ns IS NULL ORDER BY id"
        )
        return [row[0] for row in self._all(_REQUEST_IDS, query)]

    def _outcomes(self, which: str, *parameters: int) -> list[Outcome]:
        columns = "request_id, external_id, wall_ns, (ended_ns - began_ns) / 1e6, finish_reason, error_code"
        rows = self._all(_OUTCOMES, f"SELECT {columns} FROM requests {which} LIMIT ?", *parameters)
        return [Outcome(*row) for row in rows]

    def losses(self) -> list[Loss]:
        """All rows that never reached this trace, of whichever requests, as far as a row about them did; the oldest
        first."""
        return [Loss(*row) for row in self._all(_LOSSES, "SELECT rows, first_ns, last_ns, why FROM losses ORDER BY id")]

    def about(self, request_id: str) -> Traced:
        """Raises `NotFoundError` for an unknown request id."""
        found = self._all(
            _ABOUT,
            "SELECT request_id, external_id, wall_ns, pid, ended FROM requests JOIN runs ON runs.id = run"
            " WHERE requests.id IN (SELECT value FROM json_each(?)) ORDER BY requests.id",
            self._rows_of(request_id),
        )
        if not found:
            raise NotFoundError(f"no trace of request {request_id!r} in {self._path}")
        external_id, wall_ns, pid, ended = found[0][1:]
        return Traced(request_id, external_id, wall_ns, pid, bool(ended))

    def facts(self, request_id: str) -> list[Fact]:
        """In the order in which they were recorded; none for an unknown request id.

        Where rows were lost while the request ran (from its first fact to its last; from the begin of its run where
        its own begin is not among them, to the end of it where its end is not), a `dropped` fact for each such loss
        comes after them.
        """
        found = self._blocks(request_id)
        if not found and self._rows.pop(request_id, []):  # dropped since it was found, and perhaps begun anew
            found = self._blocks(request_id)
        if not found:
            return []
        try:
            facts = unpack(request_id, found[0][0], [block for _, block in found])
        except ValueError as error:
            raise unreadable(self._path, error) from error
        return facts + self._dropped(facts)

    def _blocks(self, request_id: str) -> list[tuple[str, bytes]]:
        return self._all(
            _BLOCKS,
            "SELECT external_id, block FROM facts JOIN requests ON requests.id = request"
            " WHERE request IN (SELECT value FROM json_each(?)) ORDER BY facts.id",
            self._rows_of(request_id),
        )

    def _dropped(self, facts: list[Fact]) -> list[Fact]:
        times = [at_ns for fact in facts if (at_ns := happened(fact)) is not None] or [fact.at_ns for fact in facts]
        if not times:
            return []
        events = {fact.event for fact in facts}
        losses = self._all(
            _LOST,
            "SELECT rows, last_ns, why FROM losses"
            " WHERE run IN (SELECT run FROM requests WHERE id IN (SELECT value FROM json_each(?)))"
            " AND last_ns >= ? AND first_ns <= ? ORDER BY id",
            self._rows_of(facts[0].request_id),
            0 if events.isdisjoint(BEGINS) else min(times),
            _INT64 - 1 if events.isdisjoint(ENDS) else max(times),
        )
        ids = (facts[0].request_id, facts[0].external_id, max(fact.attempt for fact in facts))
        return [Fact(*ids, at_ns, "trace", "dropped", detail={"rows": rows, "why": why}) for rows, at_ns, why in losses]

    def _all(self, type_: Any, query: str, *parameters: str | int) -> list[tuple[Any, ...]]:
        """Rows, of one of the types above."""
        try:
            rows = self._connection.execute(query, parameters).fetchall()
            found: list[tuple[Any, ...]] = msgspec.convert(rows, type_)
        except (sqlite3.Error, msgspec.ValidationError) as error:
            raise unreadable(self._path, error) from error
        return found
