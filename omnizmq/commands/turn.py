"""One turn of a chat: outputs in, text on the terminal, sound in a file, a document at the end."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from omnizmq.commands.failure import describe
from omnizmq.commands.wave import WaveFile
from omnizmq.errors import OmnizmqError

if TYPE_CHECKING:
    from omnizmq import RequestOutput


def new_id() -> str:
    """An external id for a request whose caller gave none."""
    return f"chat-{secrets.token_hex(4)}"


class Turn:
    """What came of one request. Times are milliseconds since `consume` was called, on the caller's clock."""

    def __init__(self, external_id: str, wants_text: bool, wave: WaveFile | None, show: Callable[[str], None]) -> None:
        self.external_id = external_id
        self.request_id: str | None = None
        self.text: str | None = "" if wants_text else None
        self.wave = wave
        self.error: OmnizmqError | None = None
        self.interrupted = False
        self.terminal: RequestOutput | None = None
        self.timings: dict[str, float | None] = {"ttft_ms": None, "ttfa_ms": None, "total_ms": None}
        self._show = show
        self._start = time.monotonic()

    async def consume(self, outputs: AsyncGenerator[RequestOutput, None]) -> None:
        """To the end. An `OmnizmqError` is kept in `error`; whatever else ends it aborts the request first."""
        self._start = time.monotonic()
        try:
            async with aclosing(outputs):
                async for output in outputs:
                    self.request_id = output.request_id
                    self._take(output)
        except OmnizmqError as error:
            self.error = error
            self.request_id = error.request_id or self.request_id
        finally:
            self._note("total_ms")
            if self.wave is not None:
                self.wave.close()

    def _take(self, output: RequestOutput) -> None:
        if output.text:
            self._note("ttft_ms")
            self.text = (self.text or "") + output.text
            self._show(output.text)
        if output.audio is not None and output.sample_rate is not None:
            self._note("ttfa_ms")
            if self.wave is not None:
                self.wave.write(output.audio, output.sample_rate)
        if output.finished:
            self.terminal = output

    def _note(self, name: str) -> None:
        if self.timings[name] is None:
            self.timings[name] = round((time.monotonic() - self._start) * 1000, 3)

    @property
    def finish_reason(self) -> str:
        if self.terminal is not None:
            return self.terminal.finish_reason or "stop"
        return "abort" if self.interrupted else "error"

    @property
    def succeeded(self) -> bool:
        return self.error is None and self.finish_reason in ("stop", "length")

    def document(self) -> dict[str, Any]:
        """The document of `omnizmq chat --json`."""
        terminal, error = self.terminal, self.error
        return {
            "request_id": self.request_id,
            "external_id": self.external_id,
            "text": self.text,
            "audio": None if self.wave is None else self.wave.document(),
            "finish_reason": self.finish_reason,
            "usage": {} if terminal is None else terminal.usage,
            "usage_incomplete": [] if terminal is None else list(terminal.usage_incomplete),
            "notes": {} if terminal is None else dict(terminal.notes),
            "error": None if error is None else describe(error),
            "timings": self.timings,
        }
