"""W3C trace context: what is taken for one, and what is derived from it."""

from __future__ import annotations

import pytest

from omnizmq.errors import InvalidRequestError
from omnizmq.trace.context import TraceContext, check, is_sampled, parse, span_id, stage_traceparent, trace_id

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN = "00f067aa0ba902b7"
GOOD = f"00-{TRACE}-{SPAN}-01"

MALFORMED = {
    "empty": "",
    "words": "hello",
    "another version": f"01-{TRACE}-{SPAN}-01",
    "upper case": GOOD.upper(),
    "no trace": f"00-{'0' * 32}-{SPAN}-01",
    "no span": f"00-{TRACE}-{'0' * 16}-01",
    "a short trace": f"00-{TRACE[1:]}-{SPAN}-01",
    "a long span": f"00-{TRACE}-{SPAN}0-01",
    "no flags": f"00-{TRACE}-{SPAN}",
    "a field more": f"{GOOD}-00",
    "a line's end": f"{GOOD}\n",
    "a space before": f" {GOOD}",
    "other digits": f"00-{TRACE}-{SPAN}-0٣",
}


def test_a_context_is_parsed() -> None:
    assert parse(GOOD) == TraceContext(TRACE, SPAN, True)
    assert parse(f"00-{TRACE}-{SPAN}-00") == TraceContext(TRACE, SPAN, False)
    assert parse(f"00-{TRACE}-{SPAN}-02") == TraceContext(TRACE, SPAN, False)
    assert parse(f"00-{TRACE}-{SPAN}-ff") == TraceContext(TRACE, SPAN, True)
    assert parse(None) is None


def test_one_digit_among_zeros_is_an_id() -> None:
    span = "0" * 15 + "1"
    assert parse(f"00-{'0' * 31}1-{span}-01") == TraceContext("0" * 31 + "1", span, True)


@pytest.mark.parametrize("text", MALFORMED.values(), ids=MALFORMED)
def test_what_is_none_is_refused_in_one_line(text: str) -> None:
    assert parse(text) is None
    with pytest.raises(InvalidRequestError, match=r"^traceparent '.*' is not W3C trace context: 00-TRACE-SPAN-FLAGS"):
        check(text)


def test_a_refusal_shows_no_more_than_the_beginning() -> None:
    with pytest.raises(InvalidRequestError) as refused:
        check("x" * 10_000)
    assert f"{'x' * 80}'…" in refused.value.message
    assert len(refused.value.message) < 300


def test_what_is_one_passes() -> None:
    assert check(GOOD) == GOOD
    assert check(None) is None


def test_the_trace_is_the_callers_or_the_requests_own() -> None:
    assert trace_id("demo-1", GOOD) == TRACE
    own = trace_id("demo-1", None)
    assert own == trace_id("demo-1", "malformed") != trace_id("demo-2", None)
    assert parse(f"00-{own}-{SPAN}-01") is not None


def test_a_stages_context_names_its_span_in_the_same_trace() -> None:
    for traceparent in (GOOD, None):
        context = parse(stage_traceparent("demo-1", "demo-1.1.talker", traceparent))
        assert context == TraceContext(trace_id("demo-1", traceparent), span_id("demo-1.1.talker"), True)
    assert span_id("demo-1.1.talker") != span_id("demo-1.2.talker") != span_id("demo-1")


def test_ids_are_the_same_in_every_process_and_version() -> None:
    assert trace_id("demo-1", None) == "9ad91b3c1e865fa14b757989ade12a4c"
    assert span_id("demo-1.1.talker") == "b64fe511c3062d9a"


def test_what_the_caller_does_not_keep_is_not_kept_below_it() -> None:
    unsampled = f"00-{TRACE}-{SPAN}-00"
    assert not is_sampled(unsampled)
    assert is_sampled(GOOD)
    assert is_sampled(None)
    assert stage_traceparent("demo-1", "e", unsampled) == f"00-{TRACE}-{span_id('e')}-00"
