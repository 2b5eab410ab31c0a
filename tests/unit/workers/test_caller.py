"""A caller's window at a final stage's gate: what may go, what waits, what credits do (B1)."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from support.gate_play import submit

from omnizmq import protocol as wire
from omnizmq.workers.caller import CallerEdge


def caller(window: int = 3, window_bytes: int = 10, unread: int = 0) -> CallerEdge:
    edge = CallerEdge.of(submit(final=True, window=window, window_bytes=window_bytes, unread=unread))
    assert edge is not None
    return edge


def says(edge: CallerEdge, *texts: str | None, last: bool = False) -> list[str | None]:
    """All of that, and what of it (and of what waited) goes."""
    for number, text in enumerate(texts, 1):
        edge.put(None if text is None else wire.Text(text), last=last and number == len(texts))
    return goes(edge)


def goes(edge: CallerEdge) -> list[str | None]:
    gone = []
    while (output := edge.pop()) is not None:
        assert output.content is None or isinstance(output.content, wire.Text)
        gone.append(None if output.content is None else output.content.text)
    return gone


class TestB1:
    def test_b1_so_many_outputs_go_unread_and_no_more(self) -> None:
        edge = caller(window=3)
        assert says(edge, "a", "b") == ["a", "b"]
        assert not edge.full
        assert says(edge, "c", "d", "e") == ["c"]
        assert edge.full
        edge.credit(1, 0)
        assert goes(edge) == ["d"]
        edge.credit(4, 0)
        assert goes(edge) == ["e"]
        assert not edge.full

    def test_b1_bytes_count_too_and_one_output_goes_however_large(self) -> None:
        edge = caller(window=100, window_bytes=10)
        assert says(edge, "x" * 1000, "y") == ["x" * 1000]
        edge.credit(1, 0)
        assert goes(edge) == ["y"]
        assert says(edge, "é" * 4, "z", "w") == ["é" * 4, "z"], "1 + 8 bytes, then one output more"
        assert edge.unread_bytes == 10
        edge.credit(3, 0)
        assert edge.unread_bytes == 1
        assert goes(edge) == ["w"]

    def test_b1_sound_counts_as_its_bytes(self) -> None:
        edge = caller(window_bytes=8)
        edge.put(wire.Audio(bytes(8), 24_000), last=False)
        edge.put(None, last=False)
        assert edge.pop() is not None
        assert edge.pop() is None

    @given(
        window=st.integers(1, 40),
        kib=st.integers(1, 40),
        sizes=st.lists(st.integers(0, 50_000), max_size=60),
    )
    @settings(derandomize=True, deadline=None)
    def test_b1_whoever_tells_of_each_eighth_that_it_has_read_is_never_waited_for(
        self, window: int, kib: int, sizes: list[int]
    ) -> None:
        edge = caller(window, kib << 10)
        for size in sizes:
            edge.put(wire.Text("x" * size), last=False)
        came = told = since = 0
        while edge.waiting:
            output = edge.pop()
            if output is None:
                raise AssertionError(f"{came} outputs were read, {told} told, {len(edge.waiting)} wait")
            assert isinstance(output.content, wire.Text)
            assert edge.unread <= window
            came, since = came + 1, since + len(output.content.text)
            if came - told >= max(1, window // 8) or since >= (kib << 10) // 8:
                told, since = came, 0
                edge.credit(told, 0)

    def test_b1_credits_are_cumulative_and_older_ones_change_nothing(self) -> None:
        edge = caller(window=2)
        says(edge, "a", "b", "c", "d")
        edge.credit(2, 5)
        assert goes(edge) == ["c", "d"]
        for old in (2, 1, 0, -7):
            edge.credit(old, 9)
            assert (edge.consumed, edge.since_ns, goes(edge)) == (2, 9, [])  # but the caller reads

    def test_b1_a_credit_for_what_was_never_sent_counts_for_what_was(self) -> None:
        edge = caller(window=2)
        says(edge, "a", "b", "c", "d", "e")
        edge.credit(10**9, 0)
        assert (edge.unread, edge.unread_bytes) == (0, 0)
        assert goes(edge) == ["c", "d"]

    def test_b1_outputs_of_earlier_attempts_take_up_the_window(self) -> None:
        edge = caller(window=3, unread=2)
        assert says(edge, "a", "b", "c") == ["a"]
        edge.credit(-1, 0)
        assert goes(edge) == ["b"]
        assert edge.unread_bytes == 2
        edge.credit(0, 0)
        assert goes(edge) == ["c"]
        edge.credit(1, 0)
        assert (edge.unread, edge.unread_bytes) == (2, 2)

    def test_b1_a_window_that_earlier_attempts_have_filled_is_full_from_the_start(self) -> None:
        edge = caller(window=3, unread=5)
        assert edge.full
        assert says(edge, "a") == []
        edge.credit(-2, 0)
        assert goes(edge) == ["a"]

    def test_b1_the_last_output_frees_whoever_waits(self) -> None:
        edge = caller(window=2)
        assert says(edge, "a", "b", "c", last=True) == ["a", "b"]
        assert edge.open
        edge.credit(1, 0)
        assert goes(edge) == ["c"]
        assert (edge.open, edge.full, edge.unread) == (False, False, 2)

    def test_b1_windows_of_nothing_are_windows_of_one(self) -> None:
        edge = caller(window=0, window_bytes=0, unread=-3)
        assert says(edge, "", "b") == [""]
        edge.credit(1, 0)
        assert goes(edge) == ["b"]

    def test_b1_a_pause_is_told_when_it_begins_and_when_it_ends(self) -> None:
        edge = caller(window=1)
        assert not edge.turned(1)
        says(edge, "a", "b", "c")
        assert edge.turned(2)
        assert (edge.paused, edge.since_ns) == (True, 2)
        edge.credit(1, 3)
        assert goes(edge) == ["b"]
        assert not edge.turned(4), "it is full again"
        assert edge.since_ns == 3
        edge.credit(2, 5)
        assert goes(edge) == ["c"]
        edge.credit(3, 6)
        assert edge.turned(7)
        assert not edge.paused

    def test_a3_what_is_discarded_is_counted(self) -> None:
        edge = caller(window=1)
        says(edge, "a", "b", "c")
        assert edge.discard() == 2
        edge.credit(1, 0)
        assert goes(edge) == []

    def test_p4_a_stage_that_is_not_final_has_no_caller(self) -> None:
        assert CallerEdge.of(submit(final=False)) is None


def test_f2_what_the_caller_had_already_takes_no_room_in_its_window() -> None:
    """However large it is, and although credits of an eighth of a window are still on their way."""
    edge = CallerEdge(window=8, window_bytes=10, consumed=-1)
    edge.put(wire.Text("x" * 20), last=False)
    assert edge.pop() is not None
    assert edge.full
    edge.credit(0, 5, skipped=1)
    assert (edge.full, edge.unread, edge.unread_bytes) == (False, 1, 0)
    edge.put(wire.Text("y" * 4), last=False)
    assert edge.pop() is not None
    assert edge.unread_bytes == 4
