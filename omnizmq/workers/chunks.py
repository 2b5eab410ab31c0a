"""A chunk, inline: arrays to bytes and back (W1). Pure.

Any boolean, integer or real dtype of numpy and any shape of up to `MAX_NDIM` dimensions goes, zero-dimensional, empty
and non-contiguous arrays included; what arrives is little-endian, C-ordered and read-only. It is checked before it
becomes an array: the dtype is one of a fixed list and the byte count must match the shape.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omnizmq import protocol as wire
from omnizmq.errors import ProtocolError
from omnizmq.workers.engine import Chunk

DTYPES = frozenset(np.dtype(code).str for code in "?bBhHiIqQefd")
"""Booleans, integers and floats of every size, little-endian where that matters."""

MAX_NDIM = 32
"""What every supported numpy can hold."""


def check_array(name: str, array: object) -> None:
    """Raises `ProtocolError`, in one line, for what cannot travel."""
    if not isinstance(array, np.ndarray):
        raise ProtocolError(f"array {name!r} is a {type(array).__name__}; a numpy array was expected")
    if array.dtype.newbyteorder("<").str not in DTYPES:
        raise ProtocolError(
            f"array {name!r} has dtype {array.dtype}, which cannot travel; real numbers and truth values can"
        )
    if array.ndim > MAX_NDIM:
        raise ProtocolError(f"array {name!r} has {array.ndim} dimensions; at most {MAX_NDIM} can travel")


def pack_arrays(chunk: Chunk) -> list[wire.ArrayData]:
    """The arrays' bytes, copied. Raises `ProtocolError` for what cannot travel."""
    return [_pack(name, array) for name, array in chunk.arrays.items()]


def unpack_chunk(frame: wire.ChunkFrame) -> Chunk:
    """Read-only arrays over the frame's own bytes, without a copy. Raises `ProtocolError`."""
    return Chunk(frame.meta, {array.name: _unpack(array) for array in frame.arrays})


def _pack(name: str, array: NDArray[Any]) -> wire.ArrayData:
    check_array(name, array)
    little = np.asarray(array).astype(array.dtype.newbyteorder("<"), copy=False)
    return wire.ArrayData(name, little.dtype.str, list(array.shape), little.tobytes())


def _unpack(array: wire.ArrayData) -> NDArray[Any]:
    if array.dtype not in DTYPES:
        raise ProtocolError(f"array {array.name!r} has an unknown dtype {array.dtype!r}")
    dtype = np.dtype(array.dtype)
    if len(array.shape) > MAX_NDIM or any(size < 0 for size in array.shape):
        raise ProtocolError(f"array {array.name!r} has a shape that no array has")
    if math.prod(array.shape) * dtype.itemsize != len(array.data):
        raise ProtocolError(f"array {array.name!r}: {len(array.data)} bytes do not fill {array.shape} of {dtype}")
    try:
        return np.frombuffer(array.data, dtype).reshape(array.shape)
    except ValueError as error:  # an empty array with a dimension that no memory could address
        raise ProtocolError(f"array {array.name!r} has a shape that no array has: {error}") from error
