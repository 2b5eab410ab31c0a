"""A collector of spans: OTLP/HTTP on this machine, decoded by OpenTelemetry's own schema."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


class Collector:
    """`spans` are those that came. `answer` is the HTTP status that it gives; `let_go`, unset, holds answers back."""

    def __init__(self, port: int = 0) -> None:
        self.spans: list[Any] = []
        self.resources: list[dict[str, Any]] = []
        self.asked = threading.Event()
        self.answer = 200
        self.let_go = threading.Event()
        self.let_go.set()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status = collector._take(self.path, self.headers["Content-Type"], body)
                reply = ExportTraceServiceResponse().SerializeToString()
                try:
                    self.send_response(status)
                    self.send_header("Content-Length", str(len(reply)))
                    self.end_headers()
                    self.wfile.write(reply)
                except OSError:  # it waits no more
                    self.close_connection = True

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1/traces"

    def _take(self, path: str, content_type: str, body: bytes) -> int:
        self.asked.set()
        self.let_go.wait()
        if path != "/v1/traces" or content_type != "application/x-protobuf":
            return 404
        if self.answer == 200:
            for of_resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                self.resources.append(attributes(of_resource.resource))
                self.spans += [span for scope in of_resource.scope_spans for span in scope.spans]
        return self.answer

    def named(self, name: str) -> Any:
        (found,) = [span for span in self.spans if span.name == name]
        return found

    def close(self) -> None:
        self.let_go.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@contextmanager
def collecting(port: int = 0) -> Iterator[Collector]:
    """A collector that is closed at the end."""
    collector = Collector(port)
    try:
        yield collector
    finally:
        collector.close()


def attributes(of: Any) -> dict[str, Any]:
    """Those of a span, an event, a link or a resource, as Python's own values."""
    found = {}
    for attribute in of.attributes:
        value = attribute.value
        kind = value.WhichOneof("value")
        one = getattr(value, kind)
        found[attribute.key] = [item.string_value for item in one.values] if kind == "array_value" else one
    return found
