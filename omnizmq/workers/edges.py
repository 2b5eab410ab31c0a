"""The two ends of an edge in a worker: sequence numbers, totals, credits (P5, R2, R5). Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from omnizmq import protocol as wire
from omnizmq.errors import IncompleteInputError
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
    """The producer's end. `waiting` are chunks that no credit lets go yet."""

    target: wire.Target
    sent: int = 0
    consumed: int = 0
    bytes: int = 0
    first_ns: int = 0
    last_ns: int = 0
    waiting: deque[Chunk] = field(default_factory=deque)
    ending: bool = False  # no more chunks will be put
    ended: bool = False  # and the consumer has been told
    closed: bool = False  # by the consumer (R5)

    @property
    def relayed(self) -> bool:
        return self.target.mode == "relay"

    @property
    def open(self) -> bool:
        return not (self.ended or self.closed)

    @property
    def full(self) -> bool:
        """No credit left: the request is parked until the consumer has taken something."""
        return self.open and not self.relayed and self.sent - self.consumed >= self.target.window

    def put(self, chunk: Chunk) -> None:
        if self.open:
            self.waiting.append(chunk)

    def next(self, now_ns: int) -> Chunk | None:
        """The next chunk that may go, counted as sent; None when there is none or no credit."""
        if not self.waiting or self.full:
            return None
        chunk = self.waiting.popleft()
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
        self.waiting.clear()

    def count(self) -> wire.EdgeCount:
        return wire.EdgeCount(self.target.stage, self.sent, self.bytes, self.first_ns, self.last_ns)
