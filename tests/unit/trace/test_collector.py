"""What a collector is sent: only 2xx counts, and whatever it does takes no more time or memory than is allowed."""

from __future__ import annotations

import itertools
import shutil
import socket
import ssl
import subprocess
import threading
import time
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from support import trace_stories as story
from support.otlp_collector import ExportTraceServiceRequest

from omnizmq.trace import spans
from omnizmq.trace.collector import QUOTED_CHARS, Collector
from omnizmq.trace.otel import OtlpExporter

Behave = Callable[[socket.socket], None]


class Peer:
    """Accepts connections, reads what each sends, and then does what it is told. `came`: what was sent, headers too."""

    def __init__(self, *behave: Behave, tls: ssl.SSLContext | None = None) -> None:
        self._behave = itertools.chain(behave[:-1], itertools.repeat(behave[-1]))
        self._tls = tls
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.came: list[bytes] = []
        self.accepted = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._socket.getsockname()[1])

    @property
    def endpoint(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}/v1/traces?key=1"

    def _run(self) -> None:
        with suppress(OSError):  # it is closed
            while True:
                connection, _ = self._socket.accept()
                self.accepted.set()
                with suppress(OSError):
                    self._serve(connection, next(self._behave))

    def _serve(self, connection: socket.socket, behave: Behave) -> None:
        with connection if self._tls is None else self._tls.wrap_socket(connection, server_side=True) as line:
            if behave is not mute:
                self.came.append(request(line))
            behave(line)

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()


def received(line: socket.socket) -> bytes:
    """Raises `OSError` where nothing more comes."""
    data = line.recv(65536)
    if not data:
        raise ConnectionError
    return data


def request(line: socket.socket) -> bytes:
    """All of one, with a body of the length that it says."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += received(line)
    head, _, body = data.partition(b"\r\n\r\n")
    (length,) = [int(one.split(b":")[1]) for one in head.split(b"\r\n") if one.lower().startswith(b"content-length")]
    while len(body) < length:
        body += received(line)
    return head + b"\r\n\r\n" + body


def answer(status: str, body: bytes = b"", *headers: str) -> Behave:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return lambda line: line.sendall("\r\n".join(lines).encode() + body)


def drip(line: socket.socket) -> None:
    """A byte of a header, again and again, until nobody reads."""
    line.sendall(b"HTTP/1.1 200 OK\r\nX: ")
    while True:
        line.sendall(b"x")
        time.sleep(0.02)


def flood(line: socket.socket) -> None:
    """An error's text that does not end."""
    line.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    while True:
        line.sendall(b"too many spans " * 4096)


def mute(line: socket.socket) -> None:
    """Reads and answers nothing."""
    while line.recv(65536):
        pass


def go(line: socket.socket) -> None:
    """Closes the connection."""


@contextmanager
def peer(*behave: Behave, tls: ssl.SSLContext | None = None) -> Iterator[Peer]:
    made = Peer(*behave, tls=tls)
    try:
        yield made
    finally:
        made.close()


def to(one: Peer, timeout_s: float = 20.0) -> Collector:
    return Collector(one.endpoint, {"x-key": "secret"}, timeout_s=timeout_s, tls=ssl.create_default_context)


@pytest.mark.parametrize("status", ["200 OK", "202 Accepted", "204 No Content"])
def test_what_is_taken_has_arrived_as_it_was(status: str) -> None:
    with peer(answer(status)) as one:
        assert to(one).post(b"spans") is None
    (came,) = one.came
    head, _, body = came.partition(b"\r\n\r\n")
    assert body == b"spans"
    assert head.startswith(b"POST /v1/traces?key=1 HTTP/1.1\r\n")
    assert b"x-key: secret" in head


@pytest.mark.parametrize("status", ["301 Moved Permanently", "302 Found", "307 Temporary Redirect", "400 Bad Request"])
def test_what_is_not_taken_has_not_arrived_and_no_redirect_is_followed(status: str) -> None:
    with peer(answer("200 OK")) as other, peer(answer(status, b"", f"Location: {other.endpoint}")) as one:
        assert to(one).post(b"spans") == f"it answered {status}"
    assert len(one.came) == 1
    assert not other.came


@pytest.mark.parametrize("first", [answer("503 Service Unavailable"), answer("429 Too Many Requests"), go])
def test_what_may_be_tried_again_is(first: Behave) -> None:
    with peer(first, answer("200 OK")) as one:
        assert to(one).post(b"spans") is None
    assert len(one.came) == 2


def test_an_answer_is_quoted_in_one_line_that_ends() -> None:
    with peer(answer("400 Bad Request", b"one\r\n\x1b[31mtwo \xff " + b"x" * 9999)) as one:
        why = to(one).post(b"spans") or ""
    assert why.startswith("it answered 400 Bad Request: one [31mtwo � xxx")
    assert len(why) < QUOTED_CHARS + 40
    assert why.isprintable()


def test_an_answer_without_end_is_not_read() -> None:
    tracemalloc.start()
    try:
        with peer(flood) as one:
            why = to(one).post(b"spans") or ""
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert why.startswith("it answered 400 Bad Request: too many spans too many")
    assert most < 4 << 20


@pytest.mark.parametrize("behave", [drip, mute])
def test_a_message_takes_no_longer_than_it_may(behave: Behave) -> None:
    with peer(behave) as one:
        assert to(one, timeout_s=0.5).post(b"spans") == "it did not answer within 0.5 s"


@pytest.mark.parametrize("behave", [drip, mute])
def test_what_is_being_sent_is_given_up_at_the_close(behave: Behave) -> None:
    with peer(behave) as one:
        collector = to(one, timeout_s=3600)
        said: list[str | None] = []
        sending = threading.Thread(target=lambda: said.append(collector.post(b"spans")))
        sending.start()
        assert one.accepted.wait(20)
        collector.close()
        sending.join(20)
        assert said == ["it was closed"]
        assert collector.post(b"spans") == "it was closed"


@pytest.mark.parametrize(
    ("endpoint", "why"),
    [
        ("http://127.0.0.1:99999/v1/traces", "Port out of range"),
        ("http://127.0.0.1:x/v1/traces", "Port could not be cast"),
        ("http://[::1/v1/traces", "Invalid IPv6 URL"),
        (f"http://{'a' * 70}.invalid/v1/traces", "too long"),
    ],
)
def test_an_address_that_cannot_be_is_said(endpoint: str, why: str) -> None:
    collector = Collector(endpoint, {}, timeout_s=20, tls=ssl.create_default_context)
    assert why in (collector.post(b"spans") or "")


# --- What the environment says -------------------------------------------------------------------------------------


def exported(one: Peer) -> str | None:
    exporter = OtlpExporter(one.endpoint, deployment="omni", version="1.2.3", timeout_s=20)
    return exporter.export(spans.make([story.fact(0, "asked")], offset_ns=0))


def test_headers_and_compression_are_what_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=all,x-other=all")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "x-key=a%20b,authorization=Bearer t")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "deflate")
    with peer(answer("200 OK")) as one:
        assert exported(one) is None
    head, _, body = one.came[0].partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    assert {"x-key: a b", "authorization: Bearer t", "content-encoding: deflate"} <= set(lines)
    assert "content-type: application/x-protobuf" in lines
    assert not head.count(b"x-other")
    (of_resource,) = ExportTraceServiceRequest.FromString(zlib.decompress(body)).resource_spans
    assert len(of_resource.scope_spans[0].spans) == 1


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """Of 127.0.0.1, signed by itself, with its key."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl to make a certificate")
    path = tmp_path / "certificate.pem"
    subject = ["-subj", "/CN=collector", "-addext", "subjectAltName=IP:127.0.0.1"]
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", path, "-out", tmp_path / "one.pem"]
    subprocess.run([*made, *subject], check=True, capture_output=True, timeout=60)
    path.write_bytes(path.read_bytes() + (tmp_path / "one.pem").read_bytes())
    return path


def test_certificates_are_what_the_environment_says(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both sides': the collector asks for the client's, too."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(certificate))
    context.load_cert_chain(certificate)
    context.verify_mode = ssl.CERT_REQUIRED
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", str(certificate))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE", str(certificate))
    with peer(answer("200 OK"), tls=context) as one:
        assert exported(one) is None
        assert len(one.came) == 1
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", str(certificate) + ".missing")
        assert "No such file" in (exported(one) or "")


def test_a_handshake_that_does_not_end_takes_no_longer_than_it_may() -> None:
    with peer(mute) as one:
        endpoint = one.endpoint.replace("http:", "https:")
        collector = Collector(endpoint, {}, timeout_s=0.5, tls=ssl.create_default_context)
        assert collector.post(b"spans") == "it did not answer within 0.5 s"
