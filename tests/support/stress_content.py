"""What the stress sends, and the fate of each request: functions of the caller's external id alone. Pure.

So whoever receives a chunk can compute what it must be, and the driver knows how each request has to end.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Arrays = Mapping[str, NDArray[Any]]

SOURCE = "source"
MIDDLES = ("left", "right")
SINK = "join"
STAGES = (SOURCE, *MIDDLES, SINK)
EDGES = tuple((SOURCE, middle) for middle in MIDDLES) + tuple((middle, SINK) for middle in MIDDLES)

CALM = "calm"
"""A request whose external id contains this has no fate but to be whole."""

DTYPES = tuple(np.dtype(code) for code in "?bBhHiIqQefd")
SIZES = {  # of one array, in bytes: how often, from, to
    "scalar": (10, 0, 0),
    "empty": (6, 0, 0),
    "small": (24, 1, 256),
    "inline": (20, 256, 64 << 10),
    "ring": (37, 64 << 10, 400_000),
    "spill": (3, 300_000, 1_600_000),
}
EMPTY_SHAPES = ((0,), (3, 0, 2), (0, 5))

Fate = Literal["whole", "early", "fail", "abort", "cancel"]


@dataclass(frozen=True, slots=True)
class Plan:
    """`early`: the sink ends after it was fed `at` chunks. `fail`: `fails` fails instead of making its chunk `at`."""

    chunks: int
    fate: Fate
    at: int
    fails: str

    @classmethod
    def of(cls, external_id: str) -> Plan:
        rng = Random(external_id)
        chunks = 0 if rng.random() < 0.04 else rng.randint(1, 24)
        fates: list[Fate] = ["whole"] * 6 + ["early", "fail", "abort", "cancel"]
        fate = rng.choice(fates)
        at = rng.randint(1, max(1, chunks))
        fails = rng.choice((SOURCE, *MIDDLES))
        return cls(chunks, "whole" if chunks == 0 or CALM in external_id else fate, at, fails)

    @property
    def text(self) -> str:
        """What the sink says when all has gone well."""
        return "early" if self.fate == "early" else f"{len(MIDDLES) * self.chunks} chunks"


def maker(external_id: str, stage: str, number: int) -> str:
    """Whose content a stage's chunk `number` is: its own, or that of the source, handed on as it came."""
    handed_on = stage in MIDDLES and _random(external_id, stage, number, "handed on").random() < 0.25
    return SOURCE if handed_on else stage


def greedy(external_id: str, stage: str) -> bool:
    """Whether that stage keeps what it was fed until the request has ended there."""
    return _random(external_id, stage, 0, "greedy").random() < 0.2


def arrays_of(external_id: str, stage: str, number: int) -> dict[str, NDArray[Any]]:
    """The arrays of a chunk that `stage` made: little-endian and C-ordered, as they have to arrive."""
    rng = _random(external_id, stage, number, "arrays")
    count = rng.choice((0, 1, 1, 1, 1, 2, 2, 3))
    return {f"a{index}": _array(rng, f"{external_id}/{stage}/{number}/{index}") for index in range(count)}


def laid_out(arrays: Arrays, rng: Random) -> dict[str, NDArray[Any]]:
    """The same values in memory that is strided, turned round, transposed or big-endian."""
    return {
        name: _laid_out(array, rng.choice(("plain", "strided", "reversed", "fortran", "big")))
        for name, array in arrays.items()
    }


def difference(chunk_arrays: Arrays, external_id: str, stage: str, number: int, skip: int = 0) -> str | None:
    """What is wrong with the arrays of a chunk; None: nothing. With `skip` they are flat, without their first items."""
    expected = arrays_of(external_id, stage, number)
    if expected.keys() != chunk_arrays.keys():
        return f"arrays {sorted(chunk_arrays)} where {sorted(expected)} were expected"
    for name, array in chunk_arrays.items():
        problem = _difference(array, expected[name].reshape(-1)[skip:] if skip else expected[name])
        if problem:
            return f"array {name} of chunk {number} of {stage}: {problem}"
    return None


def _difference(array: NDArray[Any], expected: NDArray[Any]) -> str | None:
    if array.dtype.str != expected.dtype.str or array.shape != expected.shape:
        return f"{array.dtype}{array.shape} where {expected.dtype}{expected.shape} was expected"
    if array.flags.writeable or not array.flags.c_contiguous:
        return "it is writable, or not C-ordered"
    if not np.array_equal(_bytes(array), _bytes(expected)):
        first = int(np.flatnonzero(_bytes(array) != _bytes(expected))[0])
        return f"{array.nbytes} bytes differ from byte {first} on"
    return None


def _bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    return array.reshape(-1).view(np.uint8)


def _random(external_id: str, stage: str, number: int, what: str) -> Random:
    return Random(f"{what}/{external_id}/{stage}/{number}")


def _array(rng: Random, key: str) -> NDArray[Any]:
    dtype = rng.choice(DTYPES)
    kind = rng.choices(list(SIZES), [weight for weight, _, _ in SIZES.values()])[0]
    if kind == "empty":
        return np.empty(rng.choice(EMPTY_SHAPES), dtype)
    if kind == "scalar":
        return _pattern(key, dtype, 1).reshape(())
    _, least, most = SIZES[kind]
    items = max(1, rng.randint(least, most) // dtype.itemsize)
    return _pattern(key, dtype, items).reshape(_shape(rng, items))


def _shape(rng: Random, items: int) -> tuple[int, ...]:
    divisors = [number for number in (2, 3, 4, 5, 7, 8) if items % number == 0]
    if not divisors or rng.random() < 0.3:
        return (items,)
    first = rng.choice(divisors)
    return (first, items // first) if rng.random() < 0.7 else (first, 1, items // first)


def _pattern(key: str, dtype: np.dtype[Any], items: int) -> NDArray[Any]:
    """Any bits, of floats too; of truth values 0 and 1."""
    factor = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "little") | 1
    words = np.arange(1, -(-items * dtype.itemsize // 8) + 1, dtype="<u8") * np.uint64(factor)
    data = words.view(np.uint8)[: items * dtype.itemsize]
    return (data & 1).view(dtype) if dtype.kind == "b" else data.view(dtype)


def _laid_out(array: NDArray[Any], layout: str) -> NDArray[Any]:
    if layout == "big":
        return array.byteswap().view(array.dtype.newbyteorder(">"))
    if layout == "fortran" and array.ndim:
        return np.asfortranarray(array)
    if layout == "strided" and array.ndim:
        wide = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
        wide[..., ::2] = array
        return wide[..., ::2]
    if layout == "reversed" and array.ndim:
        return np.ascontiguousarray(array[::-1])[::-1]
    return array
