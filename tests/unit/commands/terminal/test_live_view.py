"""What the router and the workers say of a live request, as lines (T1)."""

from __future__ import annotations

from typing import Any

import pytest

from omnizmq.commands.terminal.bars import BLOCKS
from omnizmq.commands.terminal.live_view import live_lines, present
from omnizmq.trace.live import read

NOW = 100_000_000_000
SECOND = 10**9


def stage(replica: str, **known: Any) -> dict[str, Any]:
    """A bound stage that is ready and was heard of half a second ago."""
    return {
        "replica": replica,
        "state": "ready",
        "engine": "idle",
        "engine_since_ns": NOW - 3 * SECOND,
        "heard_ns": NOW - SECOND // 2,
        "submitted": True,
        "finished": False,
        "answer": None,
        **known,
    }


def answer(state: str = "RUNNING", **known: Any) -> dict[str, Any]:
    return {
        "state": state,
        "since_ns": NOW - 2 * SECOND,
        "running": 3,
        "slots": 8,
        "waiting_for_slot": 5,
        "engine": "stepping",
        "engine_since_ns": NOW - SECOND,
        "made_ns": NOW - 4 * SECOND,
        "outputs": 7,
        "inputs": [],
        "edges": [],
        "caller": None,
        **known,
    }


def live(stages: dict[str, dict[str, Any]], **known: Any) -> dict[str, Any]:
    return {
        "attempt": 1,
        "now_ns": NOW,
        "phase": "running",
        "caller": True,
        "deadline_ns": None,
        "queue": None,
        "deliveries": {"thinker": {"sent": 5, "consumed": 2, "ended": False}},
        "stages": stages,
        "silent": [],
        **known,
    }


def edge(**known: Any) -> dict[str, Any]:
    return {
        "to": "talker",
        "replica": "talker/0",
        "made": 9,
        "sent": 8,
        "consumed": 3,
        "window": 5,
        "bytes": 2048,
        "ended": False,
        "closed": False,
        "full": None,
        "full_since_ns": 0,
        "held_bytes": 0,
        "quota_bytes": 16 << 20,
        "holders": [],
        **known,
    }


def text(document: dict[str, Any] | None, width: int | None = None) -> list[str]:
    return [line.text for line in live_lines(read(document), width)]


def test_without_a_live_document_there_is_nothing_to_show() -> None:
    assert text(None) == []


def test_a_stage_and_what_its_worker_says() -> None:
    assert text(live({"thinker": stage("thinker/0", answer=answer())})) == [
        "now: running, its caller is connected",
        "stage      request         engine          slots  wait  out  last moved",
        "thinker/0  runs for 2.0 s  stepping 1.0 s    3/8     5    7   4.0 s ago",
        "outputs sent to its caller: thinker 5",
    ]


@pytest.mark.parametrize(
    ("known", "shown"),
    [
        ({"answer": answer("PARKED")}, "parked: no credit or room for 2.0 s"),
        ({"answer": answer("QUEUED")}, "waits for a slot for 2.0 s"),
        ({"answer": answer("GONE", since_ns=0)}, "is not there"),
        ({"answer": answer("A_NEW_ONE")}, "A_NEW_ONE for 2.0 s"),
        ({"finished": True}, "finished"),
        ({"submitted": False}, "not submitted"),
        ({}, "not asked"),
    ],
)
def test_what_a_stage_does(known: dict[str, Any], shown: str) -> None:
    assert text(live({"talker": stage("talker/0", **known)}))[2].split("  ")[1].strip() == shown


def test_f2_who_does_not_answer_is_named_with_when_it_was_heard() -> None:
    shown = text(live({"talker": stage("talker/0", state="stuck")}, silent=["talker/0"]))[2]
    assert "DOES NOT ANSWER, heard 500 ms ago" in shown
    assert "stuck: idle 3.0 s" in shown


def test_a_stage_that_is_bound_to_nothing_yet() -> None:
    unbound = {"replica": None, "submitted": False, "finished": False, "answer": None}
    queue = {"why": "full", "lacks": "talker", "replicas": "2 of 2 full", "ahead": 3, "since_ns": NOW - 5 * SECOND}
    shown = text(live({"talker": unbound}, phase="waiting", queue=queue))
    assert shown[0] == (
        "now: waiting, its caller is connected, queued for 5.0 s (full, talker: 2 of 2 full), 3 ahead of it"
    )
    assert shown[2].split() == ["talker", "not", "submitted", "-", "-", "-", "-", "-"]


def test_b1_an_edge_without_credit_or_room_says_so_and_who_holds_it() -> None:
    full = edge(full="ring", full_since_ns=NOW - SECOND, held_bytes=12 << 20, holders=["other-1"])
    shown = text(live({"thinker": stage("thinker/0", answer=answer("PARKED", edges=[edge(), full]))}))
    assert shown[3] == "  to talker/0: 9 made, 8 sent (2.0 KiB), 5 of 5 unconsumed"
    assert shown[4].endswith(
        "holds 12.0 MiB of 16.0 MiB; FULL for 1.0 s: its part of the ring is full, held by other-1"
    )
    window = full | {"full": "credit"}
    shown = text(live({"thinker": stage("thinker/0", answer=answer("PARKED", edges=[window]))}))
    assert shown[3].endswith("FULL for 1.0 s: its window of chunks is full")


def test_inputs_and_their_ends() -> None:
    source = {"from": "thinker", "replica": "thinker/0", "received": 5, "taken": 4, "closed": False}
    inputs = [
        source | {"ended": True, "last_ns": NOW - SECOND},
        source | {"ended": False, "closed": True, "last_ns": 0},
    ]
    shown = text(live({"talker": stage("talker/0", answer=answer(inputs=inputs))}))
    assert shown[3:5] == [
        "  from thinker/0: 5 came, 4 taken, last 1.0 s ago, ended",
        "  from thinker/0: 5 came, 4 taken, closed",
    ]


def test_b1_a_caller_that_has_to_read() -> None:
    caller = {"sent": 9, "consumed": 1, "window": 8, "unread_bytes": 2048, "window_bytes": 8 << 20}
    waits = caller | {"waiting": 2, "full": True, "since_ns": NOW - 3 * SECOND}
    shown = text(live({"thinker": stage("thinker/0", answer=answer("PAUSED", caller=waits))}, caller=False))
    assert shown[0] == "now: running, its caller is gone"
    assert shown[3] == (
        "  to its caller: 9 sent, 2 wait; FULL for 3.0 s: its caller has to read, 8 of 8 unread, 2.0 KiB of 8.0 MiB"
    )
    reads = caller | {"waiting": 0, "full": False, "since_ns": 0}
    assert text(live({"thinker": stage("thinker/0", answer=answer(caller=reads))}))[3] == "  to its caller: 9 sent"


def test_r1_a_stage_that_has_taken_all_that_came_waits_for_more() -> None:
    source = {"from": "a", "replica": "a/0", "received": 5, "taken": 5, "ended": False, "closed": False, "last_ns": 0}
    for inputs, shown in (
        ([source], "waits for a chunk for 2.0 s"),
        ([source | {"ended": True}], "runs for 2.0 s"),
        ([source | {"taken": 4}], "runs for 2.0 s"),
        ([], "runs for 2.0 s"),
    ):
        document = live({"b": stage("b/0", answer=answer(engine="idle", inputs=inputs))})
        assert f"  {shown}  " in text(document)[2]
        mark = BLOCKS.waits if shown.startswith("waits") else BLOCKS.computes
        assert present(read(document), "b", 1, 10_000.0, BLOCKS) == (6000.0, mark)


@pytest.mark.parametrize("width", [60, 80, 100])
def test_at_every_width_nothing_is_cut_and_what_the_request_does_is_there(width: int) -> None:
    full = edge(full="ring", full_since_ns=NOW - SECOND, held_bytes=12 << 20, holders=["other-1", "other-2"])
    stages = {name: stage(f"{name}/0", answer=answer("PARKED", edges=[full])) for name in ("thinker", "talker")}
    shown = text(live(stages), width)
    assert max(map(len, shown)) <= width
    assert sum("parked: no credit or room" in line for line in shown) == 2
    assert any(line.startswith("no room here for: ") for line in shown) == (width < 100)


@pytest.mark.parametrize(
    ("state", "shown"),
    [
        ("RUNNING", (6000.0, BLOCKS.computes)),
        ("PARKED", (8000.0, BLOCKS.held)),
        ("QUEUED", (8000.0, BLOCKS.waits)),
        ("SENDING", None),
    ],
)
def test_what_a_bar_shows_of_the_present(state: str, shown: object) -> None:
    document = live({"thinker": stage("thinker/0", answer=answer(state)), "talker": stage("talker/0")})
    assert present(read(document), "thinker", 1, 10_000.0, BLOCKS) == shown
    assert present(read(document), "thinker", 2, 10_000.0, BLOCKS) is None
    assert present(read(document), "talker", 1, 10_000.0, BLOCKS) is None
    assert present(None, "talker", 1, 10_000.0, BLOCKS) is None
    silent = document | {"silent": ["talker/0"]}
    assert present(read(silent), "talker", 1, 10_000.0, BLOCKS) == (9500.0, BLOCKS.silent)
