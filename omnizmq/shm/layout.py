"""How a record lies in shared memory: a header of 64 bytes, then the payload, then padding up to 64 bytes.

The header is written once, after the payload: with it the record is published. A reader compares it with the
descriptor that it was sent, so a descriptor that is stale, forged or of another ring is told from a good one.
"""

from __future__ import annotations

import struct
from mmap import mmap

HEADER = 64
ALIGN = 64

_MAGIC = 0x676E69525A4D4F01
_FIELDS = struct.Struct("<QQQQ")
UNPUBLISHED = bytes(_FIELDS.size)


def record_bytes(nbytes: int) -> int:
    """What a payload of `nbytes` takes in a ring, header and padding included."""
    return HEADER + -(-nbytes // ALIGN) * ALIGN


def publish(memory: mmap | memoryview, at: int, ring_id: int, seq: int, nbytes: int) -> None:
    """Writes the header at the byte `at`."""
    _FIELDS.pack_into(memory, at, _MAGIC, ring_id, seq, nbytes)


def unpublish(memory: mmap | memoryview, at: int) -> None:
    """What was published at the byte `at` is no longer to be read: its place is written anew."""
    memory[at : at + len(UNPUBLISHED)] = UNPUBLISHED


def is_published(memory: mmap | memoryview, at: int, ring_id: int, seq: int, nbytes: int) -> bool:
    """Whether just this record is at the byte `at`, which is in bounds. Takes integers of any size and sign."""
    return _FIELDS.unpack_from(memory, at) == (_MAGIC, ring_id, seq, nbytes)
