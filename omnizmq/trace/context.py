"""W3C trace context: how a request's spans find their place among those of its caller and of its engines. Pure.

Whoever knows a request's id and its caller's `traceparent` derives the same trace id and span ids, so that the router,
which hands a context on to the engines, and an exporter, which makes the spans later, agree without talking. Without a
`traceparent` the trace id comes from the request id.

The format is that of https://www.w3.org/TR/trace-context-1/#traceparent-header: version 00, lowercase, exact.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import blake2b

from omnizmq.errors import InvalidRequestError

_TRACEPARENT = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})")
_SAMPLED = 1
_SHOWN_CHARS = 80


@dataclass(frozen=True, slots=True)
class TraceContext:
    """A caller's: `trace_id` (32 hexadecimal digits), `span_id` (16) of the span that asks, and whether it is kept."""

    trace_id: str
    span_id: str
    sampled: bool


def parse(traceparent: str | None) -> TraceContext | None:
    """None where there is none, or one that nobody should have written."""
    found = _TRACEPARENT.fullmatch(traceparent or "")
    return found and TraceContext(found[1], found[2], bool(int(found[3], 16) & _SAMPLED))


def check(traceparent: str | None) -> str | None:
    """The same. Raises `InvalidRequestError` for one that is not of W3C trace context, version 00."""
    if traceparent is not None and parse(traceparent) is None:
        shown = repr(traceparent[:_SHOWN_CHARS]) + ("…" if len(traceparent) > _SHOWN_CHARS else "")
        raise InvalidRequestError(
            f"traceparent {shown} is not W3C trace context: 00-TRACE-SPAN-FLAGS was expected, with 32, 16 and 2 "
            "lowercase hexadecimal digits, TRACE and SPAN not all zeros"
        )
    return traceparent


def trace_id(request_id: str, traceparent: str | None) -> str:
    """32 hexadecimal digits: the caller's trace, or one of this request's own."""
    context = parse(traceparent)
    return _hash(request_id, 16) if context is None else context.trace_id


def span_id(id_: str) -> str:
    """16 hexadecimal digits: of a request's span by its request id, of a stage's by its engine id."""
    return _hash(id_, 8)


def is_sampled(traceparent: str | None) -> bool:
    """Whether the request's spans are to be kept: always, unless its caller does not keep its own."""
    context = parse(traceparent)
    return context is None or context.sampled


def stage_traceparent(request_id: str, engine_id: str, traceparent: str | None) -> str:
    """What an engine gets, so that its own spans hang below that of its stage."""
    flags = _SAMPLED if is_sampled(traceparent) else 0
    return f"00-{trace_id(request_id, traceparent)}-{span_id(engine_id)}-{flags:02x}"


def _hash(text: str, size: int) -> str:
    """Of so many bytes, in hexadecimal."""
    return blake2b(text.encode(), digest_size=size).hexdigest()
