"""When the heap of timers is rid of those that were cancelled: not for each of them, and not too late (B3)."""

from __future__ import annotations

import random

from omnizmq.router.timers import SLACK, Timers

LIVE = 100


def test_b3_cancelled_ones_stay_while_they_are_as_many_as_the_live_ones_and_the_slack_and_no_longer() -> None:
    timers = Timers()
    for n in range(LIVE):
        timers.add(1000.0 + n, f"live{n}", "deadline", 1)
    for n in range(LIVE + SLACK):
        timers.add(float(n), str(n), "deadline", 1)
    for n in range(LIVE + SLACK):
        timers.cancel(str(n))
    assert len(timers._heap) == 2 * LIVE + SLACK, "tidied for each, a cancel would cost what there is"
    timers.add(0.0, "one more", "deadline", 1)
    timers.cancel("one more")
    assert len(timers._heap) == LIVE == len(timers)
    assert timers.next() == 1000.0


def test_b3_what_is_left_when_it_was_tidied_is_due_in_order() -> None:
    chance = random.Random(3)
    timers, times = Timers(), {str(n): chance.random() for n in range(1000)}
    for name, at in times.items():
        timers.add(at, name, "deadline", 1)
    left = [name for name in times if name.endswith("7")]
    for name in times.keys() - set(left):
        timers.cancel(name)
    assert len(timers._heap) < 300
    assert [timer.request_id for timer in timers.due(1.0)] == sorted(left, key=times.__getitem__)


def test_f2_those_of_some_kinds_are_due_later_and_the_others_as_they_were() -> None:
    """Cancelled ones among them, which are still in the heap, and stay cancelled."""
    timers = Timers()
    for at, kind in ((1.0, "grace"), (2.0, "deadline"), (3.0, "abort"), (4.0, "deadline")):
        timers.add(at, f"{kind}{at:.0f}", kind, 1)
    timers.add(0.5, "gone", "grace", 1)
    timers.cancel("gone")
    timers.postpone(("grace", "abort"), 2.5)
    due = []
    while (at := timers.next()) is not None:
        due += [(at, timer.request_id) for timer in timers.due(at)]
    assert due == [(2.0, "deadline2"), (3.5, "grace1"), (4.0, "deadline4"), (5.5, "abort3")]


def test_f2_who_is_postponed_lets_the_others_go_first() -> None:
    timers = Timers()
    for at in range(8):
        timers.add(float(at), str(at), "abort" if at < 4 else "deadline", 1)
    timers.postpone(("abort",), 10.0)
    assert [timer.request_id for timer in timers.due(20.0)] == [*"45670123"]
