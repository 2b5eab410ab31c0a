"""Timers of requests."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from support.properties import checked

from omnizmq.router.timers import SLACK, Timers


def test_due_ones_come_in_order_and_once() -> None:
    timers = Timers()
    for at, name in ((3.0, "c"), (1.0, "a"), (2.0, "b"), (2.0, "b2"), (9.0, "late")):
        timers.add(at, name, "deadline", 1)
    assert timers.next() == 1.0
    assert timers.due(0.9) == []
    assert timers.due(3.0) == [(name, "deadline", 1) for name in ("a", "b", "b2", "c")]
    assert timers.due(3.0) == []
    assert (timers.next(), len(timers)) == (9.0, 1)


def test_a_request_that_has_ended_takes_its_timers_with_it() -> None:
    timers = Timers()
    timers.add(1.0, "a", "abort", 2)
    timers.add(2.0, "a", "deadline", 1)
    timers.add(3.0, "b", "deadline", 1)
    timers.cancel("a")
    timers.cancel("a")
    timers.cancel("nobody")
    assert (timers.next(), len(timers)) == (3.0, 1)
    assert timers.due(10.0) == [("b", "deadline", 1)]
    timers.cancel("b")
    assert (timers.next(), len(timers)) == (None, 0)


def test_an_id_that_comes_again_does_not_inherit_the_timers_of_its_first_bearer() -> None:
    timers = Timers()
    timers.add(1.0, "a", "deadline", 1)
    timers.cancel("a")
    timers.add(5.0, "a", "deadline", 1)
    assert timers.due(1.0) == []
    assert timers.due(5.0) == [("a", "deadline", 1)]


def test_b3_the_deadlines_of_a_million_short_requests_do_not_pile_up() -> None:
    """A deadline of a day each; ten of them live at a time."""
    timers = Timers()
    for n in range(100_000):
        timers.add(n + 86_400.0, str(n), "deadline", 1)
        timers.cancel(str(n - 10))
    assert len(timers) == 10
    assert len(timers._heap) <= 3 * 10 + SLACK
    assert timers._of.keys() == {str(n) for n in range(99_990, 100_000)}


@checked(200)
@given(st.lists(st.tuples(st.sampled_from(["add", "cancel", "due"]), st.integers(0, 9), st.sampled_from("abc"))))
def test_they_behave_like_a_sorted_list(moves: list[tuple[str, int, str]]) -> None:
    timers = Timers()
    expected: list[tuple[int, int, str, str]] = []
    for number, (move, at, name) in enumerate(moves):
        if move == "add":
            timers.add(at, name, str(number), number % 3)
            expected.append((at, number, name, str(number)))
        elif move == "cancel":
            timers.cancel(name)
            expected = [entry for entry in expected if entry[2] != name]
        else:
            due = sorted(entry for entry in expected if entry[0] <= at)
            assert timers.due(at) == [(name, kind, number % 3) for _, number, name, kind in due]
            expected = [entry for entry in expected if entry[0] > at]
        assert timers.next() == min((entry[0] for entry in expected), default=None)
        assert len(timers) == len(expected)
