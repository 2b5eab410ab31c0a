"""Trees of a recording (`form` says what they mean): what they may be, and where two of them part. Pure.

A file may say anything. What is checked here needs no further care: it can be walked, encoded, and built.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from omnizmq.errors import ProtocolError
from omnizmq.protocol import MESSAGE_BYTES

DEPTH = 64
"""What a router writes is some ten deep."""

BUILT_BYTES = 1 << 30
"""What the stand-ins of a recording may take of memory together. Texts, and bytes, of one size are one and the same."""

MISSING = "nothing"
"""What stands for a value that only the other tree has."""

_INTEGERS = range(-(1 << 63), 1 << 64)
"""Those that can be encoded."""

_TOKEN_BYTES = 8
"""What one of a list takes of memory."""

_Size = Annotated[int, msgspec.Meta(ge=0, le=MESSAGE_BYTES)]


class _StandIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An object a key of which begins with `$`, and that is no struct's."""


class _Chars(_StandIn, frozen=True):
    size: _Size = msgspec.field(name="$chars")
    other: bool = False


class _Bytes(_StandIn, frozen=True):
    size: _Size = msgspec.field(name="$bytes")
    other: bool = False


class _Tokens(_StandIn, frozen=True):
    size: _Size = msgspec.field(name="$tokens")


class _Float(_StandIn, frozen=True):
    value: Literal["nan", "inf", "-inf"] = msgspec.field(name="$float")


class _Pairs(_StandIn, frozen=True):
    value: list[tuple[str, Any]] = msgspec.field(name="$pairs")


class _Error(_StandIn, frozen=True):
    value: str = msgspec.field(name="$error")


_STAND_INS: dict[str, type[_StandIn]] = {
    "$chars": _Chars,
    "$bytes": _Bytes,
    "$tokens": _Tokens,
    "$float": _Float,
    "$pairs": _Pairs,
    "$error": _Error,
}


class Checker:
    """Of trees whose values may take `most` bytes together."""

    def __init__(self, most: int = BUILT_BYTES) -> None:
        self._most = most
        self._built = 0
        self._shared: set[_StandIn] = set()

    def check(self, tree: Any, *, built: bool) -> None:
        """Raises `ProtocolError` for what no recorder writes. `built`: values will be made of it; else it is only
        compared, and takes no memory."""
        self._check(tree, built, 0)

    def _check(self, tree: Any, built: bool, depth: int) -> None:
        if depth > DEPTH:
            raise ProtocolError(f"nested more than {DEPTH} deep")
        if isinstance(tree, dict):
            self._check_object(tree, built)
            for item in tree.values():
                self._check(item, built, depth + 1)
        elif isinstance(tree, list):
            for item in tree:
                self._check(item, built, depth + 1)
        elif isinstance(tree, int) and tree not in _INTEGERS:
            raise ProtocolError("an integer of more than 64 bits")

    def _check_object(self, tree: dict[str, Any], built: bool) -> None:
        if "$" in tree:
            if not isinstance(tree["$"], str):
                raise ProtocolError("`$` is a struct's name, and was expected to be a text")
            return
        marked = next((name for name in tree if name.startswith("$")), None)
        if marked is None:
            return
        kind = _STAND_INS.get(marked)
        if kind is None:
            raise ProtocolError(f"nothing is written as {marked}; there are: {', '.join(_STAND_INS)}")
        try:
            found = msgspec.convert(tree, kind)
        except msgspec.ValidationError as error:
            raise ProtocolError(f"not as {marked} is written: {error}") from None
        if built:
            self._count(found)

    def _count(self, found: _StandIn) -> None:
        if isinstance(found, _Tokens):
            self._built += found.size * _TOKEN_BYTES
        elif isinstance(found, _Chars | _Bytes) and found not in self._shared:
            self._shared.add(found)
            self._built += found.size
        if self._built > self._most:
            raise ProtocolError(
                f"texts and other contents take, up to here, more than {self._most >> 20} MiB of memory"
            )


def parting(one: Any, other: Any, where: str = "") -> tuple[str, Any, Any]:
    """The first place (`3.frame.attempt`) in which two trees that are not equal part, and what is there in each."""
    if isinstance(one, dict) and isinstance(other, dict) and one.get("$") == other.get("$"):
        for name in [*one, *(name for name in other if name not in one)]:
            if one.get(name, MISSING) != other.get(name, MISSING):
                return parting(one.get(name, MISSING), other.get(name, MISSING), _within(where, name))
    if isinstance(one, list) and isinstance(other, list):
        for number in range(max(len(one), len(other))):
            left = one[number] if number < len(one) else MISSING
            right = other[number] if number < len(other) else MISSING
            if left != right:
                return parting(left, right, _within(where, str(number + 1)))
    return where, one, other


def _within(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name
