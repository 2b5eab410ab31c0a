"""Facts as they are stored: those of one request that reach the disk together are one block, a text of bytes (T1).

A block is what makes a trace cheap: one row and one entry of an index for many facts, with what they share written
once. Beside it stands what a request is found by, so that nobody has to open blocks to find one.

    msgpack of a list of facts, each of them (attempt, at_ns, owner, event, stage, detail)

Pure; knows facts, nothing of databases.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, NamedTuple

import msgspec

from omnizmq.protocol import Value
from omnizmq.trace.events import ENDS
from omnizmq.trace.facts import Fact

MAX_DETAIL_CHARS = 4096
"""A longer text in a fact's detail (an error's message) is cut there."""

_LAST = frozenset({"cleaned", "refused"})
_INT64 = 1 << 63

# A file may have been written by anybody: what is read has the limits of what is written. Other integers than moments
# have those of msgpack, -2^63 to 2^64 - 1.
_Moment = Annotated[int, msgspec.Meta(le=_INT64 - 1)]
_Packed = tuple[int, _Moment, str, str, str | None, dict[str, Value]]

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[_Packed]).decode


class End(NamedTuple):
    """How a request ended. `at_ns`: CLOCK_MONOTONIC; `finish_reason`: its terminal's, or "refused"."""

    at_ns: int
    finish_reason: str | None
    error_code: str | None


class Block(NamedTuple):
    """`rows` facts of one request. `began_ns`: when the first of them happened; `end` where its end is among them;
    `over`: no more facts of it will come."""

    request_id: str
    external_id: str
    began_ns: int
    end: End | None
    over: bool
    rows: int
    data: bytes


def pack(facts: Sequence[Fact]) -> Block:
    """One request's, at least one of them.

    Raises `ValueError`, `TypeError` or `OverflowError` where one of them cannot be stored: an integer beyond 64 bits,
    half a character, a detail that is no `Value`.
    """
    first = facts[0]
    events = {fact.event for fact in facts}
    end = None if events.isdisjoint(ENDS) else next(_end(fact) for fact in facts if fact.event in ENDS)
    if (latest := max([fact.at_ns for fact in facts])) >= _INT64:
        raise OverflowError(f"{latest} is a moment of more than 63 bits")  # SQLite has none
    packed = [(fact.attempt, fact.at_ns, fact.owner, fact.event, fact.stage, fact.detail) for fact in facts]
    data = _encode(packed)
    if len(data) > MAX_DETAIL_CHARS:  # else no text can be too long
        data = _encode([(*fact[:-1], _cut(fact[-1])) for fact in packed])
    for text in (first.request_id, first.external_id):
        text.encode()  # half a character is the one text that SQLite refuses
    over = not events.isdisjoint(_LAST)
    return Block(first.request_id, first.external_id, first.at_ns, end, over, len(facts), data)


def _end(fact: Fact) -> End:
    refused = fact.event == "refused"
    reason = "refused" if refused else fact.detail.get("finish_reason")
    code = fact.detail.get("code" if refused else "error_code")
    return End(fact.at_ns, reason if isinstance(reason, str) else None, code if isinstance(code, str) else None)


def _cut(detail: dict[str, Value]) -> dict[str, Value]:
    return {key: value[:MAX_DETAIL_CHARS] if isinstance(value, str) else value for key, value in detail.items()}


def unpack(request_id: str, external_id: str, blocks: Iterable[bytes]) -> list[Fact]:
    """The facts of a request's blocks. Raises `ValueError` for what is no block."""
    return [Fact(request_id, external_id, *packed) for block in blocks for packed in _decode(block)]
