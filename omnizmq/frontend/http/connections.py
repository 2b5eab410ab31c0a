"""Connections, before there is a request on them: so many at once, each with so long to ask; and what is none.

uvicorn closes one that is idle after an answer; one that has never asked, or half asked, it would keep for ever.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import time
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from omnizmq.frontend.http.problems import body, retry
from omnizmq.frontend.http.sending import encode

HEAD_S = 20.0
"""How long a request's head may take, from its connection or from the answer before."""

MOST = 4096
"""Connections at once, or half as many as the process may have descriptors; more are closed at once."""

COMPLAINT_S = 60.0

_logger = logging.getLogger(__name__)


class Connection(H11Protocol):
    """One of a caller's."""

    _complained = 0.0  # of all

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._waits_since = self.loop.time()
        self._timer = self.loop.call_later(HEAD_S, self._look)
        if len(self.connections) > most():
            self._complain()
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        self._waits_since = self.loop.time()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """To what is no HTTP, as every other refusal; where an answer has begun already, that is cut off."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            content = encode(body(400, "invalid_request", msg))
            headers = {"content-type": "application/json", "content-length": str(len(content)), "connection": "close"}
            head = h11.Response(status_code=400, headers=[*(headers | retry(False)).items()], reason=b"Bad Request")
            for event in (head, h11.Data(data=content), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _look(self) -> None:
        """Close it where it has asked for nothing in time."""
        cycle: Any = self.cycle
        until = self._waits_since + HEAD_S
        asks = cycle is not None and not cycle.response_complete
        if not asks and self.loop.time() >= until:
            self.transport.close()
            return
        self._timer = self.loop.call_at(self.loop.time() + HEAD_S if asks else until, self._look)

    @classmethod
    def _complain(cls) -> None:
        now = time.monotonic()
        if now >= cls._complained + COMPLAINT_S:
            cls._complained = now
            _logger.warning("more than %d connections: new ones are closed at once", most())


def most() -> int:
    """Connections at once."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(MOST, descriptors // 2)
