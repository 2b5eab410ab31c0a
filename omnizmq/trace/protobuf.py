"""Fields of protocol buffers, as bytes: what writing a Perfetto trace needs, without a package for it. Pure.

A message is its fields, one after the other: `uint(1, 7) + text(2, "x")`. The encoding is that of
https://protobuf.dev/programming-guides/encoding/.
"""

from __future__ import annotations

import struct

_VARINT, _FIXED64, _BYTES = 0, 1, 2
_MASK64 = (1 << 64) - 1


def uint(field: int, value: int) -> bytes:
    """A uint32, uint64, bool or enum."""
    return _tag(field, _VARINT) + _varint(value)


def int64(field: int, value: int) -> bytes:
    """An int32 or int64; a negative one takes ten bytes."""
    return _tag(field, _VARINT) + _varint(value & _MASK64)


def fixed64(field: int, value: int) -> bytes:
    return _tag(field, _FIXED64) + struct.pack("<Q", value)


def double(field: int, value: float) -> bytes:
    return _tag(field, _FIXED64) + struct.pack("<d", value)


def text(field: int, value: str) -> bytes:
    """What UTF-8 cannot tell becomes a question mark."""
    return message(field, value.encode(errors="replace"))


def message(field: int, fields: bytes) -> bytes:
    """A message within a message."""
    return _tag(field, _BYTES) + _varint(len(fields)) + fields


def _tag(field: int, wire_type: int) -> bytes:
    return _varint(field << 3 | wire_type)


def _varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first; the highest bit of a byte says that another follows."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
