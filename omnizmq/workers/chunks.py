"""A chunk, inline: arrays to bytes and back (W1). Pure.

Any numeric dtype of numpy and any shape goes, zero-dimensional, empty and non-contiguous arrays included. What arrives
is checked before it becomes an array: the dtype is one of a fixed list and the byte count must match the shape.
"""

from __future__ import annotations

import math

import numpy as np

from omnizmq import protocol as wire
from omnizmq.errors import ProtocolError
from omnizmq.workers.engine import Chunk

DTYPES = frozenset(np.dtype(code).str for code in "?bBhHiIqQefd")
"""Booleans, integers and floats of every size, little-endian where that matters."""


def pack_arrays(chunk: Chunk) -> list[wire.ArrayData]:
    """Raises `ProtocolError` for a dtype that cannot travel."""
    return [_pack(name, array) for name, array in chunk.arrays.items()]


def unpack_chunk(frame: wire.ChunkFrame) -> Chunk:
    """Read-only arrays over the frame's own bytes, without a copy. Raises `ProtocolError`."""
    return Chunk(frame.meta, {array.name: _unpack(array) for array in frame.arrays})


def _pack(name: str, array: np.ndarray) -> wire.ArrayData:
    array = np.asarray(array)
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    if little.dtype.str not in DTYPES:
        raise ProtocolError(f"array {name!r} has dtype {array.dtype}, which cannot travel; numbers and booleans can")
    return wire.ArrayData(name, little.dtype.str, list(array.shape), little.tobytes())


def _unpack(array: wire.ArrayData) -> np.ndarray:
    if array.dtype not in DTYPES:
        raise ProtocolError(f"array {array.name!r} has an unknown dtype {array.dtype!r}")
    dtype = np.dtype(array.dtype)
    if any(size < 0 for size in array.shape) or math.prod(array.shape) * dtype.itemsize != len(array.data):
        raise ProtocolError(f"array {array.name!r}: {len(array.data)} bytes do not fill {array.shape} of {dtype}")
    return np.frombuffer(array.data, dtype).reshape(array.shape)
