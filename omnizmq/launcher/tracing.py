"""Where a deployment's facts go: its trace database, and a collector of spans where one is configured (T1)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import omnizmq
from omnizmq.config import Config
from omnizmq.errors import ConfigError
from omnizmq.trace.sinks import FactSink, Tee
from omnizmq.trace.span_sink import SpanExporter, SpanSink
from omnizmq.trace.store import TraceWriter


class Tracing:
    """`facts` is where they are appended; `written` calls when those so far can be read in the trace."""

    def __init__(self, config: Config, state: Path) -> None:
        """`state` is the deployment's state directory. Raises `ConfigError` where packages for spans are missing."""
        limits = config.router
        self._on = limits.trace
        exporter = _exporter(config) if limits.trace_otlp else None
        self._writer = TraceWriter(
            state / "trace.db", max_mib=limits.trace_max_mib, max_age_days=limits.trace_max_age_days
        )
        self._spans = SpanSink(exporter, model=config.model) if exporter is not None else None
        self.written = self._writer.when_written
        self.facts: FactSink = self._writer if self._spans is None else Tee(self._writer, self._spans)

    def status(self) -> dict[str, object]:
        """What `omnizmq status` says of it."""
        return {
            "on": self._on,
            "rows_dropped": self._writer.dropped,
            "failure": self._writer.failure,
            "spans_exported": self._spans.exported if self._spans else 0,
            "spans_dropped": self._spans.dropped if self._spans else 0,
        }

    async def close(self) -> None:
        """Both side by side, each in bounded time."""
        await asyncio.gather(*(asyncio.to_thread(sink.close) for sink in self._sinks()))

    def stop(self) -> None:
        """One after the other, where there is no loop to wait in, and nothing was recorded."""
        for sink in self._sinks():
            sink.close()

    def _sinks(self) -> list[TraceWriter | SpanSink]:
        return [sink for sink in (self._writer, self._spans) if sink is not None]


def _exporter(config: Config) -> SpanExporter:
    try:
        from omnizmq.trace.otel import OtlpExporter
    except ImportError as error:
        raise ConfigError(
            f"router.trace_otlp: spans need packages that are not installed ({error.name or error}): "
            "run pip install 'omnizmq[otel]', or leave it empty"
        ) from error
    return OtlpExporter(config.router.trace_otlp, deployment=config.name, version=omnizmq.__version__)
