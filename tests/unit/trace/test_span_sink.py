"""Facts gathered to spans and exported to a real collector, which may be slow, wrong or gone."""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import SpanFlags
from support import trace_stories as story
from support.otlp_collector import Collector, attributes, collecting
from support.running import eventually

from omnizmq.trace import span_sink, spans
from omnizmq.trace.facts import Fact
from omnizmq.trace.otel import OtlpExporter
from omnizmq.trace.sinks import Tee
from omnizmq.trace.span_sink import SpanSink

SPOKEN = 4  # spans of a spoken request


@contextmanager
def sink_to(endpoint: str, timeout_s: float = 1.0, **options: float) -> Iterator[SpanSink]:
    exporter = OtlpExporter(endpoint, deployment="omni", version="1.2.3", timeout_s=timeout_s)
    sink = SpanSink(exporter, model="m", **{"interval_s": 0.02, **options})
    try:
        yield sink
    finally:
        sink.close()


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector


def spoken(number: int = 0) -> list[Fact]:
    """A request from `asked` to `cleaned`."""
    request_id = f"demo{number}-{number:016x}"
    return [
        msgspec.structs.replace(
            fact,
            request_id=request_id,
            external_id=f"demo{number}",
        )
        for fact in [*story.spoken(), story.fact(210, "cleaned")]
    ]


def tell(sink: SpanSink | Tee, facts: list[Fact]) -> None:
    for fact in facts:
        sink.append(fact)


def ends(sink: SpanSink, exported: int, dropped: int = 0) -> Callable[[], bool]:
    return lambda: (sink.exported, sink.dropped) == (exported, dropped)


def test_an_ended_requests_spans_reach_the_collector(collector: Collector) -> None:
    before = time.time_ns()
    with sink_to(collector.endpoint) as sink:
        facts = [msgspec.structs.replace(fact, at_ns=fact.at_ns - story.BOOT_NS) for fact in spoken()]
        booted = time.monotonic_ns()
        facts = [msgspec.structs.replace(fact, at_ns=fact.at_ns + booted) for fact in facts]
        tell(sink, facts)
        assert eventually(ends(sink, SPOKEN))
    request, talker = collector.named("generate_content m"), collector.named("talker")
    assert before <= request.start_time_unix_nano <= time.time_ns()
    assert request.end_time_unix_nano - request.start_time_unix_nano == 210_000_000
    assert (request.parent_span_id, talker.parent_span_id) == (b"", request.span_id)
    assert len(request.trace_id) == 16
    assert {span.trace_id for span in collector.spans} == {request.trace_id}
    assert (request.kind, talker.kind) == (request.SPAN_KIND_SERVER, request.SPAN_KIND_INTERNAL)
    assert attributes(request)["gen_ai.response.finish_reasons"] == ["stop"]
    assert attributes(talker)["omnizmq.replica"] == "talker/0"
    (ended,) = [event for event in talker.events if event.name == "finished"]
    assert ended.time_unix_nano == talker.end_time_unix_nano
    assert collector.resources == [{"service.name": "omnizmq", "service.instance.id": "omni"}]


def test_links_errors_and_the_callers_span_reach_it_too(collector: Collector) -> None:
    caller = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    facts = [
        msgspec.structs.replace(fact, detail={**fact.detail, "traceparent": caller})
        if fact.event == "received"
        else fact
        for fact in story.redriven()
    ]
    with sink_to(collector.endpoint) as sink:
        tell(sink, [*facts, story.fact(99, "cleaned", attempt=2)])
        assert eventually(lambda: sink.exported > 0)
    request = collector.named("generate_content m")
    assert request.trace_id.hex() == "4bf92f3577b34da6a3ce929d0e0e4736"
    assert request.parent_span_id.hex() == "00f067aa0ba902b7"
    first, second = [span for span in collector.spans if span.name == "talker"]
    remote = SpanFlags.SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK
    assert (bool(request.flags & remote), bool(first.flags & remote)) == (True, False)
    assert (first.status.code, first.status.message) == (first.status.STATUS_CODE_ERROR, "x")
    assert second.status.code == second.status.STATUS_CODE_UNSET
    assert [link.span_id for link in second.links] == [first.span_id]


def test_nothing_is_exported_before_the_end(collector: Collector) -> None:
    with sink_to(collector.endpoint) as sink:
        tell(sink, spoken(1)[:-1])
        tell(sink, spoken(2))
        assert eventually(ends(sink, SPOKEN))
        assert {attributes(span)["omnizmq.external_id"] for span in collector.spans} == {"demo2"}
        tell(sink, spoken(1)[-1:])
        assert eventually(ends(sink, 2 * SPOKEN))


def test_what_has_not_ended_is_exported_at_the_close(collector: Collector) -> None:
    with sink_to(collector.endpoint, interval_s=60) as sink:
        tell(sink, spoken()[:-2])
        sink.close()
        assert ends(sink, SPOKEN)()
        tell(sink, spoken(2))
        assert sink._ended.empty()  # it is closed: that goes nowhere
    assert attributes(collector.named("generate_content m"))["omnizmq.ended"] is False
    assert len(collector.spans) == SPOKEN


def test_a_refused_request_is_exported_at_once(collector: Collector) -> None:
    refused = story.fact(1, "refused", detail={"code": "overloaded", "message": "no room"})
    with sink_to(collector.endpoint) as sink:
        tell(sink, [story.fact(0, "asked"), refused])
        assert eventually(ends(sink, 1))
    assert collector.spans[0].status.message == "no room"


def test_a_refusal_that_bears_a_live_requests_id_does_not_end_it(collector: Collector) -> None:
    facts = spoken()
    refused = msgspec.structs.replace(facts[1], event="refused", detail={"code": "invalid_request", "message": "taken"})
    with sink_to(collector.endpoint) as sink:
        tell(sink, [*facts[:5], refused, *facts[5:]])
        assert eventually(ends(sink, SPOKEN))
    assert attributes(collector.named("generate_content m"))["gen_ai.response.finish_reasons"] == ["stop"]


def test_facts_after_the_end_are_of_nothing(collector: Collector) -> None:
    with sink_to(collector.endpoint) as sink:
        tell(sink, [*spoken(1), spoken(1)[-2], *spoken(2)])
        assert eventually(ends(sink, 2 * SPOKEN))


def test_a_collector_that_is_not_there_is_said_once_and_costs_spans_alone(caplog: pytest.LogCaptureFixture) -> None:
    with collecting() as gone:
        port = gone.port
    caplog.set_level(logging.INFO)
    with sink_to(f"http://127.0.0.1:{port}/v1/traces", timeout_s=1.5) as sink:
        for number in range(2):
            tell(sink, spoken(number))
            assert eventually(ends(sink, 0, (number + 1) * SPOKEN))
        with collecting(port) as collector:
            tell(sink, spoken(7))
            assert eventually(ends(sink, SPOKEN, 2 * SPOKEN))
            assert len(collector.spans) == SPOKEN
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    where = f"router.trace_otlp: the collector at http://127.0.0.1:{port}/v1/traces takes no spans: "
    assert said[0] == f"{where}Connection refused; spans are dropped until it takes them"
    assert said[1] == "spans are exported again; 8 were dropped so far"


def test_a_collector_that_refuses_is_quoted(collector: Collector, caplog: pytest.LogCaptureFixture) -> None:
    collector.answer = 400
    with sink_to(collector.endpoint) as sink:
        tell(sink, spoken())
        assert eventually(ends(sink, 0, SPOKEN))
    (said,) = [record.getMessage() for record in caplog.records]
    assert "takes no spans: it answered 400 Bad Request; spans are dropped" in said


def test_an_address_that_cannot_be_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with sink_to("http://127.0.0.1:99999/v1/traces") as sink:
        tell(sink, spoken(1))
        assert eventually(ends(sink, 0, SPOKEN))
        tell(sink, spoken(2))
        assert eventually(ends(sink, 0, 2 * SPOKEN))
    assert len(caplog.records) == 1


def test_what_the_encoder_raises_is_said_and_costs_spans_alone(
    collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    """As it does for a span that it cannot encode."""
    exporter = OtlpExporter(collector.endpoint, deployment="omni", version="1")
    (good,) = spans.make([story.fact(0, "asked")], offset_ns=0)
    bad = dataclasses.replace(good, begin_ns=-1)
    assert (exporter.export([bad]) or "").startswith("router.trace_otlp: the collector at http://127.0.0.1:")
    assert exporter.export([good]) is None
    exporter.close()
    assert not caplog.records


def test_a_collector_that_does_not_answer_holds_nothing_up(collector: Collector) -> None:
    """What waits is bounded; what is beyond that is dropped and counted."""
    collector.let_go.clear()
    with sink_to(collector.endpoint, timeout_s=30, max_waiting=2) as sink:
        tell(sink, spoken(0))
        assert collector.asked.wait(10)
        for number in range(1, 6):
            tell(sink, spoken(number))
        assert ends(sink, 0, 3 * SPOKEN)()
        collector.let_go.set()
        assert eventually(ends(sink, 3 * SPOKEN, 3 * SPOKEN))


def test_the_close_waits_for_no_collector(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(span_sink, "CLOSE_TIMEOUT_S", 0.05)
    collector.let_go.clear()
    with sink_to(collector.endpoint, timeout_s=60) as sink:
        tell(sink, spoken())
        assert collector.asked.wait(10)
        closing = threading.Thread(target=sink.close)
        closing.start()
        closing.join(20)
        assert not closing.is_alive()
        assert not collector.let_go.is_set()
        collector.let_go.set()
        assert eventually(lambda: not sink._thread.is_alive())


def test_the_close_interrupts_what_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with collecting() as gone:
        endpoint = gone.endpoint
    monkeypatch.setattr(span_sink, "CLOSE_TIMEOUT_S", 0.5)
    with sink_to(endpoint, timeout_s=3600) as sink:
        tell(sink, spoken())
        sink.close()
        assert eventually(lambda: not sink._thread.is_alive())
        assert ends(sink, 0, SPOKEN)()


def test_no_more_requests_are_gathered_than_fit(collector: Collector) -> None:
    with sink_to(collector.endpoint, max_live=2) as sink:
        for number in range(4):
            tell(sink, spoken(number)[:-1])
        assert sink.dropped == 2  # the requests' own
        for number in range(4):
            tell(sink, spoken(number)[-1:])
        assert eventually(ends(sink, 2 * SPOKEN, 2))


def test_of_single_chunks_no_more_are_kept_than_fit(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(span_sink, "MAX_EACH", 3)
    *facts, cleaned = spoken()
    first = next(fact for fact in facts if (fact.event, fact.stage) == ("first_output", "thinker"))
    sent = msgspec.structs.replace(first, event="chunk_sent", detail={"to": "talker", "seq": 1, "bytes": 1})
    with sink_to(collector.endpoint) as sink:
        tell(sink, [*facts, *[sent] * 5, cleaned])
        assert eventually(ends(sink, SPOKEN))
    assert [event.name for event in collector.named("thinker").events].count("chunk_sent") == 3


def test_facts_that_make_no_spans_cost_those_of_their_request_alone(
    collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = [msgspec.structs.replace(fact, detail=None) for fact in spoken(1)]  # type: ignore[arg-type]
    with sink_to(collector.endpoint) as sink:
        tell(sink, [*wrong, *spoken(2)])
        assert eventually(ends(sink, SPOKEN, SPOKEN))
    assert "the spans of demo1-0000000000000001 cannot be made" in caplog.text


def test_many_requests_go_in_several_messages(collector: Collector) -> None:
    with sink_to(collector.endpoint) as sink:
        for number in range(300):
            tell(sink, spoken(number))
        assert eventually(ends(sink, 300 * SPOKEN), timeout_s=30)
    assert len({span.span_id for span in collector.spans}) == 300 * SPOKEN
    assert len(collector.resources) >= 3


def test_a_tee_gives_each_fact_to_all(collector: Collector) -> None:
    seen: list[Fact] = []
    with sink_to(collector.endpoint) as sink:
        tell(Tee(seen, sink), spoken())  # type: ignore[arg-type]
        assert eventually(ends(sink, SPOKEN))
    assert seen == spoken()
