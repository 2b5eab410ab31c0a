"""The trace's writer and reader (T1), on real files: what is kept, what is bounded, and what a bad disk costs."""

from __future__ import annotations

import logging
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support import trace_stories as stories

from omnizmq.errors import ConfigError, NotFoundError
from omnizmq.protocol import Value
from omnizmq.trace import database, store
from omnizmq.trace.database import Database, Loss
from omnizmq.trace.facts import Fact
from omnizmq.trace.packing import MAX_DETAIL_CHARS, Block, pack
from omnizmq.trace.store import Outcome, TraceReader, TraceWriter
from omnizmq.trace.timeline import Timeline
from omnizmq.trace.verdict import judge

Open = Callable[..., TraceWriter]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "demo" / "trace.db"


@pytest.fixture
def writer_at() -> Iterator[Open]:
    """Makes writers that are closed with the test."""
    writers: list[TraceWriter] = []

    def open_writer(path: Path, **options: Any) -> TraceWriter:
        writers.append(TraceWriter(path, **{"max_mib": 16, "max_age_days": 7.0, "retry_s": 0.01, **options}))
        return writers[-1]

    yield open_writer
    for writer in writers:
        writer.close()


def request(number: int, external_id: str = "demo") -> str:
    return f"{external_id}-{number:016x}"


def asked(request_id: str) -> Fact:
    return stories.fact(0, "asked", request_id=request_id)


def now(request_id: str, event: str = "received") -> Fact:
    """A fact of the router at the real time, which losses are compared with."""
    return Fact(request_id, request_id.rpartition("-")[0], 1, time.monotonic_ns(), "router", event)


def select(path: Path, query: str) -> list[Any]:
    connection = database.connect(path, mode="ro")
    found = connection.execute(query).fetchall()
    connection.close()
    return found


# --- Kept ----------------------------------------------------------------------------------------------------------


def test_t1_every_fact_comes_back_as_it_was_in_order_while_the_writer_runs(path: Path, writer_at: Open) -> None:
    writer = writer_at(path)
    for fact in stories.spoken():
        writer.append(fact)
    assert writer.flush()
    with TraceReader(path) as reader:
        assert reader.facts(stories.REQUEST) == stories.spoken()
        assert reader.facts("unknown") == []
    assert writer.dropped == 0
    assert writer.failure is None
    assert select(path, "SELECT journal_mode FROM runs") == [("wal",)]


def test_t1_who_asks_is_called_when_it_is_written_and_waits_for_nothing(path: Path, writer_at: Open) -> None:
    writer = writer_at(path)
    writer.append(asked(request(1)))
    assert writer.flush()
    lock = database.connect(path, mode="rw")
    lock.execute("BEGIN IMMEDIATE")
    called = threading.Event()
    writer.append(asked(request(2)))
    writer.when_written(called.set)
    assert not called.is_set()
    lock.execute("ROLLBACK")
    lock.close()
    assert called.wait(10)
    with TraceReader(path) as reader:
        assert reader.find(request(2))
    writer.close()
    late: list[bool] = []
    writer.when_written(lambda: late.append(True))
    assert late


def test_t1_and_after_it_was_closed(path: Path, writer_at: Open) -> None:
    writer = writer_at(path)
    writer.append(asked(stories.REQUEST))
    writer.close()
    assert sorted(one.name for one in path.parent.iterdir()) == ["trace.db"]
    with TraceReader(path) as reader:
        assert reader.facts(stories.REQUEST) == [asked(stories.REQUEST)]
        assert reader.about(stories.REQUEST).ended


def test_i2_find_takes_an_external_or_a_request_id_exactly_the_newest_first(path: Path, writer_at: Open) -> None:
    writer = writer_at(path)
    ids = [request(3), request(1), request(2, "demo-2"), request(9)]
    for request_id in ids:
        writer.append(asked(request_id))
    writer.append(now(ids[0]))  # a later fact does not make a request newer
    writer.flush()
    with TraceReader(path) as reader:
        assert reader.find("demo") == [ids[3], ids[1], ids[0]]
        assert reader.find(ids[1]) == [ids[1]]
        assert reader.find("demo-") == reader.find("dem") == reader.find("%") == reader.find("") == []
        assert reader.last(2) == [ids[3], ids[2]]
        assert reader.last(99) == ids[::-1]


def test_t1_after_a_restart_older_requests_are_still_there_and_older(path: Path, writer_at: Open) -> None:
    """Also when the machine booted in between, so that the monotonic clock is behind."""
    before = time.time_ns()
    writer = writer_at(path)
    writer.append(stories.fact(9000, "asked", request_id=request(1)))
    writer.close()
    with TraceReader(path) as reader:
        first_run = reader.about(request(1))
    writer = writer_at(path)
    writer.append(stories.fact(-9000, "asked", request_id=request(2)))
    writer.flush()
    with TraceReader(path) as reader:
        assert reader.find("demo") == [request(2), request(1)]
        newer, older = reader.about(request(2)), reader.about(request(1))
    assert older == first_run
    assert before <= older.wall_ns <= newer.wall_ns <= time.time_ns()
    assert not newer.ended
    assert newer.pid == os.getpid()


def test_t1_facts_of_a_router_that_was_killed_are_there(path: Path) -> None:
    program = f"""
import os, signal, sys
sys.path.insert(0, {str(Path(stories.__file__).parents[1])!r})
from pathlib import Path
from support import trace_stories as stories
from omnizmq.trace.store import TraceWriter
writer = TraceWriter(Path({str(path)!r}), max_mib=16, max_age_days=7.0)
for fact in stories.started():
    writer.append(fact)
assert writer.flush(60)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", program], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    with TraceReader(path) as reader:
        assert reader.facts(stories.REQUEST) == stories.started()
        assert not reader.about(stories.REQUEST).ended


def test_append_is_safe_from_many_threads(path: Path, writer_at: Open) -> None:
    writer = writer_at(path)

    def append_all(number: int) -> None:
        for _ in range(500):
            writer.append(now(request(number)))

    threads = [threading.Thread(target=append_all, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert writer.flush()
    with TraceReader(path) as reader:
        assert [len(reader.facts(request(number))) for number in range(4)] == [500] * 4


def ended(number: int, took_ms: float, code: str | None = None, *, event: str = "terminal") -> list[Fact]:
    """A request that began a while after the one before it."""
    request_id, began_ms = request(number), number * 1000.0
    detail: dict[str, Value] = {"code": code} if event == "refused" else {"finish_reason": "error" if code else "stop"}
    if code and event == "terminal":
        detail["error_code"] = code
    return [
        stories.fact(began_ms, "asked", request_id=request_id),
        stories.fact(began_ms + took_ms, event, detail=detail, request_id=request_id),
    ]


@pytest.mark.parametrize("later", [False, True], ids=["in one batch", "its end in a later batch"])
def test_t1_failed_and_slow_requests_are_found_by_how_they_ended(later: bool, path: Path, writer_at: Open) -> None:
    writer = writer_at(path)
    lives = [
        ended(1, 30),
        ended(2, 10, "stage_error"),
        ended(3, 20),
        ended(4, 40, "replica_lost"),
        ended(5, 1, "overloaded", event="refused"),
        [asked(request(6))],
    ]
    for life in lives:
        writer.append(life[0])
    if later:
        writer.flush()
    for life in lives:
        for fact in life[1:]:
            writer.append(fact)
    for life in lives:  # what is left of a request that has ended does not change how
        writer.append(now(life[0].request_id, "cleaned"))
    assert writer.flush()
    with TraceReader(path) as reader:
        failed, slow = reader.failed(9, pid=os.getpid()), reader.slow(3)
        assert [one.request_id for one in reader.failed(2, pid=os.getpid())] == [request(5), request(4)]
        wall_ns = reader.about(request(4)).wall_ns
        # Once its run is over, one that has no end will have none.
        over = Outcome(request(6), "demo", reader.about(request(6)).wall_ns, None, None, None)
        assert reader.failed(1, pid=None) == reader.failed(1, pid=os.getpid() + 1) == [over]
        writer.close()
        assert reader.failed(1, pid=os.getpid()) == [over]
    assert [(one.request_id, one.finish_reason, one.error_code) for one in failed] == [
        (request(5), "refused", "overloaded"),
        (request(4), "error", "replica_lost"),
        (request(2), "error", "stage_error"),
    ]
    assert slow == [
        Outcome(request(4), "demo", wall_ns, 40.0, "error", "replica_lost"),
        Outcome(request(1), "demo", wall_ns, 30.0, "stop", None),
        Outcome(request(3), "demo", wall_ns, 20.0, "stop", None),
    ]


def test_t1_an_id_that_comes_again_is_another_request_with_an_end_of_its_own(path: Path, writer_at: Open) -> None:
    writer = writer_at(path)
    again = ended(1, 9, "overloaded", event="refused")
    for life in ([*ended(1, 30), now(request(1), "cleaned")], [asked(request(2))], again):
        for fact in life:
            writer.append(fact)
        assert writer.flush()
    with TraceReader(path) as reader:
        assert [(one.request_id, one.error_code) for one in reader.failed(9, pid=os.getpid())] == [
            (request(1), "overloaded")
        ]
        assert [one.finish_reason for one in reader.slow(9)] == ["stop", "refused"]
        assert reader.find(request(1)) == [request(1)]
        assert set(reader.find("demo")) == {request(1), request(2)}
        assert [fact.event for fact in reader.facts(request(1))] == ["asked", "terminal", "cleaned", "asked", "refused"]


def test_a_request_that_is_dropped_while_it_is_read_has_the_facts_that_come_after(path: Path, writer_at: Open) -> None:
    writer = writer_at(path, max_mib=1)
    writer.append(now(request(1)))
    assert writer.flush()
    with TraceReader(path) as reader:
        assert [fact.event for fact in reader.facts(request(1))] == ["received"]
        for number in range(2, 30):
            for _ in range(2000):
                writer.append(now(request(number)))
            assert writer.flush()
        assert reader.facts(request(1)) == []
        writer.append(now(request(1), "terminal"))
        assert writer.flush()
        assert [fact.event for fact in reader.facts(request(1))] == ["terminal"]


def test_t1_how_a_request_ended_stays_when_a_later_run_tells_more_of_it(path: Path, writer_at: Open) -> None:
    writer = writer_at(path)
    for fact in ended(1, 30, "stage_error"):
        writer.append(fact)
    writer.close()
    writer = writer_at(path)
    writer.append(now(request(1), "cleaned"))
    writer.flush()
    with TraceReader(path) as reader:
        assert [one.error_code for one in reader.failed(9, pid=os.getpid())] == ["stage_error"]
        assert [one.duration_ms for one in reader.slow(9)] == [30.0]


def test_a_long_text_is_cut(path: Path, writer_at: Open) -> None:
    writer = writer_at(path)
    writer.append(stories.fact(1, "terminal", "talker", {"error_message": "x" * 10**6, "outputs": 3}))
    writer.flush()
    with TraceReader(path) as reader:
        (fact,) = reader.facts(stories.REQUEST)
    assert fact.detail == {"error_message": "x" * MAX_DETAIL_CHARS, "outputs": 3}


@pytest.mark.parametrize(
    "bad",
    [
        Fact(request(2), "demo", 1, 1 << 63, "client", "asked"),
        Fact(request(2), "demo", 1 << 64, 1, "client", "asked"),
        Fact(request(2), "demo", 1, 1, "client", "asked", detail={"n": -(1 << 63) - 1}),
        Fact(request(2), "demo", 1, 1, "client", "asked", detail={"why": "\ud800"}),
        Fact(request(2), "dem\udfff", 1, 1, "client", "asked"),
        Fact(request(2), "demo", 1, 1, "client", "asked", detail={"n": object()}),  # type: ignore[dict-item]
    ],
    ids=[
        "a time of a hostile client",
        "an attempt",
        "a number",
        "half a character",
        "half a character in an id",
        "no value",
    ],
)
def test_w1_a_fact_that_cannot_be_stored_costs_no_other_request_anything(
    bad: Fact, path: Path, writer_at: Open
) -> None:
    writer = writer_at(path)
    for fact in (asked(request(1)), bad, asked(request(3))):
        writer.append(fact)
    assert writer.flush()
    assert writer.dropped == 1
    with TraceReader(path) as reader:
        assert reader.last(9) == [request(3), request(1)]


@pytest.mark.parametrize("change", [{"detail": {"why": "\ud800"}}, {"at_ns": 1 << 63}, {"detail": {"n": 1 << 64}}])
def test_w1_a_fact_that_cannot_be_stored_costs_its_own_request_nothing_else(
    change: dict[str, Any], path: Path, writer_at: Open
) -> None:
    writer = writer_at(path)
    bad = msgspec.structs.replace(now(request(1), "queued"), **change)
    for fact in (now(request(1)), bad, now(request(1), "terminal")):
        writer.append(fact)
    assert writer.flush()
    assert writer.dropped == 1
    with TraceReader(path) as reader:
        assert [fact.event for fact in reader.facts(request(1))] == ["received", "terminal", "dropped"]


def test_after_close_facts_are_counted_and_nobody_waits(path: Path, writer_at: Open) -> None:
    writer = writer_at(path)
    writer.close()
    writer.close()
    writer.append(asked(stories.REQUEST))
    assert writer.dropped == 1
    assert writer.flush()


def test_facts_are_gathered_before_they_are_written_but_not_when_a_flush_waits(
    path: Path, writer_at: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "BATCH_INTERVAL_S", 60.0)
    batches: list[int] = []
    add = Database.add

    def counted(self: Database, blocks: Sequence[Block], losses: Sequence[Loss], *, wall_ns: int) -> None:
        batches.append(sum(block.rows for block in blocks))
        add(self, blocks, losses, wall_ns=wall_ns)

    monkeypatch.setattr(Database, "add", counted)
    writer = writer_at(path)
    writer.append(asked(request(1)))
    assert writer.flush()
    writer.append(asked(request(2)))
    time.sleep(0.02)  # time to do the wrong thing
    writer.append(asked(request(3)))
    assert writer.flush()
    assert batches == [1, 2]


# --- Bounded -------------------------------------------------------------------------------------------------------


def test_b1_the_oldest_requests_go_when_the_file_has_its_size(path: Path, writer_at: Open) -> None:
    writer = writer_at(path, max_mib=1)
    for number in range(3000):
        writer.append(stories.fact(1, "terminal", "talker", {"error_message": "x" * 1000}, request_id=request(number)))
    assert writer.flush(30)
    assert writer.dropped == 0
    with TraceReader(path) as reader:
        kept = reader.last(9999)
    assert kept == [request(number) for number in range(2999, 2999 - len(kept), -1)]
    assert 500 < len(kept) < 1100
    writer.close()
    assert path.stat().st_size <= 1 << 20


def test_t1_a_request_is_as_old_as_its_first_fact(path: Path) -> None:
    trace = Database(path, token="t", pid=1)
    trace.add([pack([asked(request(1)), now(request(1))])], [], wall_ns=10)
    trace.add([pack([now(request(1))])], [], wall_ns=30)
    trace.close()
    again = Database(path, token="t", pid=1)
    again.add([pack([now(request(1))])], [], wall_ns=40)
    again.close()
    with TraceReader(path) as reader:
        assert reader.about(request(1)).wall_ns == 10
        assert len(reader.facts(request(1))) == 4


def test_b1_requests_past_their_age_go_with_the_next_batch(path: Path, writer_at: Open) -> None:
    day = 24 * 3600 * 10**9
    old = Database(path, token="old", pid=1)
    old.add([pack([asked(request(1))])], [], wall_ns=time.time_ns() - 8 * day)
    old.add([pack([asked(request(2))])], [], wall_ns=time.time_ns() - 6 * day)
    old.close()
    writer = writer_at(path, max_age_days=7.0)
    writer.append(asked(request(3)))
    writer.flush()
    with TraceReader(path) as reader:
        assert reader.last(9) == [request(3), request(2)]
        assert reader.facts(request(1)) == []
    assert select(path, "SELECT count(*) FROM facts") == [(2,)]


# --- A bad disk ----------------------------------------------------------------------------------------------------


def losses(path: Path) -> list[tuple[int, str]]:
    return select(path, "SELECT rows, why FROM losses ORDER BY id")


def test_a_stuck_disk_costs_the_caller_nothing_and_what_does_not_fit_is_counted(
    path: Path, writer_at: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock of another process stands for a disk that does not answer. It is held until the caller is through."""
    monkeypatch.setattr(database, "BUSY_TIMEOUT_S", 60.0)
    writer = writer_at(path, queue_rows=100)
    writer.append(now(stories.REQUEST))
    writer.flush()
    lock = database.connect(path, mode="rw")
    lock.execute("BEGIN IMMEDIATE")
    took: list[float] = []
    for _ in range(20_000):
        start = time.perf_counter()
        writer.append(now(stories.REQUEST))
        took.append(time.perf_counter() - start)
    lock.execute("ROLLBACK")
    lock.close()
    assert writer.dropped >= 20_000 - 2000 - 2 * 100
    # The median: single calls may be interrupted by the operating system.
    assert sorted(took)[len(took) // 2] < 50e-6
    assert writer.flush()
    with TraceReader(path) as reader:
        facts = reader.facts(stories.REQUEST)
    kept = [fact for fact in facts if fact.event != "dropped"]
    assert len(kept) + writer.dropped == 20_001
    assert sum(rows for rows, _ in losses(path)) == writer.dropped
    assert {why for _, why in losses(path)} == {"the disk did not keep up"}
    assert facts[-1].event == "dropped"


def test_a_flush_of_a_stuck_disk_takes_no_longer_than_it_may(path: Path, writer_at: Open) -> None:
    writer = writer_at(path)
    writer.append(asked(request(1)))
    writer.flush()
    lock = database.connect(path, mode="rw")
    lock.execute("BEGIN IMMEDIATE")
    writer.append(asked(request(2)))
    assert not writer.flush(0.05)
    lock.execute("ROLLBACK")
    lock.close()
    assert writer.flush()
    assert writer.dropped == 0


def test_a_disk_that_stays_stuck_costs_the_batch_alone(
    path: Path, writer_at: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "BUSY_TIMEOUT_S", 0.01)
    writer = writer_at(path, retry_s=60)
    writer.append(now(request(1)))
    writer.flush()
    lock = database.connect(path, mode="rw")
    lock.execute("BEGIN IMMEDIATE")
    writer.append(now(request(1), "queued"))
    assert writer.flush()
    assert (writer.dropped, writer.failure) == (1, "database is locked")
    lock.execute("ROLLBACK")
    lock.close()
    writer.append(now(request(1), "terminal"))
    assert writer.flush()
    with TraceReader(path) as reader:
        assert [fact.event for fact in reader.facts(request(1))] == ["received", "terminal", "dropped"]
        assert len(reader.last(9)) == 1
        assert not reader.about(request(1)).ended  # it is still the same run


def test_a_full_disk_drops_rows_counts_them_and_says_so_when_there_is_room_again(
    path: Path, writer_at: Open, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pages = [20]
    connect = database.connect

    def on_a_small_disk(path: Path, **parameters: str) -> sqlite3.Connection:
        connection = connect(path, **parameters)
        connection.execute(f"PRAGMA max_page_count = {pages[0]}")
        return connection

    monkeypatch.setattr(database, "connect", on_a_small_disk)
    writer = writer_at(path, retry_s=60)
    writer.append(now(request(1)))
    writer.flush()
    large: dict[str, Value] = {str(number): "x" * 4000 for number in range(50)}  # more than the disk holds
    for _ in range(3):
        writer.append(Fact(request(1), "demo", 1, time.monotonic_ns(), "router", "edge", detail=large))
        assert writer.flush()
    assert (writer.dropped, writer.failure) == (3, "database or disk is full")
    pages[0] = 4000
    writer.append(now(request(1), "queued"))
    assert writer.flush()
    assert writer.failure is None
    with TraceReader(path) as reader:
        facts = reader.facts(request(1))
        assert [(loss.rows, loss.why) for loss in reader.losses()] == [(3, "database or disk is full")]
    assert [fact.event for fact in facts] == ["received", "queued", "dropped"]
    assert facts[-1].detail == {"rows": 3, "why": "database or disk is full"}
    assert losses(path) == [(3, "database or disk is full")]
    said = [record.levelname for record in caplog.records if record.name.startswith("omnizmq.trace")]
    assert said == ["WARNING", "INFO"]  # not one for each batch


@pytest.mark.parametrize("place", ["/proc/omnizmq/trace.db", "/dev/null/trace.db"])
def test_a_place_that_cannot_be_written_drops_rows_and_disturbs_nobody(place: str, writer_at: Open) -> None:
    writer = writer_at(Path(place))
    for fact in stories.spoken():
        writer.append(fact)
    assert writer.flush()
    assert writer.dropped == len(stories.spoken())
    assert writer.failure
    writer.close()


@pytest.mark.skipif(os.getuid() == 0, reason="root may write to every folder")
def test_a_read_only_folder_drops_rows(path: Path, writer_at: Open) -> None:
    path.parent.mkdir(mode=0o500)
    writer = writer_at(path)
    writer.append(asked(stories.REQUEST))
    assert writer.flush()
    assert writer.dropped == 1


def test_a_place_that_becomes_writable_is_used_and_the_loss_is_recorded(path: Path, writer_at: Open) -> None:
    path.parent.write_text("in the way")
    writer = writer_at(path)
    writer.append(now(stories.REQUEST))
    writer.flush()
    assert writer.dropped == 1
    path.parent.unlink()
    wait_for(lambda: writer.failure is None)  # it tries again by itself, to record the loss
    assert [rows for rows, _ in losses(path)] == [1]
    writer.append(asked(stories.REQUEST))
    assert writer.flush()
    assert writer.dropped == 1


def wait_for(condition: Callable[[], bool], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_t2_a_loss_concerns_the_requests_of_its_time_alone(path: Path, writer_at: Open) -> None:
    writer = writer_at(path, queue_rows=1000)
    ended, after, open_ended = request(1), request(2), request(3)
    writer.append(now(open_ended))
    writer.append(now(ended))
    writer.append(now(ended, "terminal"))
    writer.flush()
    writer.append(Fact(open_ended, "demo", 1, 1 << 63, "client", "asked"))  # lost
    writer.flush()
    writer.append(now(after))
    writer.append(now(after, "terminal"))
    writer.flush()
    with TraceReader(path) as reader:
        events = {one: [fact.event for fact in reader.facts(one)] for one in (ended, after, open_ended)}
    assert events[ended] == events[after] == ["received", "terminal"]
    assert events[open_ended] == ["received", "dropped"]


def test_t2_a_loss_begins_when_the_first_lost_fact_happened(
    path: Path, writer_at: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not when it was appended, nor when the disk failed on it: a request may have ended in between."""
    monkeypatch.setattr(database, "BUSY_TIMEOUT_S", 0.05)
    writer = writer_at(path, retry_s=60)
    writer.append(now(request(1)))
    writer.flush()
    lock = database.connect(path, mode="rw")
    lock.execute("BEGIN IMMEDIATE")
    lost, terminal = now(request(1), "running"), now(request(1), "terminal")
    writer.append(lost)
    wait_for(lambda: writer.dropped == 1)
    lock.execute("ROLLBACK")
    lock.close()
    writer.append(terminal)
    writer.flush()
    with TraceReader(path) as reader:
        assert [fact.event for fact in reader.facts(request(1))] == ["received", "terminal", "dropped"]


def test_losses_of_one_reason_span_from_the_first_to_the_last(path: Path, writer_at: Open) -> None:
    writer = writer_at(path, retry_s=60)
    path.parent.write_text("in the way")
    begin = time.monotonic_ns()
    for _ in range(3):
        writer.append(now(request(1)))
        writer.flush()
    middle = time.monotonic_ns()
    writer.append(now(request(1)))
    writer.close()
    assert writer.dropped == 4
    path.parent.unlink()
    losses = writer._losses.take()
    assert sum(loss.rows for loss in losses) == 4
    assert begin <= losses[0].first_ns < middle < losses[-1].last_ns


def test_t2_a_lost_terminal_is_not_taken_for_a_deployment_that_ended(path: Path, writer_at: Open) -> None:
    writer = writer_at(path)
    writer.append(now(stories.REQUEST))
    writer.flush()
    writer.append(Fact(stories.REQUEST, "demo", 1, time.monotonic_ns(), "router", "terminal", "\ud800"))
    writer.close()
    with TraceReader(path) as reader:
        text = judge(Timeline(reader.facts(stories.REQUEST)), running=False).text
    assert text.startswith("unknown: the trace lost 1 row meanwhile, perhaps its end")


def test_without_write_ahead_log_it_falls_back_and_records_that(
    path: Path, writer_at: Open, caplog: pytest.LogCaptureFixture
) -> None:
    """SQLite's dot-file locking has no shared memory, like many network file systems."""
    writer = writer_at(path, vfs="unix-dotfile")
    writer.append(asked(stories.REQUEST))
    assert writer.flush()
    assert "no write-ahead log" in caplog.text
    with TraceReader(path) as reader:
        assert reader.facts(stories.REQUEST) == [asked(stories.REQUEST)]
    assert select(path, "SELECT journal_mode FROM runs") == [("delete",)]


# --- An outsider's hand --------------------------------------------------------------------------------------------


def replace(path: Path) -> None:
    """By another file of the same size."""
    other = path.with_name("other")
    other.write_bytes(b"\xa5" * path.stat().st_size)
    other.replace(path)


def truncate(path: Path) -> None:
    os.truncate(path, 0)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def prolong(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"\xa5" * 4096)


HARMS = [
    (Path.unlink, "trace.db", "trace.db was removed"),
    (replace, "trace.db", "trace.db was replaced"),
    (truncate, "trace.db", "trace.db was truncated"),
    (cut, "trace.db", "trace.db was truncated"),
    (prolong, "trace.db", "trace.db was overwritten"),
    (Path.unlink, "trace.db-wal", "trace.db-wal was removed"),
    (replace, "trace.db-wal", "trace.db-wal was replaced"),
    (truncate, "trace.db-wal", "trace.db-wal was truncated"),
    (cut, "trace.db-wal", "trace.db-wal was truncated"),
    (Path.unlink, "trace.db-shm", "trace.db-shm was removed"),
    (replace, "trace.db-shm", "trace.db-shm was replaced"),
    (truncate, "trace.db-shm", "trace.db-shm was truncated"),
]


@pytest.mark.parametrize(("harm", "name", "why"), HARMS, ids=[f"{name} {one.__name__}" for one, name, _ in HARMS])
def test_t1_t2_what_an_outsider_does_to_the_files_is_noticed_and_is_a_loss_of_all_that_was_live(
    harm: Callable[[Path], object],
    name: str,
    why: str,
    path: Path,
    writer_at: Open,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Also while no facts come."""
    monkeypatch.setattr(store, "LOOK_INTERVAL_S", 0.01)
    writer = writer_at(path)
    for number in range(50):
        writer.append(now(request(number)))
        writer.flush()
    harm(path.with_name(name))
    wait_for(lambda: writer.dropped > 0)
    assert writer.flush()
    live, after = request(7), request(99)
    for fact in (now(live, "running"), now(live, "terminal"), now(after), now(after, "terminal")):
        writer.append(fact)
    assert writer.flush()
    assert writer.failure is None
    with TraceReader(path) as reader:
        facts = reader.facts(live)
        assert [(loss.rows, loss.why) for loss in reader.losses()] == [(writer.dropped, why)]
        assert [fact.event for fact in reader.facts(after)] == ["received", "terminal"]
    assert [fact.event for fact in facts if fact.event != "received"] == ["running", "terminal", "dropped"]
    assert writer.dropped == (1 if facts[0].event == "received" else 50)
    assert len([record for record in caplog.records if name in record.getMessage()]) <= 2
    assert name in caplog.text
    writer.close()
    assert not path.with_name("trace.db-wal").exists()
    assert select(path, "PRAGMA integrity_check") == [("ok",)]


def test_t2_a_trace_that_is_found_damaged_is_a_loss_of_all_that_was_live(path: Path, writer_at: Open) -> None:
    writer = writer_at(path, retry_s=0)
    writer.append(now(request(1)))
    writer.flush()
    writer._disk._fail(sqlite_error(sqlite3.SQLITE_CORRUPT))  # as SQLite says it, whenever it comes upon the damage
    writer.append(now(request(1), "terminal"))
    assert writer.flush()
    with TraceReader(path) as reader:
        facts = reader.facts(request(1))
    assert [fact.event for fact in facts] == ["terminal", "dropped"]
    assert facts[-1].detail == {"rows": 1, "why": "trace.db was damaged and set aside"}
    assert judge(Timeline(facts), running=False).text.endswith("(the trace lost 1 row meanwhile)")


def sqlite_error(code: int) -> sqlite3.DatabaseError:
    error = sqlite3.DatabaseError("database disk image is malformed")
    error.sqlite_errorcode = code
    return error


def test_a_trace_from_which_nothing_was_lost_is_begun_anew_in_silence(path: Path, writer_at: Open) -> None:
    """A reader that looks, and the bound of the size, are no harm."""
    writer = writer_at(path, max_mib=1)
    for number in range(3000):
        writer.append(stories.fact(1, "terminal", "talker", {"error_message": "x" * 1000}, request_id=request(number)))
        if number % 500 == 0:
            assert writer.flush(30)
            with TraceReader(path) as reader:
                reader.last(9)
    assert writer.flush(30)
    assert writer.dropped == 0


# --- What is no trace ----------------------------------------------------------------------------------------------


def make_foreign(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE cookies (name TEXT)")
    connection.commit()
    connection.close()


def make_newer(path: Path) -> None:
    Database(path, token="t", pid=1).close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 7")
    connection.close()


def make_garbage(path: Path) -> None:
    path.write_bytes(b"not a database at all, but long enough to look at" * 100)


def make_trace(path: Path) -> None:
    trace = Database(path, token="t", pid=1)
    trace.add([pack([asked(request(number))]) for number in range(500)], [], wall_ns=time.time_ns())
    trace.close()


def make_torn(path: Path) -> None:
    """The first page is good and says that there are others."""
    make_trace(path)
    os.truncate(path, 4096)


def damage(path: Path, table: str) -> None:
    make_trace(path)
    ((page, size),) = select(
        path, f"SELECT rootpage, page_size FROM sqlite_master, pragma_page_size WHERE name = '{table}'"
    )
    with path.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xa5" * size)


def make_damaged_runs(path: Path) -> None:
    """Seen when the run begins."""
    damage(path, "runs")


def make_damaged_facts(path: Path) -> None:
    """Seen when the first facts are written."""
    damage(path, "facts")


NO_TRACES: list[tuple[Callable[[Path], object], type[Exception], str]] = [
    (Path.touch, NotFoundError, "is still empty"),
    (Path.mkdir, ConfigError, "cannot be read as a trace database: "),
    (make_foreign, ConfigError, "is a database, but no trace of omnizmq: name a trace of this version, or delete"),
    (make_newer, ConfigError, "is a trace of schema version 7, and this omnizmq knows version 3: name a trace"),
    (make_garbage, ConfigError, "cannot be read as a trace database: file is not a database"),
]


@pytest.mark.parametrize(("make", "error", "text"), NO_TRACES, ids=["empty", "folder", "foreign", "newer", "garbage"])
def test_a_file_that_is_no_trace_gives_the_reader_one_clear_line(
    make: Callable[[Path], object], error: type[Exception], text: str, tmp_path: Path
) -> None:
    path = tmp_path / "trace.db"
    make(path)
    with pytest.raises(error, match=text) as raised:
        TraceReader(path)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_missing_trace_is_not_found_and_is_not_made(path: Path) -> None:
    with pytest.raises(NotFoundError, match="no trace database at"):
        TraceReader(path)
    assert not path.parent.exists()


def test_an_unknown_request_is_not_found(path: Path, writer_at: Open) -> None:
    writer = writer_at(path)
    writer.append(asked(request(1)))
    writer.flush()
    with TraceReader(path) as reader, pytest.raises(NotFoundError, match="no trace of request 'x'"):
        reader.about("x")


HOSTILE_FACT = msgspec.msgpack.encode(([None], [(1, 1 << 63, "router", "received", None, 0, {})]))


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE requests SET wall_ns = 1e300",
        "UPDATE requests SET wall_ns = x'00'",
        "UPDATE requests SET external_id = x'ff'",
        "UPDATE runs SET pid = 'many'",
        f"UPDATE facts SET block = x'{HOSTILE_FACT.hex()}'",
        "UPDATE facts SET block = 7",
        "UPDATE losses SET rows = -3",
        "UPDATE losses SET last_ns = 1e300, why = 7",
    ],
)
def test_what_no_writer_has_written_gives_the_reader_one_clear_line(change: str, path: Path) -> None:
    trace = Database(path, token="t", pid=1)
    trace.add([pack([now(request(1))])], [Loss(1, 0, 1 << 62, "full")], wall_ns=1)
    trace.close()
    connection = sqlite3.connect(path)
    connection.execute(change)
    connection.commit()
    connection.close()

    def read() -> None:
        with TraceReader(path) as reader:
            reader.about(request(1))
            reader.facts(request(1))

    with pytest.raises(ConfigError, match="cannot be read as a trace database") as raised:
        read()
    assert "\n" not in str(raised.value)


def test_a_torn_trace_gives_the_reader_one_clear_line(tmp_path: Path) -> None:
    make_torn(tmp_path / "trace.db")
    with (
        pytest.raises(ConfigError, match="cannot be read as a trace database"),
        TraceReader(tmp_path / "trace.db") as reader,
    ):
        reader.facts(request(1))


@pytest.mark.parametrize(
    "make", [make_foreign, make_newer, make_garbage, make_torn, make_damaged_runs, make_damaged_facts]
)
def test_the_writer_sets_aside_what_is_no_trace_and_begins_a_new_one(
    make: Callable[[Path], object], path: Path, writer_at: Open, caplog: pytest.LogCaptureFixture
) -> None:
    path.parent.mkdir()
    make(path)
    size = path.stat().st_size
    writer = writer_at(path, retry_s=0)
    for number in (1001, 1002):
        writer.append(asked(request(number)))
        writer.flush()
    assert writer.failure is None
    assert writer.dropped == (make is make_damaged_facts)  # damage that only a write finds costs that write
    assert path.with_name("trace.db.aside").stat().st_size == size
    assert "trace.db.aside" in caplog.text
    with TraceReader(path) as reader:
        assert reader.last(9)[0] == request(1002)


@pytest.mark.skipif(os.getuid() == 0, reason="root may write to every folder")
def test_a_trace_in_a_folder_that_cannot_be_written_can_be_read(path: Path, writer_at: Open) -> None:
    writer = writer_at(path)
    writer.append(asked(stories.REQUEST))
    writer.close()
    path.parent.chmod(0o500)
    try:
        with TraceReader(path) as reader:
            assert reader.facts(stories.REQUEST) == [asked(stories.REQUEST)]
    finally:
        path.parent.chmod(0o700)


@pytest.fixture(autouse=True)
def _log_everything(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="omnizmq")
