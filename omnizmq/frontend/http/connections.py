"""Connections, beside the requests on them: so many at once, each with so long to ask, and to take something of an
answer; and what is none.

uvicorn closes one that is idle after an answer. It would keep for ever one that has never asked, or half asked, or that
does not take its answer; and where bytes wait behind a request, it does not see that the caller has gone.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import time
from typing import Any

import h11
from starlette.types import Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from omnizmq.frontend.http import tcp
from omnizmq.frontend.http.problems import body, retry
from omnizmq.frontend.http.sending import encode

HEAD_S = 20.0
"""How long a request's head may take, from its connection or from the answer before."""

LOOK_S = 0.5
"""How often each is looked at."""

STOP_S = 2.0
"""How long an answer that is written already has to be taken when the server stops; less than the server itself waits
for its answers."""

MOST = 4096
"""Connections at once, or half as many as the process may have descriptors; more are closed at once."""

SPARE = 160
"""Descriptors that are left, where there are few: for what else the process has open, and for connections that are
accepted and not counted yet, which are some times `listening.ACCEPTS`."""

_FRAMED_TWICE = {b"content-length", b"transfer-encoding"}

COMPLAINT_S = 60.0

_logger = logging.getLogger(__name__)


class Connection(H11Protocol):
    """One of a caller's. Where nothing of an answer moves for `stall_s`, it is reset."""

    stall_s = 35.0

    _complained = 0.0  # of all

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._inner, self.app = self.app, self._run
        self._lost = asyncio.Event()
        self._waits_since = self._moved_at = self.loop.time()
        self._taken = 0
        self._timer = self.loop.call_later(LOOK_S, self._look)
        if len(self.connections) > most():
            self._complain()
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        super().connection_lost(exc)
        self._lost.set()

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

    def shutdown(self) -> None:
        super().shutdown()
        self.stall_s = min(self.stall_s, STOP_S)
        self._moved_at = self.loop.time()

    async def _run(self, scope: Scope, receive: Receive, send: Send) -> None:
        """An answer that the application leaves without its end is cut off: what there is of it still goes out. After a
        body whose length is said in two ways the connection is closed (RFC 9112, 6.1): others may have seen two
        requests there."""
        ended = False
        closes = {name for name, _ in scope["headers"]} >= _FRAMED_TWICE

        async def sending(message: Message) -> None:
            nonlocal ended
            if self.transport.is_closing():  # to write on would be an error each time until it is known to be lost
                await self._lost.wait()
            if closes and message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], (b"connection", b"close")]}
            await send(message)
            ended = message["type"] == "http.response.body" and not message.get("more_body", False)

        await self._inner(scope, receive, sending)
        if not ended:
            self.transport.close()
            await self._lost.wait()

    def _look(self) -> None:
        """Close it where nobody is there, nothing of an answer moves, or nothing is asked in time."""
        now = self.loop.time()
        cycle: Any = self.cycle
        asks = cycle is not None and not cycle.response_complete
        waiting = self.transport.get_write_buffer_size() > 0
        if self._is_stuck(now, waiting) or (asks and self.flow.read_paused and tcp.is_closed(self.transport)):
            tcp.reset(self.transport)
        elif not asks and not waiting and now >= self._waits_since + HEAD_S:
            self.transport.close()
        else:
            self._timer = self.loop.call_later(LOOK_S, self._look)

    def _is_stuck(self, now: float, waiting: bool) -> bool:
        """Whether the caller has taken nothing for too long of what is `waiting`."""
        taken = tcp.acknowledged(self.transport) if waiting else self._taken
        if not waiting or taken != self._taken:
            self._taken, self._moved_at = taken, now
        return now >= self._moved_at + self.stall_s

    @classmethod
    def _complain(cls) -> None:
        now = time.monotonic()
        if now >= cls._complained + COMPLAINT_S:
            cls._complained = now
            _logger.warning("more than %d connections: new ones are closed at once", most())


def most() -> int:
    """Connections at once."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(1, min(MOST, descriptors // 2, descriptors - SPARE))
