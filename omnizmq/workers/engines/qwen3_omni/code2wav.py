"""The Code2Wav: codec frames to 24 kHz sound while they come, in float32.

However the frames are cut into chunks, the samples are as many as one decode of all frames makes, and equal to them but
for rounding. A step decodes one chunk of one request; requests take turns.

Options: `threads` (1) on a CPU. No parameters; `seed` is accepted, so that one seed can be given to all stages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from omnizmq.errors import OmnizmqError
from omnizmq.workers.engine import Audio, Chunk, EngineContext, EngineRequest, StageOutput
from omnizmq.workers.engines.hf.wave import Decoder, WaveStream
from omnizmq.workers.engines.qwen3_omni.checkpoint import Checkpoint
from omnizmq.workers.engines.qwen3_omni.rows import read_codes
from omnizmq.workers.engines.qwen3_omni.stage import Stage
from omnizmq.workers.engines.qwen3_omni.wave import WaveModel
from omnizmq.workers.engines.settings import read_params, whole

PARAMS = {"seed": whole(0, (1 << 32) - 1)}


def create_code2wav(context: EngineContext, options: Mapping[str, Any], checkpoint: Checkpoint) -> Code2Wav:
    """Raises `ConfigError`, `LaunchError`."""
    stage = Stage(context, options, checkpoint)
    context.progress("loading the code2wav")
    return Code2Wav(WaveModel(stage))


@dataclass
class _Sound:
    """One request."""

    stream: WaveStream
    chunks: deque[Chunk] = field(default_factory=deque)
    input_ended: bool = False
    outputs: int = 0


class Code2Wav:
    """See the module."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._live: dict[str, _Sound] = {}  # in the order of their turns

    # --- Engine ----------------------------------------------------------------------------------------------------

    def add(self, request: EngineRequest) -> None:
        """Raises `InvalidRequestError`."""
        read_params(request.params, PARAMS)
        self._live[request.request_id] = _Sound(WaveStream(self._decoder))

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
        request_id = next(request_id for request_id in self._live if request_id in candidates)
        return [self._turn(request_id, self._live.pop(request_id))]

    def close(self) -> None:
        self._live.clear()

    # --- Inside ----------------------------------------------------------------------------------------------------

    def _turn(self, request_id: str, sound: _Sound) -> StageOutput:
        """One chunk of a request, which is out of the table and goes back to its end unless it has ended."""
        content = None
        if sound.chunks:
            try:
                codes = read_codes(
                    sound.chunks.popleft(), sound.stream.frames, self._decoder.groups, self._decoder.codebook
                )
            except OmnizmqError as error:
                return StageOutput(request_id, error=error)
            content = Audio(sound.stream.push(codes), self._decoder.sample_rate)
            sound.outputs += 1
        if sound.chunks or not sound.input_ended:
            self._live[request_id] = sound
            return StageOutput(request_id, content=content)
        return StageOutput(request_id, content=content, ended=True, finish_reason="stop", usage=self._usage(sound))

    def _usage(self, sound: _Sound) -> dict[str, int | float]:
        return {"audio_s": sound.stream.samples / self._decoder.sample_rate, "chunks": sound.outputs}
