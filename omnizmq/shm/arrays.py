"""Arrays to bytes and back: which dtypes can travel, where each array lies in a slot, and the one copy (W1).

Any boolean, integer, real or complex dtype of numpy goes, and opaque elements of one or two bytes (what bfloat16 and
float8 are to numpy), in any shape of up to `MAX_NDIM` dimensions, zero-dimensional, empty and non-contiguous arrays
included. What arrives is little-endian and C-ordered. What a peer says of an array is checked before it becomes one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from omnizmq.errors import ProtocolError

DTYPES = frozenset(np.dtype(code).str for code in (*"?bBhHiIqQefdFD", "V1", "V2"))
"""numpy's strings for what can travel, little-endian where that matters."""

MAX_NDIM = 32
"""What every supported numpy can hold."""

ALIGN = 64
"""Each array of a slot begins at a multiple of this many bytes: a cache line, and more than any element needs."""


@runtime_checkable
class ArraySource(Protocol):
    """An array that is not numpy's and writes itself where it is wanted, such as a tensor on an accelerator.

    `copy_to` gets a C-ordered, writable array of that shape and dtype, little-endian, often the very place in shared
    memory that the consumer will read. It is called in the worker's socket thread, and has written all when it returns.
    """

    @property
    def dtype(self) -> np.dtype[Any]: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    def copy_to(self, out: NDArray[Any]) -> None: ...


@dataclass(frozen=True)
class FixedSource:
    """An `ArraySource` that was asked for its dtype and shape once, so that they cannot change on the way."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    copy_to: Callable[[NDArray[Any]], None]


AnyArray = NDArray[Any] | ArraySource


def check_array(name: str, array: object) -> None:
    """Raises `ProtocolError`, in one line, for what cannot travel."""
    if not isinstance(array, np.ndarray | ArraySource) or not isinstance(array.dtype, np.dtype):
        raise ProtocolError(
            f"array {name!r} is a {type(array).__name__}; a numpy array was expected, "
            "or among `tensors` an object with numpy's dtype, a shape and copy_to"
        )
    if not isinstance(array.shape, tuple) or not all(_is_size(size) for size in array.shape):
        raise ProtocolError(f"array {name!r} has shape {array.shape!r}; a tuple of sizes from 0 was expected")
    if dtype_code(array.dtype) not in DTYPES:
        raise ProtocolError(
            f"array {name!r} has dtype {array.dtype}, which cannot travel; numbers and truth values can"
        )
    if len(array.shape) > MAX_NDIM:
        raise ProtocolError(f"array {name!r} has {len(array.shape)} dimensions; at most {MAX_NDIM} can travel")


def _is_size(size: object) -> bool:
    return isinstance(size, int | np.integer) and int(size) >= 0


def dtype_code(dtype: np.dtype[Any]) -> str:
    """How the dtype is called on the wire; one that cannot travel has a name that is not among `DTYPES`."""
    if dtype.kind != "V":
        return dtype.newbyteorder("<").str
    return f"|V{dtype.itemsize}" if dtype.names is None and dtype.subdtype is None else str(dtype)


def array_bytes(array: AnyArray) -> int:
    """Its size, C-ordered."""
    return math.prod(array.shape) * array.dtype.itemsize


def copy_array(array: AnyArray, out: NDArray[Any]) -> None:
    """Fill `out`, which has the array's shape and its dtype, little-endian. One pass, whatever the strides."""
    if isinstance(array, np.ndarray):
        np.copyto(out, array.view(out.dtype) if out.dtype.kind == "V" else array, casting="equiv")
    else:
        array.copy_to(out)


def described_bytes(name: str, code: str, shape: Sequence[int]) -> int:
    """The size of an array that a peer describes. Raises `ProtocolError` for one that does not exist."""
    if code not in DTYPES:
        raise ProtocolError(f"array {name!r} has an unknown dtype {code!r}")
    if len(shape) > MAX_NDIM or any(size < 0 for size in shape):
        raise ProtocolError(f"array {name!r} has a shape that no array has")
    return math.prod(shape) * np.dtype(code).itemsize


def shaped(name: str, data: NDArray[np.uint8] | bytes, code: str, shape: Sequence[int]) -> NDArray[Any]:
    """The bytes as an array, without a copy. Raises `ProtocolError` where dtype, shape and byte count disagree."""
    if described_bytes(name, code, shape) != len(data):
        raise ProtocolError(f"array {name!r}: {len(data)} bytes do not fill {list(shape)} of {np.dtype(code)}")
    try:
        return np.frombuffer(data, np.dtype(code)).reshape(shape)
    except ValueError as error:  # an empty array with a dimension that no memory could address
        raise ProtocolError(f"array {name!r} has a shape that no array has: {error}") from error


def offsets(sizes: Iterable[int]) -> tuple[list[int], int]:
    """Where arrays of these sizes lie in a slot, one after the other, and how large the slot is."""
    found = []
    end = 0
    for size in sizes:
        begin = -(-end // ALIGN) * ALIGN
        found.append(begin)
        end = begin + size
    return found, end
