"""Engines that make sound of chunks, one chunk of one request a step. Requests take turns, and fail alone (F1)."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from omnizmq.errors import OmnizmqError
from omnizmq.workers import failures
from omnizmq.workers.engine import Audio, Chunk, EngineRequest, StageOutput


class Decoder(Protocol):
    """The sound of one request."""

    @property
    def samples(self) -> int:
        """That were made so far."""

    def push(self, chunk: Chunk) -> NDArray[np.float32]:
        """The samples in -1..1 that a chunk completes. Raises `StageError` for one that does not follow the last."""

    def finish(self) -> None:
        """No chunk follows. Raises `StageError` where one is missing."""


@dataclass
class _Sound:
    """One request."""

    decoder: Decoder
    chunks: deque[Chunk] = field(default_factory=deque)
    input_ended: bool = False
    outputs: int = 0


class Turns:
    """An engine without its `add`, which calls `begin`."""

    def __init__(self, sample_rate: int) -> None:
        self._sample_rate = sample_rate
        self._live: dict[str, _Sound] = {}  # in the order of their turns

    def begin(self, request_id: str, decoder: Decoder) -> None:
        self._live[request_id] = _Sound(decoder)

    def failure_of(self, error: Exception, request_id: str) -> OmnizmqError:
        """What a request is told of an exception."""
        return failures.failure_of(error, request_id)

    # --- Engine ----------------------------------------------------------------------------------------------------

    def add(self, request: EngineRequest) -> None:
        raise NotImplementedError

    def feed(self, request_id: str, edge: str, chunk: Chunk) -> None:  # noqa: ARG002
        self._live[request_id].chunks.append(chunk)

    def end_of_input(self, request_id: str, edge: str) -> None:  # noqa: ARG002
        self._live[request_id].input_ended = True

    def abort(self, request_id: str) -> list[StageOutput]:
        sound = self._live.pop(request_id, None)
        if sound is None:
            return []
        return [StageOutput(request_id, ended=True, finish_reason="abort", usage=self._usage(sound))]

    def has_work(self, request_id: str) -> bool:
        sound = self._live.get(request_id)
        return sound is not None and (bool(sound.chunks) or sound.input_ended)

    def step(self, ready: Sequence[str]) -> list[StageOutput]:
        candidates = frozenset(ready)
        for request_id in self._live:
            if request_id in candidates and self.has_work(request_id):
                return [self._turn(request_id, self._live.pop(request_id))]
        return []

    def close(self) -> None:
        self._live.clear()

    # --- Inside ----------------------------------------------------------------------------------------------------

    def _turn(self, request_id: str, sound: _Sound) -> StageOutput:
        """One chunk of a request, which is out of the table and goes back to its end unless it has ended."""
        content = None
        try:
            if sound.chunks:
                samples = sound.decoder.push(sound.chunks.popleft())
                content = Audio(samples, self._sample_rate) if samples.size else None
            ended = sound.input_ended and not sound.chunks
            if ended:
                sound.decoder.finish()
        except Exception as error:  # noqa: BLE001 (F1: whatever a package raises ends this request alone)
            return StageOutput(request_id, error=self.failure_of(error, request_id))
        sound.outputs += content is not None
        if not ended:
            self._live[request_id] = sound
            return StageOutput(request_id, content=content)
        return StageOutput(request_id, content=content, ended=True, finish_reason="stop", usage=self._usage(sound))

    def _usage(self, sound: _Sound) -> dict[str, int | float]:
        return {"audio_s": sound.decoder.samples / self._sample_rate, "chunks": sound.outputs}
