"""Facts as they are stored: those of one request that reach the disk together are one block, a text of bytes (T1).

A block is what makes a trace cheap: one row and one entry of an index for many facts, with what they share written
once. Beside it stands what a request is found by, so that nobody has to open blocks to find one.

    msgpack of (engine ids, facts); a fact: (attempt, at_ns, owner, event, stage, index of its engine id, detail)

Pure; knows facts, nothing of databases.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, NamedTuple

import msgspec

from omnizmq.protocol import Value
from omnizmq.trace.facts import Fact

MAX_DETAIL_CHARS = 4096
"""A longer text in a fact's detail (an error's message) is cut there."""

BEGINS = ("asked", "received", "refused")
ENDS = ("terminal", "refused")
_INT64 = 1 << 63

# A file may have been written by anybody: what is read has the limits of what is written.
_Int64 = Annotated[int, msgspec.Meta(ge=-_INT64, le=_INT64 - 1)]
_Index = Annotated[int, msgspec.Meta(ge=0)]
_Packed = tuple[_Int64, _Int64, str, str, str | None, _Index, dict[str, bool | _Int64 | float | str | None]]

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[list[str | None], list[_Packed]]).decode


class End(NamedTuple):
    """How a request ended. `at_ns`: CLOCK_MONOTONIC; `finish_reason`: its terminal's, or "refused"."""

    at_ns: int
    finish_reason: str | None
    error_code: str | None


class Block(NamedTuple):
    """`rows` facts of one request. `began_ns`: when the first of them happened; `end` where its end is among them."""

    request_id: str
    external_id: str
    began_ns: int
    end: End | None
    rows: int
    data: bytes


def pack(facts: Sequence[Fact]) -> Block:
    """One request's, at least one of them.

    Raises `ValueError`, `TypeError` or `OverflowError` where one of them cannot be stored: an integer beyond 64 bits,
    half a character, a detail that is no `Value`.
    """
    first = facts[0]
    end = next((_end(fact) for fact in facts if fact.event in ENDS), None)
    for fact in facts:
        for number in (fact.at_ns, fact.attempt, *fact.detail.values()):
            if isinstance(number, int) and not -_INT64 <= number < _INT64:
                raise OverflowError(f"{number} has more than 64 bits")
    ids: dict[str | None, int] = {}
    packed = [
        (
            fact.attempt,
            fact.at_ns,
            fact.owner,
            fact.event,
            fact.stage,
            ids.setdefault(fact.engine_id, len(ids)),
            fact.detail,
        )
        for fact in facts
    ]
    data = _encode((list(ids), packed))
    if len(data) > MAX_DETAIL_CHARS:  # else no text can be too long
        data = _encode((list(ids), [(*fact[:-1], _cut(fact[-1])) for fact in packed]))
    for text in (first.request_id, first.external_id):
        text.encode()  # half a character is the one text that SQLite refuses
    return Block(first.request_id, first.external_id, first.at_ns, end, len(facts), data)


def _end(fact: Fact) -> End:
    refused = fact.event == "refused"
    reason = "refused" if refused else fact.detail.get("finish_reason")
    code = fact.detail.get("code" if refused else "error_code")
    return End(fact.at_ns, reason if isinstance(reason, str) else None, code if isinstance(code, str) else None)


def _cut(detail: dict[str, Value]) -> dict[str, Value]:
    return {key: value[:MAX_DETAIL_CHARS] if isinstance(value, str) else value for key, value in detail.items()}


def unpack(request_id: str, external_id: str, blocks: Iterable[bytes]) -> list[Fact]:
    """The facts of a request's blocks. Raises `ValueError` for what is no block."""
    facts = []
    for block in blocks:
        engine_ids, packed = _decode(block)
        for attempt, at_ns, owner, event, stage, engine_id, detail in packed:
            if engine_id >= len(engine_ids):
                raise ValueError(f"a fact names engine id {engine_id} of {len(engine_ids)}")
            who = engine_ids[engine_id]
            facts.append(Fact(request_id, external_id, attempt, at_ns, owner, event, stage, who, detail))
    return facts
