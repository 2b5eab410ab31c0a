"""A producer's ring as its gate sees it: who reads from it, and who waits for room (B1, B4). Pure.

A reader is one incarnation of a consumer that has said that it can read the ring. Its quota is the edge's share of the
ring, divided among the consumer's replicas, so that a slow one cannot take what others need. Requests that find it full
stand in one line for each reader: in order of arrival, so that a large chunk is never overtaken for ever.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from omnizmq import protocol as wire
from omnizmq.config import Config
from omnizmq.shm.ledger import Ledger, Slot

Peer = tuple[str, int]
"""A replica and its incarnation."""

Key = tuple[str, int]
"""A request id and the number of its attempt."""


@dataclass(frozen=True)
class Share:
    """What one outgoing edge may hold of the ring: `capacity` bytes in all, `quota` of them for each reader."""

    capacity: int
    quota: int


def ring_shares(config: Config, stage: str) -> dict[str, Share]:
    """By consumer stage, what the edges out of `stage` may hold of its workers' rings. Relay edges need none."""
    replicas = {stage.name: stage.replicas for stage in config.stage}
    edges = [edge for edge in config.edge if edge.source == stage and edge.mode != "relay"]
    return {edge.target: Share(edge.ring_mib << 20, (edge.ring_mib << 20) // replicas[edge.target]) for edge in edges}


class Ring:
    """`shares` by consumer stage; empty: this worker has no ring, and everything goes inline."""

    def __init__(self, shares: Mapping[str, Share]) -> None:
        self.shares = shares
        self._ledger = Ledger(sum(share.capacity for share in shares.values()))
        self._stage: dict[Peer, str] = {}  # of every reader that was offered the ring
        self._excluded: set[Peer] = set()
        self._lines: dict[Peer, deque[Key]] = {}
        self._owner: dict[int, str] = {}  # slot number -> the request whose chunk is in it
        self._moved: list[Peer] = []  # whose first in line may find room now

    def meet(self, peer: Peer, stage: str) -> int | None:
        """The quota to offer to a reader that is new here. None: it is known, or its edge has no share."""
        if peer in self._stage or stage not in self.shares:
            return None
        self._stage[peer] = stage
        return self.shares[stage].quota

    def admit(self, peer: Peer) -> None:
        """It can read the ring."""
        if peer in self._stage:
            self._ledger.admit(peer, self.shares[self._stage[peer]].quota)

    def admits(self, peer: Peer) -> bool:
        return peer not in self._excluded and self._ledger.knows(peer)

    def exclude(self, peer: Peer) -> None:
        """Its connection broke: what it reads here nobody knows any more, so that stays reserved until it is dead, and
        nothing more is written for it."""
        if peer in self._stage:
            self._excluded.add(peer)

    def uses(self) -> list[wire.RingUse]:
        """For each edge, what it may hold of the ring, and holds of it and besides."""
        uses = []
        for stage, share in self.shares.items():
            peers = [peer for peer, of in self._stage.items() if of == stage]
            spilled = sum(self._ledger.spilled_for(peer) for peer in peers)
            held = sum(self._ledger.held(peer) for peer in peers)
            uses.append(wire.RingUse(stage, share.capacity, held - spilled, spilled))
        return uses

    # --- Room ------------------------------------------------------------------------------------------------------

    def has_turn(self, key: Key, peer: Peer, nbytes: int) -> bool:
        """Whether this request may write so much for that reader now; else it stands in line from here on."""
        line = self._lines.setdefault(peer, deque())
        if (not line or line[0] == key) and self._ledger.has_room(peer, nbytes):
            return True
        if key not in line:
            line.append(key)
        return False

    def reserve(self, key: Key, peers: Iterable[Peer], nbytes: int) -> Slot:
        """One slot for all these readers, each of whose turn it is."""
        peers = list(peers)
        slot = self._ledger.reserve(nbytes, peers)
        assert slot is not None
        self._owner[slot.seq] = key[0]
        for peer in peers:
            self.leave(key, peer)
        return slot

    def leave(self, key: Key, peer: Peer) -> None:
        """The request does not stand in this line any more."""
        line = self._lines.get(peer)
        if line and key in line:
            line.remove(key)
            self._moved.append(peer)

    def next_turns(self) -> Iterator[tuple[Key, Peer]]:
        """Who is first in a line that has moved. Whoever still finds no room stays first."""
        while self._moved:
            peer = self._moved.pop()
            line = self._lines.get(peer)
            if line:
                yield line[0], peer

    # --- Questions of a trace --------------------------------------------------------------------------------------

    def is_first(self, key: Key, peer: Peer) -> bool:
        """Whether nobody stands before it in this reader's line."""
        line = self._lines.get(peer)
        return not line or line[0] == key

    def held(self, peer: Peer) -> int:
        """Bytes that the reader has not released, in the ring and besides."""
        return self._ledger.held(peer)

    def quota(self, peer: Peer) -> int:
        """Of one that was offered the ring; 0 for any other."""
        return self.shares[self._stage[peer]].quota if peer in self._stage else 0

    def holders(self, peer: Peer) -> list[str]:
        """The requests whose chunks this reader has not released, those with the most bytes first."""
        nbytes: dict[str, int] = {}
        for slot in self._ledger.slots(peer):
            request_id = self._owner[slot.seq]
            nbytes[request_id] = nbytes.get(request_id, 0) + slot.nbytes
        return sorted(nbytes, key=lambda request_id: -nbytes[request_id])

    # --- Reclaiming ------------------------------------------------------------------------------------------------

    def release(self, peer: Peer, seqs: Iterable[int]) -> list[Slot]:
        """The reader needs these slots no more. Returns those that nobody needs."""
        self._moved.append(peer)
        released = (self._ledger.release(peer, seq) for seq in seqs)
        return self._ended(slot for slot in released if slot is not None)

    def cancel(self, slot: Slot) -> None:
        """Nobody was told of it."""
        self._ledger.cancel(slot.seq)
        self._owner.pop(slot.seq, None)
        self._moved += self._lines

    def drop(self, peer: Peer) -> list[Slot]:
        """The reader was reaped. Returns the slots that nobody needs any more."""
        self._stage.pop(peer, None)
        self._excluded.discard(peer)
        self._lines.pop(peer, None)
        return self._ended(self._ledger.drop(peer))

    def _ended(self, slots: Iterable[Slot]) -> list[Slot]:
        ended = list(slots)
        for slot in ended:
            self._owner.pop(slot.seq, None)
        return ended
