"""The two ends of an edge: sequence numbers, totals, credits and bounds (R2, B1, B4)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnizmq import protocol as wire
from omnizmq.errors import IncompleteInputError, StageError
from omnizmq.workers.edges import InEdge, OutEdge
from omnizmq.workers.engine import Chunk


def in_edge(mode: str = "chunk") -> InEdge:
    return InEdge(wire.Source("thinker", "thinker/0", 1, mode))


def out_edge(window: int = 2, mode: str = "chunk") -> OutEdge:
    return OutEdge(wire.Target("code2wav", "code2wav/0", 1, "ipc:///x", mode, window, 60.0))


def sized(size: int) -> Chunk:
    return Chunk({}, {"rows": np.zeros(size, np.uint8)})


class TestInEdge:
    @given(seqs=st.lists(st.integers(-2, 12), max_size=40))
    @settings(derandomize=True)
    def test_r2_each_number_is_new_once_and_a_gap_is_an_error(self, seqs: list[int]) -> None:
        edge, seen = in_edge(), 0
        for seq in seqs:
            if seq > seen + 1:
                with pytest.raises(IncompleteInputError, match=f"chunk {seq} follows chunk {seen}") as caught:
                    edge.take(seq)
                assert (caught.value.stage, caught.value.replica) == ("thinker", "thinker/0")
            else:
                assert edge.take(seq) is (seq == seen + 1)
                seen = max(seen, seq)
            assert edge.received == seen
        assert edge.duplicates == sum(1 for _ in seqs) - seen - sum(self._gaps(seqs))

    def _gaps(self, seqs: list[int]) -> list[bool]:
        seen, gaps = 0, []
        for seq in seqs:
            gaps.append(seq > seen + 1)
            seen = seen + 1 if seq == seen + 1 else seen
        return gaps

    @pytest.mark.parametrize("total", [-1, 1, 3, 10**9])
    def test_r2_a_wrong_total_is_an_error_and_the_edge_stays_open(self, total: int) -> None:
        edge = in_edge()
        edge.take(1)
        edge.take(2)
        with pytest.raises(IncompleteInputError, match=f"edge from thinker: {total} chunks were sent, 2 arrived"):
            edge.end(total)
        assert edge.open
        edge.end(2)
        assert not edge.open

    def test_r1_a_chunk_edge_has_input_with_its_first_chunk_and_others_when_they_are_whole(self) -> None:
        for mode, early in (("chunk", True), ("payload", False), ("relay", False)):
            edge = in_edge(mode)
            assert not edge.has_input
            edge.take(1)
            assert edge.has_input is early
            edge.end(1)
            assert edge.has_input

    def test_r5_a_closed_edge_holds_nothing(self) -> None:
        edge = in_edge("payload")
        edge.hold(sized(10))
        edge.close()
        assert (edge.open, edge.held) == (False, [])

    def test_b1_a_payload_is_bounded_in_bytes(self) -> None:
        edge, half = in_edge("payload"), sized(wire.MESSAGE_BYTES // 2)
        edge.hold(half)
        edge.hold(half)
        with pytest.raises(StageError, match="the payload from thinker is over 67108864 bytes"):
            edge.hold(sized(1))

    def test_b1_the_bytes_of_a_payload_are_counted_once_each(self) -> None:
        """A payload of many small chunks: counting them anew for each would take minutes."""
        edge, chunk = in_edge("payload"), Chunk({"n": 1})
        for _ in range(100_000):
            edge.hold(chunk)
        assert len(edge.held) == 100_000

    def test_b4_credits_in_advance_are_bounded_and_settled_when_the_engine_takes(self) -> None:
        edge, third = in_edge(), sized(wire.MESSAGE_BYTES // 3)
        assert [edge.prepay(third) for _ in range(4)] == [True, True, True, False]
        assert [edge.took(1) for _ in range(4)] == [0, 0, 0, 1]
        assert edge.took(5) == 5

    @given(paid=st.integers(0, 5), taken=st.lists(st.integers(1, 3), max_size=6))
    @settings(derandomize=True)
    def test_b4_no_credit_is_lost_or_given_twice(self, paid: int, taken: list[int]) -> None:
        edge = in_edge()
        early = sum(edge.prepay(Chunk()) for _ in range(paid))
        late = sum(edge.took(chunks) for chunks in taken)
        assert early + late == max(paid, sum(taken))


class TestOutEdge:
    @given(moves=st.lists(st.sampled_from(["put", "next", "credit"]), max_size=60), window=st.integers(1, 4))
    @settings(derandomize=True)
    def test_b1_never_more_than_the_window_is_under_way(self, moves: list[str], window: int) -> None:
        edge = out_edge(window)
        put = went = 0
        for move in moves:
            if move == "put":
                put += 1
                edge.put(Chunk({"n": put}))
            elif move == "next":
                may = went < put and went - edge.consumed < window
                assert (edge.next is not None) is may
                if may:
                    went += 1
                    assert edge.pop(5).meta["n"] == went
            else:
                edge.credit(edge.consumed + 1)
            assert edge.sent == went
            assert edge.sent - edge.consumed <= window
            assert edge.full is (edge.sent - edge.consumed == window)

    def test_b1_a_credit_never_goes_back_nor_ahead_of_what_was_sent(self) -> None:
        edge = out_edge(3)
        for _ in range(3):
            edge.put(Chunk())
            edge.pop(1)
        for consumed, expected in ((2, 2), (1, 2), (-1, 2), (99, 3), (0, 3)):
            edge.credit(consumed)
            assert edge.consumed == expected

    def test_r5_a_closed_edge_is_never_full_and_takes_nothing(self) -> None:
        edge = out_edge(1)
        edge.put(Chunk())
        edge.put(Chunk())
        edge.pop(1)
        assert edge.full
        edge.close()
        edge.put(Chunk())
        assert (edge.full, edge.open, len(edge.waiting), edge.next) == (False, False, 0, None)

    def test_b1_a_relay_edge_is_never_full_but_bounded_in_bytes(self) -> None:
        edge = out_edge(1, "relay")
        for _ in range(5):
            edge.put(Chunk({"n": 1}))
        for _ in range(5):
            assert edge.next is edge.pop(1)
        assert edge.next is None
        edge.put(sized(wire.CONTENT_BYTES))
        with pytest.raises(StageError, match="the output for code2wav is over 67043328 bytes"):
            edge.put(sized(1))

    def test_c6_the_count_has_bytes_of_arrays_and_texts_and_the_times_of_first_and_last(self) -> None:
        edge = out_edge()
        assert edge.count(1) == wire.EdgeCount("code2wav", 0, 0, 0, 0, 0)
        edge.put(sized(100))
        edge.put(Chunk({"word": "né", "n": 5}))
        edge.pop(7)
        edge.pop(9)
        assert edge.count(9) == wire.EdgeCount("code2wav", 2, 103, 7, 9, 0)
