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
