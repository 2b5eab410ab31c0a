"""Who goes first of those that wait (B2)."""

from __future__ import annotations

import random

from omnizmq.router.queue import Line, Queue


def admitted(queue: Queue, taken: set[str]) -> list[str]:
    """Who is asked in one look, when those that are `taken` find room."""
    asked = []
    for _, waiting in queue.heads():
        asked.append(waiting.request_id)
        if waiting.request_id in taken:
            queue.remove(waiting.request_id)
    return asked


def test_b2_the_best_of_all_lines_is_asked_and_behind_it_the_next_of_its_line() -> None:
    queue = Queue(age_s=5.0)
    text, both = Line(("thinker",)), Line(("thinker", "voice"))
    for name, line, priority, since in (
        ("t1", text, 0, 10.0),
        ("b1", both, 0, 11.0),
        ("t2", text, 0, 12.0),
        ("b2", both, 1, 13.0),
    ):
        queue.add(name, line, priority=priority, arrived=since, since=since)
    assert admitted(queue, {"b2", "t1"}) == ["b2", "t1", "b1", "t2"]
    assert len(queue) == 2
    assert admitted(queue, set()) == ["b1", "t2"]


def test_b2_nobody_behind_one_that_finds_no_room_is_asked() -> None:
    queue = Queue(age_s=5.0)
    for number in range(4):
        queue.add(f"r{number}", Line(("thinker",)), priority=0, arrived=float(number), since=float(number))
    assert admitted(queue, {"r0", "r2", "r3"}) == ["r0", "r1"]


def test_b2_the_order_is_that_of_priority_raised_by_waiting_over_any_number_of_lines() -> None:
    chance = random.Random(7)
    queue, ranks = Queue(age_s=2.0), {}
    for number in range(300):
        name, priority, since = f"r{number}", chance.randint(-5, 5), chance.uniform(0, 40)
        queue.add(name, Line(("thinker",), affinity=str(number % 90)), priority=priority, arrived=since, since=since)
        ranks[name] = since / 2.0 - priority
    assert admitted(queue, set(ranks)) == sorted(ranks, key=ranks.__getitem__)
    assert len(queue) == 0
