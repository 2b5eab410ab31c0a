"""A ring: one process writes records into shared memory, others read them in place (B4, W3).

The ring's memory holds payloads and write-once headers, nothing that changes hands: who may write where is decided by
the writer's ledger, in its own heap. The order is: payload, header, descriptor sent; and back: last read, release sent.
The sockets between them order the memory, on every processor.

`RingWriter`, `RingReader.take` and `RingReader.take_freed` belong to one thread each. Views die in any thread.
"""

from __future__ import annotations

import mmap
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from omnizmq.shm.layout import ALIGN, HEADER, is_published, publish, record_bytes, unpublish
from omnizmq.shm.leases import Ended, leased
from omnizmq.shm.ledger import Slot
from omnizmq.shm.memory import (
    SharedMemoryError,
    make_segment,
    map_for_writing,
    open_segment,
    seal_contents,
    write_all,
)

MAPPED_SPILLS = 64
"""Spilled records that a reader keeps mapped at a time: each costs a descriptor. Beyond it they are copied."""


class RingError(SharedMemoryError):
    """A descriptor that does not match its ring: stale, forged, or for a ring that is closed."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Where a peer on this machine finds a segment, by what it knows it again, and its size in bytes."""

    pid: int
    fd: int
    inode: int
    device: int
    nbytes: int


class RingWriter:
    """A ring of `nbytes`, all its pages allocated. Raises SharedMemoryError if it cannot be had.

    `memory` is the whole mapping, writable, as a GPU engine would pin it. `id` is random, of 62 bits.
    """

    def __init__(self, nbytes: int) -> None:
        self._fd = make_segment(nbytes, populate=True)
        try:
            self.memory = memoryview(map_for_writing(self._fd, nbytes))
            seal_contents(self._fd)
        except BaseException:
            os.close(self._fd)
            raise
        self._bytes = np.frombuffer(self.memory, np.uint8)
        self._spills: dict[int, int] = {}
        self._closed = False
        self.id = secrets.randbits(62)
        self.segment = _segment(self._fd)

    def write(self, slot: Slot, fill: Callable[[NDArray[np.uint8]], None]) -> Segment | None:
        """Has `fill` write the payload into a uint8 array `[slot.nbytes]`, then publishes the record.

        The array is of use only during the call. Returns the segment of a spilled record, None for one in the ring. If
        `fill` raises, or the segment cannot be had (SharedMemoryError), nothing is published and the error passes on.
        """
        if self._closed:
            raise RingError("the ring is closed")
        if slot.offset is None:
            return self._spill(slot, fill)
        at = slot.offset - HEADER
        if at < 0 or slot.nbytes < 0 or slot.offset + slot.nbytes > len(self.memory):
            raise RingError(f"{slot} is not in this ring of {len(self.memory)} bytes")
        unpublish(self.memory, at)
        fill(self._bytes[slot.offset : slot.offset + slot.nbytes])
        publish(self.memory, at, self.id, slot.seq, slot.nbytes)
        return None

    def free(self, slot: Slot) -> None:
        """The slot's last reader has released it, or it was cancelled. Closes the segment of a spilled record."""
        fd = self._spills.pop(slot.seq, None)
        if fd is not None:
            os.close(fd)

    def close(self) -> None:
        """Closes the ring and all spilled segments. Who has mapped them keeps them."""
        if self._closed:
            return
        self._closed = True
        self.memory = memoryview(b"")
        self._bytes = np.frombuffer(self.memory, np.uint8)
        for fd in (self._fd, *self._spills.values()):
            os.close(fd)
        self._spills.clear()

    def _spill(self, slot: Slot, fill: Callable[[NDArray[np.uint8]], None]) -> Segment:
        """Filled outside and written at once. Fresh pages that are mapped are zeroed before they are filled, which
        costs as much as the second copy; and where memory is short, a write gives an error, a mapping a SIGBUS."""
        if slot.seq in self._spills:
            raise RingError(f"{slot} was written already")
        fd = make_segment(HEADER + slot.nbytes, populate=False)
        try:
            record = np.empty(HEADER + slot.nbytes, np.uint8)
            fill(record[HEADER:])
            record[:HEADER] = 0
            publish(record.data, 0, self.id, slot.seq, slot.nbytes)
            write_all(fd, record.data)
            seal_contents(fd)
        except BaseException:
            os.close(fd)
            raise
        self._spills[slot.seq] = fd
        return _segment(fd)


class RingReader:
    """Another process's ring, mapped read-only. Raises SharedMemoryError if it cannot be opened from here.

    Of the `quota` bytes that the writer lets this reader hold, views take at most half; what is beyond is copied when
    it arrives, so half of the quota always turns over, whatever is kept. `freed` is called, in any thread, when there
    is something to take with `take_freed`, and not again before that is called. `held` is the bytes of the live views
    as of the last `take` or `take_freed`. `memory` is the whole mapping.
    """

    def __init__(self, ring_id: int, segment: Segment, quota: int, freed: Callable[[], None]) -> None:
        self.memory = memoryview(_mapping(segment))
        self.held = 0
        self._bytes = np.frombuffer(self.memory, np.uint8)
        self._id = ring_id
        self._pid = segment.pid
        self._quota = quota
        self._ended = Ended(freed)
        self._spills = Ended(_nobody_waits)
        self._mapped = 0
        self._live: dict[int, int] = {}
        self._freed: list[int] = []

    def take(self, seq: int, offset: int | None, nbytes: int, spill: Segment | None) -> NDArray[np.uint8]:
        """The payload that a descriptor describes: uint8 `[nbytes]`, read-only.

        A view of the ring, which is this reader's until the last array derived from it is gone; or a copy, where views
        hold enough. A spilled record's array is a mapping of its own; or a copy, where many of those are alive. Raises
        RingError for a descriptor that does not match, whatever its numbers are, and SharedMemoryError for a spilled
        record that cannot be opened.
        """
        self._settle(rearm=False)
        if seq in self._live:
            raise RingError(f"record {seq} was taken before and is still in use")
        if spill is not None:
            payload = self._take_spilled(seq, offset, nbytes, spill)
        elif nbytes > 0 and 2 * (self.held + record_bytes(nbytes)) <= self._quota:
            return self._lease(seq, self._in_ring(seq, offset, nbytes))
        else:
            payload = self._copy(seq, offset, nbytes)
        self._ended.put(seq)
        return payload

    def take_freed(self) -> list[int]:
        """The numbers of the records that the writer may free: read to the end since the last call."""
        self._settle(rearm=True)
        freed, self._freed = self._freed, []
        return freed

    def close(self) -> None:
        """No more records are taken, and `freed` is called no more. Arrays that are alive keep the mapping."""
        self._ended.mute()
        self.memory = memoryview(b"")
        self._bytes = np.frombuffer(self.memory, np.uint8)

    def _settle(self, *, rearm: bool) -> None:
        for seq in self._ended.take(rearm=rearm):
            self.held -= self._live.pop(seq, 0)
            self._freed.append(seq)

    def _lease(self, seq: int, payload: NDArray[np.uint8]) -> NDArray[np.uint8]:
        self._live[seq] = record_bytes(payload.nbytes)
        self.held += self._live[seq]
        return leased(payload, seq, self._ended)

    def _in_ring(self, seq: int, offset: int | None, nbytes: int) -> NDArray[np.uint8]:
        size = len(self.memory)
        if offset is None or nbytes < 0 or offset < HEADER or offset % ALIGN or offset + nbytes > size:
            raise RingError(f"record {seq} of {nbytes} bytes at {offset} cannot be in a ring of {size} bytes")
        self._expect(self.memory, offset - HEADER, seq, nbytes)
        return self._bytes[offset : offset + nbytes]

    def _copy(self, seq: int, offset: int | None, nbytes: int) -> NDArray[np.uint8]:
        payload = self._in_ring(seq, offset, nbytes).copy()
        assert offset is not None
        self._expect(self.memory, offset - HEADER, seq, nbytes)  # a stale descriptor's place may be written meanwhile
        payload.flags.writeable = False
        return payload

    def _take_spilled(self, seq: int, offset: int | None, nbytes: int, spill: Segment) -> NDArray[np.uint8]:
        if offset is not None or spill.pid != self._pid or nbytes < 0 or spill.nbytes != HEADER + nbytes:
            raise RingError(f"spilled record {seq} of {nbytes} bytes at {offset} does not match {spill}")
        memory = _mapping(spill)
        self._expect(memory, 0, seq, nbytes)
        payload = np.frombuffer(memory, np.uint8)[HEADER:]
        self._mapped -= len(self._spills.take(rearm=True))
        if self._mapped < MAPPED_SPILLS:
            self._mapped += 1
            return leased(payload, seq, self._spills)
        payload = payload.copy()
        payload.flags.writeable = False
        return payload

    def _expect(self, memory: mmap.mmap | memoryview, at: int, seq: int, nbytes: int) -> None:
        if not is_published(memory, at, self._id, seq, nbytes):
            raise RingError(f"record {seq} of {nbytes} bytes is not there: its place was used again, or never written")


def _nobody_waits() -> None:
    """The writer was told when the record arrived."""


def _segment(fd: int) -> Segment:
    status = os.fstat(fd)
    return Segment(os.getpid(), fd, status.st_ino, status.st_dev, status.st_size)


def _mapping(segment: Segment) -> mmap.mmap:
    return open_segment(segment.pid, segment.fd, segment.inode, segment.device, segment.nbytes)
