"""The two ends of an edge in a worker: sequence numbers, totals, credits (P5, R2, R5, B1, B4). Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from omnizmq import protocol as wire
from omnizmq.errors import IncompleteInputError, StageError
from omnizmq.workers.engine import Chunk


@dataclass
class InEdge:
    """The consumer's end."""

    source: wire.Source
    received: int = 0
    consumed: int = 0
    duplicates: int = 0
    ended: bool = False
    closed: bool = False  # by this consumer, or with its producer
    held: list[Chunk] = field(default_factory=list)  # of a payload edge, until it is whole
    held_bytes: int = 0
    prepaid: int = 0  # chunks whose credit went back before the engine took them (B4)
    prepaid_bytes: int = 0
    taken: int = 0  # chunks that the engine has taken
    withheld: bool = False  # a chunk came beyond what may be prepaid
    came_ns: int = 0  # the last new chunk

    @property
    def peer(self) -> tuple[str, int]:
        """The producer's replica and incarnation."""
        return self.source.replica, self.source.incarnation

    @property
    def open(self) -> bool:
        return not (self.ended or self.closed)

    @property
    def has_input(self) -> bool:
        """A chunk edge with its first chunk; any other edge when it is whole."""
        return self.ended or (self.source.mode == "chunk" and self.received > 0)

    def take(self, seq: int) -> bool:
        """Whether this chunk is new. Raises `IncompleteInputError` for a gap."""
        if seq <= self.received:
            self.duplicates += 1
            return False
        if seq != self.received + 1:
            raise self._incomplete(f"chunk {seq} follows chunk {self.received}")
        self.received = seq
        return True

    def hold(self, chunk: Chunk) -> None:
        """Raises `StageError` when the payload gets too large."""
        self.held.append(chunk)
        self.held_bytes += chunk.nbytes
        if self.held_bytes > wire.MESSAGE_BYTES:
            raise StageError(f"the payload from {self.source.stage} is over {wire.MESSAGE_BYTES} bytes")

    def prepay(self, chunk: Chunk) -> bool:
        """Whether this chunk's credit may go back now, although the engine has not taken it."""
        if self.prepaid_bytes + chunk.nbytes > wire.MESSAGE_BYTES:
            self.withheld = True
            return False
        self.prepaid += 1
        self.prepaid_bytes += chunk.nbytes
        return True

    def took(self, chunks: int) -> int:
        """How many of the chunks that the engine took are still to be credited."""
        self.taken += chunks
        paid = min(self.prepaid, chunks)
        self.prepaid -= paid
        return chunks - paid

    def close(self) -> None:
        self.closed = True
        self.held.clear()

    def end(self, total: int) -> None:
        """Raises `IncompleteInputError` when not all have come."""
        if total != self.received:
            raise self._incomplete(f"{total} chunks were sent, {self.received} arrived")
        self.ended = True

    def _incomplete(self, what: str) -> IncompleteInputError:
        text = f"edge from {self.source.stage}: {what}"
        return IncompleteInputError(text, stage=self.source.stage, replica=self.source.replica)


@dataclass
class OutEdge:
    """The producer's end. `waiting` are chunks that credits or the ring do not let go yet."""

    target: wire.Target
    sent: int = 0
    consumed: int = 0
    bytes: int = 0
    first_ns: int = 0
    last_ns: int = 0
    waiting: deque[Chunk] = field(default_factory=deque)
    ring_full: bool = False  # the next chunk waits for room in the ring
    full_ns: int | None = None  # since when it is full, as far as was looked
    parked_ns: int = 0  # for how long it was, before
    relayed_bytes: int = 0
    ending: bool = False  # no more chunks will be put
    ended: bool = False  # and the consumer has been told
    closed: bool = False  # by the consumer (R5)

    @property
    def peer(self) -> tuple[str, int]:
        """The consumer's replica and incarnation."""
        return self.target.replica, self.target.incarnation

    @property
    def relayed(self) -> bool:
        return self.target.mode == "relay"

    @property
    def open(self) -> bool:
        return not (self.ended or self.closed)

    @property
    def spent(self) -> bool:
        """No credit left, until the consumer has taken something."""
        return not self.relayed and self.sent - self.consumed >= self.target.window

    @property
    def full(self) -> bool:
        """Without credit or room the request is parked."""
        return self.open and (self.spent or self.ring_full)

    @property
    def next(self) -> Chunk | None:
        """The next chunk that may go, as far as credits say."""
        return self.waiting[0] if self.waiting and not self.spent else None

    def put(self, chunk: Chunk) -> None:
        """Raises `StageError` when a relay edge's content gets too large."""
        if not self.open:
            return
        self.waiting.append(chunk)
        if self.relayed:
            self.relayed_bytes += chunk.nbytes
            if self.relayed_bytes > wire.CONTENT_BYTES:
                raise StageError(f"the output for {self.target.stage} is over {wire.CONTENT_BYTES} bytes")

    def pop(self, now_ns: int) -> Chunk:
        """The next chunk, counted as sent."""
        chunk = self.waiting.popleft()
        self.ring_full = False
        self.sent += 1
        self.bytes += chunk.nbytes
        self.first_ns = self.first_ns or now_ns
        self.last_ns = now_ns
        return chunk

    def credit(self, consumed: int) -> None:
        """Cumulative; a credit for what was never sent counts for nothing."""
        self.consumed = max(self.consumed, min(consumed, self.sent))

    def close(self) -> None:
        self.closed = True
        self.ring_full = False
        self.waiting.clear()

    def look(self, now_ns: int) -> None:
        """Note since when it is full, or that it no longer is."""
        if self.full and self.full_ns is None:
            self.full_ns = now_ns
        elif not self.full and self.full_ns is not None:
            self.parked_ns += now_ns - self.full_ns
            self.full_ns = None

    def count(self, now_ns: int) -> wire.EdgeCount:
        parked_ns = self.parked_ns + (0 if self.full_ns is None else now_ns - self.full_ns)
        return wire.EdgeCount(self.target.stage, self.sent, self.bytes, self.first_ns, self.last_ns, parked_ns)
