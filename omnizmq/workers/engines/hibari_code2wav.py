"""The code2wav: acoustic frames, as `hibari_talker` sends them, to 24 kHz sound while they come.

The sound of unit k has the same bytes as the package's `Hibari.from_phonemes(phonemes of k, speed, seed=unit_seed(seed,
k))` in the same environment, however its frames are cut into chunks. Nothing is put between units: the voice makes its
own pauses.

Parameter: `seed` (0) of the noise in the voice. No options but `role`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from omnizmq.errors import ConfigError, OmnizmqError, StageError
from omnizmq.workers.engine import Audio, Chunk, EngineContext, EngineRequest, StageOutput
from omnizmq.workers.engines.hibari_wave import BINS, PARTS, SAMPLE_RATE, UnitSynthesizer
from omnizmq.workers.engines.settings import choice, read_options, read_params, whole

OPTIONS = {"role": choice("code2wav")}
PARAMS = {"seed": whole(0, (1 << 32) - 1)}


def unit_seed(seed: int, unit: int) -> int:
    """The seed of a unit's noise: no two units of any two seeds share one."""
    return (seed << 32) + unit


def create_code2wav(context: EngineContext) -> Code2Wav:
    """Raises `ConfigError`."""
    read_options(context, OPTIONS)
    if context.targets or context.final_output not in (None, "audio"):
        raise ConfigError(f'stage.{context.stage}: a hibari code2wav is the last stage, with final_output = "audio"')
    return Code2Wav()


@dataclass
class _Sound:
    """One request."""

    seed: int
    chunks: deque[Chunk] = field(default_factory=deque)
    input_ended: bool = False
    unit: int = -1
    synthesizer: UnitSynthesizer | None = None
    samples: int = 0
    outputs: int = 0

    @property
    def usage(self) -> dict[str, int | float]:
        return {"audio_s": self.samples / SAMPLE_RATE, "chunks": self.outputs}


class Code2Wav:
    """See the module. A step makes sound from one chunk of one request; requests take turns."""

    def __init__(self) -> None:
        self._live: dict[str, _Sound] = {}  # in the order of their turns

    # --- Engine ----------------------------------------------------------------------------------------------------

    def add(self, request: EngineRequest) -> None:
        """Raises `InvalidRequestError`."""
        self._live[request.request_id] = _Sound(read_params(request.params, PARAMS).get("seed", 0))

    def feed(self, request_id: str, edge: str, chunk: Chunk) -> None:  # noqa: ARG002
        self._live[request_id].chunks.append(chunk)

    def end_of_input(self, request_id: str, edge: str) -> None:  # noqa: ARG002
        self._live[request_id].input_ended = True

    def abort(self, request_id: str) -> list[StageOutput]:
        sound = self._live.pop(request_id, None)
        if sound is None:
            return []
        return [StageOutput(request_id, ended=True, finish_reason="abort", usage=sound.usage)]

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
                samples = _synthesize(sound, sound.chunks.popleft())
                content = Audio(samples, SAMPLE_RATE) if samples.size else None
            ended = sound.input_ended and not sound.chunks
            if ended and sound.synthesizer is not None:
                raise StageError(f"the talker's frames ended within unit {sound.unit}")
        except OmnizmqError as error:
            return StageOutput(request_id, error=error)
        sound.outputs += content is not None
        if not ended:
            self._live[request_id] = sound
            return StageOutput(request_id, content=content)
        return StageOutput(request_id, content=content, ended=True, finish_reason="stop", usage=sound.usage)


def _synthesize(sound: _Sound, chunk: Chunk) -> NDArray[np.float32]:
    """The samples that a chunk completes. Raises `StageError` for a chunk that does not continue the last one."""
    spectra, unit, start = chunk.arrays.get("spectra"), chunk.meta.get("unit"), chunk.meta.get("start")
    if sound.synthesizer is None:
        sound.synthesizer = _begin(sound, chunk)
    synthesizer = sound.synthesizer
    left = synthesizer.frames - synthesizer.done
    if (unit, start) != (sound.unit, synthesizer.done):
        raise StageError(f"frames of unit {unit} from {start} came where unit {sound.unit} was at {synthesizer.done}")
    if spectra is None or spectra.dtype != np.float32 or spectra.shape[:-1] != (PARTS, BINS):
        raise StageError(f"a chunk of unit {unit} has no float32 spectra [{PARTS}, {BINS}, frames]")
    if not 1 <= spectra.shape[-1] <= left:
        raise StageError(f"a chunk of unit {unit} has {spectra.shape[-1]} frames where 1 to {left} can follow")
    samples = synthesizer.push(spectra)
    if synthesizer.done == synthesizer.frames:
        sound.synthesizer = None
    sound.samples += samples.size
    return samples


def _begin(sound: _Sound, chunk: Chunk) -> UnitSynthesizer:
    f0 = chunk.arrays.get("f0")
    sound.unit += 1
    if f0 is None or f0.dtype != np.float32 or f0.ndim != 1 or f0.size != chunk.meta.get("frames") or not f0.size:
        raise StageError(f"the first chunk of unit {sound.unit} has no float32 f0 for each of its frames")
    return UnitSynthesizer(f0, unit_seed(sound.seed, sound.unit))
