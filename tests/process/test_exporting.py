"""Facts of a real deployment as a Perfetto file, and as spans to a real collector, which may be slow or gone."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from support.otlp_collector import attributes, collecting
from support.perfetto_trace import decoded
from support.running import Running, collect, eventually, launched, omnizmq, text_of

from omnizmq import AsyncClient
from omnizmq.errors import InvalidRequestError

TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SPANS = 4  # of a request for text and sound

pytestmark = pytest.mark.usefixtures("no_leaks")


def ask(running: Running, prompt: str = "one two", **options: str) -> str:
    async def scenario() -> str:
        async with AsyncClient.connect(running.name) as client:
            return text_of(await collect(client, prompt, **options))

    return asyncio.run(scenario())


def to(endpoint: str) -> str:
    return f'router.trace_otlp="{endpoint}"'


def spans(running: Running) -> tuple[int, int]:
    """How many were exported and dropped."""
    trace = running.status()["trace"]
    return trace["spans_exported"], trace["spans_dropped"]


def said(running: Running, home: Path) -> str:
    """What it has logged."""
    return (home / "state" / "omnizmq" / running.name / "router.log").read_text()


def test_a_requests_spans_reach_the_collector_below_those_of_its_caller() -> None:
    with collecting() as collector:
        with launched("synthetic", to(collector.endpoint), 'model="some/model"') as running:
            assert ask(running, request_id="demo", traceparent=f"00-{TRACE}-{CALLER}-01") == "one two"
            assert eventually(lambda: spans(running) == (SPANS, 0))
            assert running.status()["trace"]["rows_dropped"] == 0
            assert running.status()["trace"]["failure"] is None
            shown = running.trace("demo")
        request = collector.named("generate_content some/model")
        assert (request.trace_id.hex(), request.parent_span_id.hex()) == (TRACE, CALLER)
        assert attributes(request)["omnizmq.request_id"] == shown["request_id"]
        stages = {span.name: span for span in collector.spans if span is not request}
        assert set(stages) == {"thinker", "talker", "code2wav"}
        for stage, span in stages.items():
            assert (span.trace_id, span.parent_span_id) == (request.trace_id, request.span_id)
            assert attributes(span)["omnizmq.engine_id"] == shown["stages"][stage]["engine_id"]
            assert request.start_time_unix_nano <= span.start_time_unix_nano
            assert span.end_time_unix_nano <= request.end_time_unix_nano
        assert {resource["service.instance.id"] for resource in collector.resources} == {running.name}


def test_a_perfetto_file_shows_requests_side_by_side_and_a_flow_for_each_chunk(tmp_path: Path) -> None:
    async def both(running: Running) -> None:
        async with AsyncClient.connect(running.name) as client:
            slow = ["one two three", "four five"]
            await asyncio.gather(*(collect(client, prompt, request_id=f"r{len(prompt)}") for prompt in slow))

    file = tmp_path / "both.perfetto"
    with launched("synthetic", "router.trace_chunks=true", "stage.thinker.options.interval_ms=30") as running:
        asyncio.run(both(running))
        for request in ("r13", "r9"):
            running.trace(request)
        done = omnizmq("trace", "--slow", "2", "--perfetto", str(file), "--connect", running.name)
        assert done.returncode == 0, done.stderr
    trace = decoded(file.read_bytes())
    names = [f"{place}{lane}" for place in ("requests", "thinker/0", "talker/0", "code2wav/0") for lane in ("", " (2)")]
    assert list(trace.tracks) == names
    words = 3 + 2
    came = [(one[1], other[1]) for one, other in trace.flows]
    assert came.count(("chunk_sent thinker", "chunk_came talker")) == words
    assert came.count(("chunk_sent talker", "chunk_came code2wav")) == words
    assert len(came) == 2 * words
    for name in names:
        assert [one.name for one in trace.tracks[name].slices if one.depth == 0] in (["r13"], ["r9"]), name
        assert "ended" not in trace.tracks[name].slices[0].notes, name


def test_a_traceparent_that_is_none_is_refused_in_one_line() -> None:
    with launched("synthetic") as running:
        with pytest.raises(InvalidRequestError, match="traceparent '00-x' is not W3C trace context"):
            ask(running, traceparent="00-x")
        assert spans(running) == (0, 0)


def test_what_is_live_at_the_stop_is_exported_too() -> None:
    with collecting() as collector:
        with launched("synthetic", to(collector.endpoint), "router.drain_timeout_s=0") as running:
            assert ask(running) == "one two"
            assert running.stop() == 0
        assert len(collector.spans) == SPANS


def test_a_collector_that_is_not_there_costs_spans_and_is_said_once(home: Path) -> None:
    with collecting() as gone:
        endpoint = gone.endpoint
    with launched("synthetic", to(endpoint)) as running:
        for _ in range(2):
            before = spans(running)[1]
            assert ask(running) == "one two"
            assert eventually(lambda before=before: spans(running) == (0, before + SPANS), timeout_s=30)
        assert running.stop() == 0
        log = said(running, home)
    assert log.count("takes no spans") == 1
    assert f"router.trace_otlp: the collector at {endpoint} takes no spans: " in log


def test_a_collector_that_goes_away_and_comes_back_is_used_again(home: Path) -> None:
    with collecting() as first:
        port = first.port
        with launched("synthetic", to(first.endpoint)) as running:
            ask(running)
            assert eventually(lambda: spans(running) == (SPANS, 0))
            first.close()
            ask(running)
            assert eventually(lambda: spans(running) == (SPANS, SPANS), timeout_s=30)
            with collecting(port) as second:
                ask(running)
                assert eventually(lambda: spans(running) == (2 * SPANS, SPANS))
                assert len(second.spans) == SPANS
                assert running.stop() == 0
            assert "spans are exported again" in said(running, home)


def test_a_collector_that_does_not_answer_holds_up_neither_requests_nor_the_stop() -> None:
    with collecting() as collector:
        collector.let_go.clear()
        with launched("synthetic", to(collector.endpoint)) as running:
            assert ask(running) == "one two"
            assert collector.asked.wait(20)
            for _ in range(3):
                assert ask(running) == "one two"
            assert running.stop() == 0


def test_without_the_extra_the_launch_says_what_to_install() -> None:
    blocked = "import sys; sys.modules['opentelemetry'] = None; from omnizmq.cli import main; main()"
    command = ["launch", "--config", "synthetic", "--set", to("http://127.0.0.1:4318/v1/traces")]
    done = subprocess.run([sys.executable, "-c", blocked, *command], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.splitlines()[-1] == (
        "omnizmq launch: router.trace_otlp: spans need packages that are not installed (opentelemetry.exporter): "
        "run pip install 'omnizmq[otel]', or leave it empty"
    )


def test_without_a_collector_nothing_of_opentelemetry_is_imported() -> None:
    look = (
        "import sys, omnizmq.launcher.deployment, omnizmq.trace.perfetto; "
        "sys.exit(any(name.startswith(('opentelemetry', 'perfetto', 'google')) for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", look], timeout=60).returncode == 0
