"""What a collector of spans is sent, over HTTP: each message within a limited time, whatever the collector does.

A message has arrived when the collector answers 2xx; nothing else counts, and no redirect is followed. What it may try
again (no connection, 429, 502, 503, 504) is tried until the time is over. Of an answer's text no more is read than is
quoted, and nothing of it where the spans have arrived.

Knows HTTP and TLS, nothing of spans.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from urllib.parse import urlsplit

RETRY_S = 0.5
"""The pause before the second try; it doubles with each."""

QUOTED_CHARS = 200
"""So much of an answer, or of an error, is quoted."""

_QUOTED_BYTES = 4096
_TRY_AGAIN = (429, 502, 503, 504)  # https://opentelemetry.io/docs/specs/otlp/#failures-1


class Collector:
    """At `endpoint` (http or https). `tls` makes what a connection by https needs, and may raise `OSError`.

    Used in one thread, but for `close`.
    """

    def __init__(
        self, endpoint: str, headers: Mapping[str, str], *, timeout_s: float, tls: Callable[[], ssl.SSLContext]
    ) -> None:
        self._endpoint = endpoint
        self._headers = headers
        self._timeout_s = timeout_s
        self._tls = tls
        self._closed = threading.Event()
        self._line: _Line | None = None

    def post(self, body: bytes) -> str | None:
        """Send it. None: it has arrived; else why not, in one line. Takes `timeout_s`, and a look-up of the name."""
        deadline = time.monotonic() + self._timeout_s
        pause_s = RETRY_S
        while True:
            why, may_try_again = self._try(body, deadline)
            if why is None or not may_try_again or time.monotonic() + pause_s >= deadline:
                return why
            if self._closed.wait(pause_s):
                return "it was closed"
            pause_s *= 2

    def close(self) -> None:
        """Give up what is being sent, and send nothing any more. Thread-safe."""
        self._closed.set()
        if (line := self._line) is not None:
            line.cut()

    def _try(self, body: bytes, deadline: float) -> tuple[str | None, bool]:
        """Why it did not arrive, and whether it may be tried again."""
        with _Line(deadline) as line:
            self._line = line
            if self._closed.is_set():
                return "it was closed", False
            try:
                return self._exchange(line, body)
            except (OSError, http.client.HTTPException, ValueError) as error:
                if self._closed.is_set():
                    return "it was closed", False
                if line.is_over:
                    return f"it did not answer within {self._timeout_s:g} s", False
                return _quoted(_said(error)), isinstance(error, OSError)
            finally:
                self._line = None

    def _exchange(self, line: _Line, body: bytes) -> tuple[str | None, bool]:
        url = urlsplit(self._endpoint)
        tls = self._tls() if url.scheme == "https" else None
        connection = _Connection(url.hostname or "", url.port or (443 if tls else 80), line, tls)
        try:
            connection.request("POST", f"{url.path or '/'}{'?' if url.query else ''}{url.query}", body, self._headers)
            with connection.getresponse() as answer:
                line.check()
                if 200 <= answer.status < 300:
                    return None, False
                said = _quoted(answer.read(_QUOTED_BYTES).decode(errors="replace"))
                why = f"it answered {answer.status} {_quoted(answer.reason)}".rstrip()
                return why + (f": {said}" if said else ""), answer.status in _TRY_AGAIN
        finally:
            connection.close()


class _Line:
    """A connection that is cut at `deadline` (CLOCK_MONOTONIC), or before, whatever its other end does.

    Timeouts of a socket do not do it: they begin again with every byte.
    """

    def __init__(self, deadline: float) -> None:
        self._deadline = deadline
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._is_cut = False
        self._timer = threading.Timer(self.left_s, self.cut)
        self._timer.daemon = True

    @property
    def left_s(self) -> float:
        return max(0.001, self._deadline - time.monotonic())

    @property
    def is_over(self) -> bool:
        return self._is_cut or time.monotonic() >= self._deadline

    def __enter__(self) -> _Line:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        with self._lock:
            if self._socket is not None:
                self._socket.close()
                self._socket = None

    def connect(self, host: str, port: int) -> socket.socket:
        """Raises `OSError`."""
        made = socket.create_connection((host, port), timeout=self.left_s)
        with self._lock:
            if not self._is_cut:
                self._socket = made.dup()  # TLS takes the one that it is given for itself
                return made
        made.close()
        raise TimeoutError("it was cut")

    def check(self) -> None:
        """Raises `OSError` where it was cut: what was being read then looks as if it had come to its end."""
        if self._is_cut:
            raise TimeoutError("it was cut")

    def cut(self) -> None:
        with self._lock:
            self._is_cut = True
            if self._socket is not None:
                with suppress(OSError):  # its other end was faster
                    self._socket.shutdown(socket.SHUT_RDWR)


class _Connection(http.client.HTTPConnection):
    """Over a line, with TLS where there is a context for it."""

    def __init__(self, host: str, port: int, line: _Line, tls: ssl.SSLContext | None) -> None:
        super().__init__(host, port)
        self._line = line
        self._tls = tls

    def connect(self) -> None:
        self.sock = self._line.connect(self.host, self.port)
        if self._tls is not None:
            self.sock = self._tls.wrap_socket(self.sock, server_hostname=self.host)


def _said(error: Exception) -> str:
    """What the system says of it, where it does."""
    return (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__


def _quoted(text: str) -> str:
    """The beginning of a text that anybody may have written, as one line."""
    line = " ".join("".join(one if one.isprintable() else " " for one in text[: 4 * QUOTED_CHARS]).split())
    return line if len(line) <= QUOTED_CHARS else line[:QUOTED_CHARS] + "…"
