"""The hop benchmark's engine: a text stage whose every output says when its frame was made.

All requests make an output at the same moments, `interval_ms` apart, as with continuous batching. The stamp is taken
when the worker turns the output's text into a frame, in the thread that sends it: what an engine costs is no part of
the hop. CLOCK_MONOTONIC is one clock for all processes of a machine.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

from omnizmq.tables import Section, read
from omnizmq.workers.engine import Chunk, EngineContext, EngineRequest, StageOutput

STAMP_DIGITS = 20


class Options(Section, frozen=True):
    """`[stage.options]`: a request makes `outputs` texts of `chars` characters, one each `interval_ms`."""

    outputs: int = 100
    chars: int = 256
    interval_ms: float = 2.0


class Stamped(str):
    """A text that begins with the nanosecond at which it became a plain one."""

    __slots__ = ()

    def __str__(self) -> str:
        return f"{time.monotonic_ns():0{STAMP_DIGITS}d}{self[STAMP_DIGITS:]}"


class HopEngine:
    """A thread of its own beats time, so that whoever sends an output is not disturbed by the wait for the next."""

    def __init__(self, context: EngineContext, options: Options) -> None:
        self._text = Stamped("x" * options.chars)
        self._outputs = options.outputs
        self._interval_s = options.interval_ms / 1000
        self._wake = context.wake
        self._made: dict[str, int] = {}
        self._beats = self._stepped = 0
        self._closed = False
        threading.Thread(target=self._beat, name="beat", daemon=True).start()

    def _beat(self) -> None:
        while not self._closed:
            now = time.monotonic()
            time.sleep((now // self._interval_s + 1) * self._interval_s - now)
            if self._made:
                self._beats += 1
                self._wake()

    def add(self, request: EngineRequest) -> None:
        self._made[request.request_id] = 0

    def feed(self, request_id: str, edge: str, chunk: Chunk) -> None: ...

    def end_of_input(self, request_id: str, edge: str) -> None: ...

    def abort(self, request_id: str) -> list[StageOutput]:
        self._made.pop(request_id, None)
        return []

    def has_work(self, request_id: str) -> bool:
        return self._beats > self._stepped and request_id in self._made

    def step(self, ready: Sequence[str]) -> list[StageOutput]:
        self._stepped = self._beats
        return [self._output(request_id) for request_id in ready]

    def _output(self, request_id: str) -> StageOutput:
        self._made[request_id] += 1
        if self._made[request_id] < self._outputs:
            return StageOutput(request_id, self._text)
        del self._made[request_id]
        return StageOutput(request_id, self._text, finish_reason="stop", usage={"completion_tokens": self._outputs})

    def close(self) -> None:
        self._closed = True


def create(context: EngineContext) -> Any:
    return HopEngine(context, read(Options, dict(context.options), f"stage.{context.stage}.options"))
