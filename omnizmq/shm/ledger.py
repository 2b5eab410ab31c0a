"""Who holds what of a ring: offsets, sizes, readers, quotas (B1, B3).

A record counts once in `used` (or `spilled`) and in full against the quota of each of its readers. What is over half of
a reader's quota, or finds no hole although the quotas allow it, is spilled: it gets a segment of its own, outside the
ring. Readers keep at most half of their quota as views, and nothing that was spilled. So a record of up to half of the
quota finds room in time, whatever a reader keeps; and a larger one has room, beyond the quota if need be, as soon as
the reader has no other spilled record to release: no record is unsendable (B4).

Pure: no memory is touched here. Nothing blocks; a refusal changes nothing. For one thread.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import dataclass, field

from omnizmq.shm.holes import Holes
from omnizmq.shm.layout import ALIGN, HEADER, record_bytes

Reader = Hashable


@dataclass(frozen=True, slots=True)
class Slot:
    """A reserved record. `seq` counts from 1 and is never reused in a ring. `offset` and `nbytes` are the payload's, in
    bytes; an `offset` of None says that the record is spilled."""

    seq: int
    offset: int | None
    nbytes: int


@dataclass(slots=True)
class _Record:
    slot: Slot
    size: int
    readers: set[Reader]


@dataclass(slots=True)
class _Account:
    """What a reader holds: bytes, those of them in spilled records, and all records' numbers as they were reserved."""

    quota: int
    held: int = 0
    spilled: int = 0
    seqs: dict[int, None] = field(default_factory=dict)

    def is_large(self, size: int) -> bool:
        return 2 * size > self.quota

    def has_room(self, size: int) -> bool:
        return self.held + size <= self.quota or (self.is_large(size) and not self.spilled)


class Ledger:
    """The ring of `capacity` bytes. A capacity of 0 is no ring at all: it admits no reader."""

    def __init__(self, capacity: int) -> None:
        if capacity < 0:
            raise ValueError(f"capacity is {capacity} bytes, it must be 0 or more")
        self.capacity = capacity
        self.spilled = 0
        self._holes = Holes(capacity // ALIGN * ALIGN)
        self._whole = self._holes.free
        self._accounts: dict[Reader, _Account] = {}
        self._records: dict[int, _Record] = {}
        self._last_seq = 0

    @property
    def used(self) -> int:
        """Bytes that are reserved in the ring, headers and padding included; spilled records are not in it."""
        return self._whole - self._holes.free

    def admit(self, reader: Reader, quota: int) -> None:
        """`reader` may be reserved for from now on, up to `quota` bytes. Admitting it again changes nothing."""
        if quota < 0:
            raise ValueError(f"quota of {reader} is {quota} bytes, it must be 0 or more")
        if self.capacity:
            self._accounts.setdefault(reader, _Account(quota))

    def knows(self, reader: Reader) -> bool:
        return reader in self._accounts

    def has_room(self, reader: Reader, nbytes: int) -> bool:
        """Whether a payload of `nbytes` could be reserved for the reader now. An unknown reader has no room."""
        account = self._accounts.get(reader)
        return account is not None and account.has_room(record_bytes(nbytes))

    def held(self, reader: Reader) -> int:
        """Bytes that count against the reader's quota; 0 for an unknown one."""
        account = self._accounts.get(reader)
        return account.held if account else 0

    def spilled_for(self, reader: Reader) -> int:
        """Of what it holds, bytes that are not in the ring."""
        account = self._accounts.get(reader)
        return account.spilled if account else 0

    def slots(self, reader: Reader) -> list[Slot]:
        """What it has not released; none for an unknown one."""
        account = self._accounts.get(reader)
        return [self._records[seq].slot for seq in account.seqs] if account else []

    def reserve(self, nbytes: int, readers: Collection[Reader]) -> Slot | None:
        """A place for a payload of `nbytes` that each of `readers` will release. None: one of them has no room.

        Raises ValueError for a negative size, and for readers that are none, unknown or named twice.
        """
        accounts = self._accounts_of(readers)
        if nbytes < 0:
            raise ValueError(f"a payload of {nbytes} bytes, it must be 0 or more")
        size = record_bytes(nbytes)
        if not all(account.has_room(size) for account in accounts):
            return None
        self._last_seq += 1
        slot = Slot(self._last_seq, self._place(size, accounts), nbytes)
        self._records[slot.seq] = _Record(slot, size, set(readers))
        for account in accounts:
            account.held += size
            account.spilled += size if slot.offset is None else 0
            account.seqs[slot.seq] = None
        return slot

    def release(self, reader: Reader, seq: int) -> Slot | None:
        """The reader has read that record. The slot, if it was the last one to: a spilled one's segment can be closed.

        A release that is late, comes twice or was never due returns None and changes nothing.
        """
        account = self._accounts.get(reader)
        if account is None or seq not in account.seqs:
            return None
        record = self._records[seq]
        self._settle(record, reader)
        return None if record.readers else self._end(record)

    def cancel(self, seq: int) -> Slot | None:
        """A reserved slot will not be published: it is free, for all its readers. None: there is no such slot."""
        record = self._records.get(seq)
        if record is None:
            return None
        for reader in tuple(record.readers):
            self._settle(record, reader)
        return self._end(record)

    def drop(self, reader: Reader) -> list[Slot]:
        """The reader's process was reaped: it holds nothing any more, and is forgotten. The slots that are free now."""
        account = self._accounts.get(reader)
        if account is None:
            return []
        ended = [self.release(reader, seq) for seq in tuple(account.seqs)]
        del self._accounts[reader]
        return [slot for slot in ended if slot is not None]

    def _accounts_of(self, readers: Collection[Reader]) -> list[_Account]:
        if not readers or len(set(readers)) != len(readers):
            raise ValueError(f"readers are {list(readers)}, they must be one or more, each named once")
        unknown = [reader for reader in readers if reader not in self._accounts]
        if unknown:
            raise ValueError(f"readers {unknown} were not admitted")
        return [self._accounts[reader] for reader in readers]

    def _place(self, size: int, accounts: list[_Account]) -> int | None:
        """The payload's offset in the ring; None: it is spilled."""
        start = None
        if not any(account.is_large(size) for account in accounts):
            start = self._holes.take(size)
        if start is None:
            self.spilled += size
            return None
        return start + HEADER

    def _settle(self, record: _Record, reader: Reader) -> None:
        account = self._accounts[reader]
        record.readers.remove(reader)
        account.held -= record.size
        account.spilled -= record.size if record.slot.offset is None else 0
        del account.seqs[record.slot.seq]

    def _end(self, record: _Record) -> Slot:
        slot = record.slot
        del self._records[slot.seq]
        if slot.offset is None:
            self.spilled -= record.size
        else:
            self._holes.give(slot.offset - HEADER, record.size)
        return slot
