"""What a worker's requests send, on their edges and to their callers (B1, C3, P5, R2, R3, W3). Pure, but that an
engine's own tensors copy themselves here when they go inline.

A chunk waits in its edges until credits and the ring let it go: inline when it is small or its consumer cannot read the
ring; else it is copied once, into a slot for all the consumers that can take it then. The end of an edge follows its
last chunk. An output waits until the caller's window lets it go.
"""

from __future__ import annotations

from collections.abc import Callable

from omnizmq import protocol as wire
from omnizmq.errors import StageError
from omnizmq.shm.ledger import Slot
from omnizmq.workers.chunks import INLINE_BYTES, describe_arrays, pack_arrays, slot_bytes
from omnizmq.workers.edges import OutEdge
from omnizmq.workers.engine import Chunk
from omnizmq.workers.messages import ToConsumer, ToRouter, WriteSlot
from omnizmq.workers.ring import Ring
from omnizmq.workers.work import Work


class Outgoing:
    """Of one worker incarnation. `order` takes what is to be done, in this order. `each_chunk` of an edge is a fact of
    its own in the trace."""

    def __init__(
        self,
        stage: str,
        incarnation: int,
        ring: Ring,
        order: Callable[[ToConsumer | ToRouter | WriteSlot], None],
        *,
        each_chunk: bool = False,
    ) -> None:
        self._stage = stage
        self._incarnation = incarnation
        self._ring = ring
        self._order = order
        self._each_chunk = each_chunk

    def flush(self, work: Work, now_ns: int) -> None:
        """Send what may go; tell consumers of the end, and the router whether the caller has to read first. Raises
        `StageError` for a chunk that cannot be copied."""
        self.deliver(work, now_ns)
        for edge in work.targets.values():
            if not edge.relayed:
                while (chunk := edge.next) is not None and self._send(work, edge, chunk, now_ns):
                    pass
                self._end(work, edge)
                self._look(work, edge, now_ns)
        if work.caller is not None and work.caller.turned(now_ns):
            self._order(ToRouter(wire.StagePaused(*work.key, self._incarnation, work.caller.paused, now_ns)))

    def deliver(self, work: Work, now_ns: int) -> None:
        """The outputs that the caller's window lets go."""
        caller = work.caller
        if caller is None or not caller.waiting:
            return
        while (output := caller.pop()) is not None:
            frame = wire.Output(*work.key, self._incarnation, caller.sent, output.content, output.last, now_ns)
            self._order(ToRouter(frame))

    def relay(self, work: Work, edge: OutEdge, now_ns: int) -> None:
        """All of a relay edge's chunks, to the router, in one piece. Raises `StageError` when that is too large."""
        frames = []
        while edge.waiting:
            chunk = edge.pop(now_ns)
            frames.append(self._inline(work, edge, chunk, pack_arrays(chunk)))
        edge.ended = True
        data = wire.encode_relay(frames)
        if len(data) > wire.CONTENT_BYTES:
            raise StageError(f"the output for {edge.target.stage} is over {wire.CONTENT_BYTES} bytes")
        self._order(ToRouter(wire.RelayContent(*work.key, self._incarnation, edge.target.stage, data)))

    def fail(self, work: Work, error: wire.ErrorInfo) -> None:
        """Whoever waits for more hears of the error instead (R3)."""
        for edge in work.targets.values():
            if edge.open and not edge.relayed:
                failed = wire.EdgeFailed(*work.key, self._incarnation, self._stage, error)
                self._order(ToConsumer(edge.target, failed))

    def _end(self, work: Work, edge: OutEdge) -> None:
        if edge.ending and edge.open and not edge.waiting:
            edge.ended = True
            self._order(ToConsumer(edge.target, wire.EdgeEnd(*work.key, self._incarnation, self._stage, edge.sent)))

    def _look(self, work: Work, edge: OutEdge, now_ns: int) -> None:
        """The first time that an edge parks a request for one cause is a fact."""
        edge.look(now_ns)
        if edge.full:
            cause = self.cause(work, edge)
            if (edge.target.stage, cause) not in work.told:
                work.told.add((edge.target.stage, cause))
                self.tell(work, "parked", now_ns, self._parked(edge, cause))

    def cause(self, work: Work, edge: OutEdge) -> str:
        """Why nothing more may go on an edge that is full."""
        if not edge.ring_full:
            return "credit"
        return "ring" if self._ring.is_first(work.key, edge.peer) else "line"

    def _parked(self, edge: OutEdge, cause: str) -> dict[str, wire.Value]:
        detail: dict[str, wire.Value] = {
            "to": edge.target.stage,
            "replica": edge.target.replica,
            "why": cause,
            "sent": edge.sent,
            "unconsumed": edge.sent - edge.consumed,
        }
        if cause != "credit":
            detail |= {"held_bytes": self._ring.held(edge.peer), "quota_bytes": self._ring.quota(edge.peer)}
        return detail

    def tell(self, work: Work, fact: str, at_ns: int, detail: dict[str, wire.Value] | None = None) -> None:
        """A fact of the trace."""
        self._order(ToRouter(wire.StageFact(*work.key, self._incarnation, fact, at_ns, detail or {})))

    def _send(self, work: Work, edge: OutEdge, chunk: Chunk, now_ns: int) -> bool:
        """Whether the chunk is on its way; else it waits for room in the ring."""
        nbytes = slot_bytes(chunk)
        if nbytes > INLINE_BYTES and self._ring.admits(edge.peer):
            return self._send_by_ring(work, edge, chunk, nbytes, now_ns)
        arrays = pack_arrays(chunk)
        self._pop(work, edge, now_ns)
        self._order(ToConsumer(edge.target, self._inline(work, edge, chunk, arrays)))
        return True

    def _pop(self, work: Work, edge: OutEdge, now_ns: int) -> None:
        chunk = edge.pop(now_ns)
        if self._each_chunk:
            detail: dict[str, wire.Value] = {"to": edge.target.stage, "seq": edge.sent, "bytes": chunk.nbytes}
            self.tell(work, "chunk_sent", now_ns, detail)

    def _send_by_ring(self, work: Work, edge: OutEdge, chunk: Chunk, nbytes: int, now_ns: int) -> bool:
        """One slot for this consumer and all others that can take the same chunk now."""
        going = []
        for other in work.targets.values():
            if other.next is chunk and not other.relayed and self._ring.admits(other.peer):
                other.ring_full = not self._ring.has_turn(work.key, other.peer, nbytes)
                going += [] if other.ring_full else [other]
        if going:
            slot = self._ring.reserve(work.key, [other.peer for other in going], nbytes)
            for other in going:
                self._pop(work, other, now_ns)
            sends = [(other.target, self._in_slot(work, other, chunk, slot)) for other in going]
            self._order(WriteSlot(work.engine_id, slot, chunk, sends))
        return not edge.ring_full

    def _inline(self, work: Work, edge: OutEdge, chunk: Chunk, arrays: list[wire.ArrayData]) -> wire.ChunkFrame:
        return wire.ChunkFrame(*work.key, self._incarnation, self._stage, edge.sent, dict(chunk.meta), arrays)

    def _in_slot(self, work: Work, edge: OutEdge, chunk: Chunk, slot: Slot) -> wire.RingChunk:
        return wire.RingChunk(
            *work.key,
            incarnation=self._incarnation,
            source=self._stage,
            seq=edge.sent,
            meta=dict(chunk.meta),
            arrays=describe_arrays(chunk),
            slot=slot.seq,
            offset=slot.offset,
            nbytes=slot.nbytes,
            spill=None,
        )
