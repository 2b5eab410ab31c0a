"""An edge that waited for room in the ring, once it need not any more (B1, R5)."""

from __future__ import annotations

from omnizmq import protocol as wire
from omnizmq.workers.edges import OutEdge
from omnizmq.workers.engine import Chunk


def full_ring() -> OutEdge:
    edge = OutEdge(wire.Target("code2wav", "code2wav/0", 1, "ipc:///x", "chunk", 2, 60.0))
    edge.put(Chunk())
    edge.ring_full = True
    return edge


def test_b1_when_the_chunk_goes_another_way_the_request_is_not_parked_any_more() -> None:
    edge = full_ring()
    edge.pop(5)
    assert not edge.full


def test_r5_a_closed_edge_waits_for_no_room() -> None:
    """Else its request would keep a place in the line for that ring."""
    edge = full_ring()
    edge.close()
    assert not edge.ring_full
