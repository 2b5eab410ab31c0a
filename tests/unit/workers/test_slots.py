"""Who gets one of a worker's places (B1, B2): the highest priority, waiting raises it, then the order of arrival."""

from __future__ import annotations

import random

import pytest

from omnizmq.workers.slots import RunSlots

S = 10**9


class TestSlots:
    def test_b1_there_are_no_more_holders_than_slots(self) -> None:
        slots: RunSlots[str] = RunSlots(2, 5.0)
        for name in "abcd":
            slots.ask(name, 0, 0)
        assert slots.grant() == ["a", "b"]
        assert slots.contended
        assert slots.grant() == []
        slots.leave("a")
        assert slots.grant() == ["c"]
        slots.leave("b")
        slots.leave("c")
        assert slots.grant() == ["d"]
        assert not slots.contended

    def test_b2_the_highest_priority_goes_first_and_equals_in_the_order_of_arrival(self) -> None:
        slots: RunSlots[str] = RunSlots(6, 5.0)
        for name, priority in (("a", 0), ("b", 2), ("c", -1), ("d", 2), ("e", 0)):
            slots.ask(name, priority, 7)
        assert slots.grant() == ["b", "d", "a", "e", "c"]

    @pytest.mark.parametrize(("waited_s", "first"), [(9.9, "urgent"), (10.0, "patient"), (10.1, "patient")])
    def test_b2_waiting_counts_as_priority(self, waited_s: float, first: str) -> None:
        """Two more of priority are ten seconds of waiting, at five each; of equals the earlier one goes."""
        slots: RunSlots[str] = RunSlots(1, 5.0)
        slots.ask("patient", 1, 0)
        slots.ask("urgent", 3, round(waited_s * S))
        assert slots.grant() == [first]

    def test_b2_nobody_starves_beside_a_stream_of_more_urgent_ones(self) -> None:
        slots: RunSlots[object] = RunSlots(1, 5.0)
        slots.ask("patient", 0, 0)
        for second in range(100):
            slots.ask(second, 10, second * S)
            (got,) = slots.grant()
            if got == "patient":
                break
            slots.leave(got)
        assert second == 50

    def test_asking_again_changes_nothing(self) -> None:
        slots: RunSlots[str] = RunSlots(1, 5.0)
        slots.ask("a", 0, 0)
        assert slots.grant() == ["a"]
        slots.ask("a", 9, 1)
        assert not slots.contended
        slots.ask("b", 0, 1)
        slots.ask("c", 0, 2)
        slots.ask("b", 0, 3)
        slots.leave("a")
        slots.leave("a")
        assert slots.grant() == ["b"]

    def test_whoever_leaves_the_line_and_comes_back_is_the_last(self) -> None:
        slots: RunSlots[str] = RunSlots(1, 5.0)
        for name in "abc":
            slots.ask(name, 0, 0)
        assert slots.grant() == ["a"]
        slots.leave("b")
        slots.ask("b", 0, 0)
        slots.leave("a")
        assert slots.grant() == ["c"]
        slots.leave("nobody")

    @pytest.mark.parametrize("seed", range(20))
    def test_b2_the_order_is_that_of_priorities_raised_by_waiting_at_the_moment_of_the_choice(self, seed: int) -> None:
        chance = random.Random(seed)
        slots: RunSlots[int] = RunSlots(3, 0.25)
        waiting: dict[int, tuple[int, int]] = {}
        holding: set[int] = set()
        now = 0
        for number in range(300):
            now += chance.randrange(S)
            waiting[number] = (chance.randrange(-3, 4), now)
            slots.ask(number, *waiting[number])
            for table in (holding, set(waiting)):
                if table and chance.random() < 0.4:
                    gone = chance.choice(sorted(table))
                    slots.leave(gone)
                    waiting.pop(gone, None)
                    holding.discard(gone)
            best = sorted(waiting, key=lambda each: (-waiting[each][0] * S // 4 - (now - waiting[each][1]), each))
            expected = best[: 3 - len(holding)]
            assert slots.grant() == expected
            holding |= set(expected)
            for each in expected:
                del waiting[each]
