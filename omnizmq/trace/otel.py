"""Spans to an OTLP/HTTP collector, by OpenTelemetry's own SDK (extra `otel`). Imported where spans are exported alone.

Headers, certificates and compression are what the SDK's environment variables (`OTEL_EXPORTER_OTLP_…`) say.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from omnizmq.trace.spans import Span

TIMEOUT_S = 5.0
"""How long one batch may take, with what is tried again."""

_MOST_SAID = 120
"""Characters of a complaint that tells of no system's error."""

_SAMPLED = TraceFlags(TraceFlags.SAMPLED)


class OtlpExporter:
    """To the collector at `endpoint`, as the service `deployment` of this `version` of omnizmq."""

    def __init__(self, endpoint: str, *, deployment: str, version: str, timeout_s: float = TIMEOUT_S) -> None:
        self._endpoint = endpoint
        self._resource = Resource({"service.name": "omnizmq", "service.instance.id": deployment})
        self._scope = InstrumentationScope("omnizmq", version)
        self._said = _FirstSaid()
        self._exporter = OTLPSpanExporter(endpoint=endpoint, timeout=timeout_s)

    def export(self, spans: Sequence[Span]) -> str | None:
        """Send them. None: they have arrived; else why not, in one line."""
        why = self._failure(spans)
        return None if why is None else f"router.trace_otlp: the collector at {self._endpoint} takes no spans: {why}"

    def close(self) -> None:
        self._exporter.shutdown()  # type: ignore[no-untyped-call]

    def _failure(self, spans: Sequence[Span]) -> str | None:
        with self._said as said:
            try:
                result = self._exporter.export([self._of_sdk(span) for span in spans])
            except Exception as error:  # noqa: BLE001 (not every version of the SDK catches what a connection raises)
                return briefly(str(error))
            return None if result is SpanExportResult.SUCCESS else briefly(said.text)

    def _of_sdk(self, span: Span) -> ReadableSpan:
        failed = span.error is not None
        kind = SpanKind.SERVER if span.parent_id is None or span.remote else SpanKind.INTERNAL
        return ReadableSpan(
            name=span.name,
            context=_context(span.trace_id, span.span_id),
            parent=_context(span.trace_id, span.parent_id, remote=span.remote) if span.parent_id else None,
            resource=self._resource,
            attributes=span.attributes,
            events=[Event(event.name, event.attributes, event.at_ns) for event in span.events],
            links=[Link(_context(span.trace_id, link.span_id), link.attributes) for link in span.links],
            kind=kind,
            status=Status(StatusCode.ERROR, span.error) if failed else Status(StatusCode.UNSET),
            start_time=span.begin_ns,
            end_time=span.end_ns,
            instrumentation_scope=self._scope,
        )


def briefly(complaint: str) -> str:
    """What the system said, where it is in there among the names of classes; else its beginning."""
    found = re.search(r"\[Errno -?\d+\] ([^'\")]+)|Read timed out", complaint)
    text = " ".join(complaint.split()) if found is None else found[1] or "it does not answer in time"
    return text if len(text) <= _MOST_SAID else f"{text[:_MOST_SAID]}…"


def _context(trace_id: str, span_id: str, *, remote: bool = False) -> SpanContext:
    return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=remote, trace_flags=_SAMPLED)


class _FirstSaid(logging.Handler):
    """While the SDK exports, the first thing that it complains of is kept, and nothing is logged: it would complain
    with each batch and each try."""

    def __init__(self) -> None:
        super().__init__()
        self._logger = logging.getLogger("opentelemetry.exporter")
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text = self.text or " ".join(record.getMessage().split())

    def __enter__(self) -> _FirstSaid:
        self.text = ""
        self._logger.addHandler(self)
        self._logger.propagate = False
        return self

    def __exit__(self, *_: object) -> None:
        self._logger.propagate = True
        self._logger.removeHandler(self)
