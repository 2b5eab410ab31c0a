"""Spans to an OTLP/HTTP collector, as OpenTelemetry's own packages encode them (extra `otel`). Imported where spans are
exported alone.

Headers, certificates and compression are what OpenTelemetry's environment variables (`OTEL_EXPORTER_OTLP_…`) say.
"""

from __future__ import annotations

import gzip
import os
import ssl
import zlib
from collections.abc import Callable, Sequence

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.util.re import parse_env_headers

from omnizmq.trace.collector import Collector
from omnizmq.trace.spans import Span

TIMEOUT_S = 5.0
"""How long one batch may take, with what is tried again."""

_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_COMPRESSIONS: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "deflate": zlib.compress}


class OtlpExporter:
    """To the collector at `endpoint`, as the service `deployment` of this `version` of omnizmq."""

    def __init__(self, endpoint: str, *, deployment: str, version: str, timeout_s: float = TIMEOUT_S) -> None:
        self._endpoint = endpoint
        self._resource = Resource({"service.name": "omnizmq", "service.instance.id": deployment})
        self._scope = InstrumentationScope("omnizmq", version)
        headers = {"content-type": "application/x-protobuf", "user-agent": f"omnizmq/{version}"}
        compression = _said("COMPRESSION").lower()
        self._compress = _COMPRESSIONS.get(compression)
        if self._compress is not None:
            headers["content-encoding"] = compression
        headers |= parse_env_headers(_said("HEADERS"), liberal=True)
        self._collector = Collector(endpoint, headers, timeout_s=timeout_s, tls=_tls)

    def export(self, spans: Sequence[Span]) -> str | None:
        """Send them. None: they have arrived; else why not, in one line."""
        why = self._failure(spans)
        return None if why is None else f"router.trace_otlp: the collector at {self._endpoint} takes no spans: {why}"

    def close(self) -> None:
        """What is being sent is given up."""
        self._collector.close()

    def _failure(self, spans: Sequence[Span]) -> str | None:
        try:
            body = encode_spans([self._of_sdk(span) for span in spans]).SerializeToString()
        except Exception as error:  # noqa: BLE001 (the encoder says nothing of what it raises)
            return " ".join(str(error).split())
        return self._collector.post(self._compress(body) if self._compress else body)

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


def _context(trace_id: str, span_id: str, *, remote: bool = False) -> SpanContext:
    return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=remote, trace_flags=_SAMPLED)


def _said(name: str) -> str:
    """By the environment: for traces, else for all that OTLP carries."""
    return os.environ.get(f"OTEL_EXPORTER_OTLP_TRACES_{name}") or os.environ.get(f"OTEL_EXPORTER_OTLP_{name}") or ""


def _tls() -> ssl.SSLContext:
    """Raises `OSError` where a file is missing or holds no certificate."""
    context = ssl.create_default_context(cafile=_said("CERTIFICATE") or None)
    if certificate := _said("CLIENT_CERTIFICATE"):
        context.load_cert_chain(certificate, _said("CLIENT_KEY") or None)
    return context
