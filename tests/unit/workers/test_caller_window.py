"""The smallest windows of a caller, and outputs that weigh nothing (B1)."""

from __future__ import annotations

from support.gate_play import submit

from omnizmq import protocol as wire
from omnizmq.workers.caller import CallerEdge


def caller(window: int, window_bytes: int) -> CallerEdge:
    edge = CallerEdge.of(submit(final=True, window=window, window_bytes=window_bytes))
    assert edge is not None
    return edge


def test_b1_a_window_of_no_bytes_is_one_of_a_byte() -> None:
    edge = caller(8, 0)
    for _ in range(2):
        edge.put(wire.Text("x"), last=False)
    assert edge.pop() is not None
    assert edge.full
    assert edge.pop() is None


def test_b1_an_output_without_content_takes_no_bytes() -> None:
    edge = caller(8, 1)
    for _ in range(3):
        edge.put(None, last=False)
        assert edge.pop() is not None
    assert (edge.unread, edge.unread_bytes) == (3, 0)
