"""A chunk on its way: its arrays inline in a frame, or in a slot of a ring (W1, W3). Pure.

What arrives is little-endian, C-ordered and read-only. It is checked before it becomes an array: the dtype is one of a
fixed list and the byte count must match the shape.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from omnizmq import protocol as wire
from omnizmq.errors import StageError
from omnizmq.shm.arrays import AnyArray, array_bytes, copy_array, described_bytes, dtype_code, offsets, shaped
from omnizmq.workers.engine import Chunk, EngineBrokenError

INLINE_BYTES = 64 << 10
"""Arrays of at most so many bytes travel inside their frame: below that the ring is no faster (docs/performance.md)."""


# --- Inline --------------------------------------------------------------------------------------------------------


def pack_arrays(chunk: Chunk) -> list[wire.ArrayData]:
    """The arrays' bytes, copied. Raises `StageError` where an engine's own array does not copy itself."""
    return [_pack(name, array) for name, array in chunk.content().items()]


def unpack_chunk(frame: wire.ChunkFrame) -> Chunk:
    """Arrays over the frame's own bytes, without a copy. Raises `ProtocolError`."""
    return Chunk(frame.meta, {one.name: shaped(one.name, one.data, one.dtype, one.shape) for one in frame.arrays})


def _pack(name: str, array: AnyArray) -> wire.ArrayData:
    code = dtype_code(array.dtype)
    try:
        out = np.empty(array.shape, np.dtype(code))
        copy_array(array, out)
    except EngineBrokenError:  # about no chunk
        raise
    except BaseException as error:  # an array of an engine's own may raise anything (F1)
        raise StageError(f"array {name!r} was not copied: {type(error).__name__}: {error}") from error
    return wire.ArrayData(name, code, list(array.shape), out.tobytes())


# --- In a slot of a ring -------------------------------------------------------------------------------------------


def slot_bytes(chunk: Chunk) -> int:
    """How large a slot its arrays need."""
    return offsets(array_bytes(array) for array in chunk.content().values())[1]


def describe_arrays(chunk: Chunk) -> list[wire.ArrayShape]:
    """What the consumer must know to find them in the slot."""
    content = chunk.content().items()
    return [wire.ArrayShape(name, dtype_code(array.dtype), list(array.shape)) for name, array in content]


def fill_slot(chunk: Chunk, out: NDArray[np.uint8]) -> None:
    """Copy the arrays to uint8 `[slot_bytes(chunk)]`: the one copy on the producer's side."""
    content = chunk.content().values()
    begins, _ = offsets(array_bytes(array) for array in content)
    for begin, array in zip(begins, content, strict=True):
        place = out[begin : begin + array_bytes(array)]
        copy_array(array, place.view(np.dtype(dtype_code(array.dtype))).reshape(array.shape))


def unpack_slot(frame: wire.RingChunk, data: NDArray[np.uint8]) -> Chunk:
    """Arrays over the slot's bytes, without a copy; each keeps the slot. Raises `ProtocolError`."""
    sizes = [described_bytes(one.name, one.dtype, one.shape) for one in frame.arrays]
    begins, _ = offsets(sizes)
    arrays = {}
    for begin, size, one in zip(begins, sizes, frame.arrays, strict=True):
        arrays[one.name] = shaped(one.name, data[begin : begin + size], one.dtype, one.shape)
    return Chunk(frame.meta, arrays)


def copied(chunk: Chunk) -> Chunk:
    """The same in memory of its own: the slot is free."""
    arrays = {name: np.array(array) for name, array in chunk.arrays.items()}
    for array in arrays.values():
        array.flags.writeable = False
    return Chunk(chunk.meta, arrays)
