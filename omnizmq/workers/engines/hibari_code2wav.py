"""The code2wav: acoustic frames, as `hibari_talker` sends them, to 24 kHz sound while they come.

The sound of unit k has the same bytes as the package's `Hibari.from_phonemes(phonemes of k, speed, seed=unit_seed(seed,
k))` in the same environment, however its frames are cut into chunks. Nothing is put between units: the voice makes its
own pauses.

Parameter: `seed` (0) of the noise in the voice. No options but `role`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from omnizmq.errors import StageError
from omnizmq.workers.engine import Chunk, EngineContext, EngineRequest
from omnizmq.workers.engines.hibari_wave import BINS, PARTS, SAMPLE_RATE, UnitSynthesizer
from omnizmq.workers.engines.settings import choice, read_options, read_params, whole
from omnizmq.workers.engines.turns import Turns

OPTIONS = {"role": choice("code2wav")}
PARAMS = {"seed": whole(0, (1 << 32) - 1)}


def unit_seed(seed: int, unit: int) -> int:
    """The seed of a unit's noise: no two units of any two seeds share one."""
    return (seed << 32) + unit


def create_code2wav(context: EngineContext) -> Code2Wav:
    """Raises `ConfigError`."""
    read_options(context, OPTIONS)
    return Code2Wav()


class Code2Wav(Turns):
    """See the module."""

    def __init__(self) -> None:
        super().__init__(SAMPLE_RATE)

    def add(self, request: EngineRequest) -> None:
        """Raises `InvalidRequestError`."""
        self.begin(request.request_id, _Units(read_params(request.params, PARAMS).get("seed", 0)))


class _Units:
    """The sound of one request, unit by unit."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._unit = -1
        self._synthesizer: UnitSynthesizer | None = None
        self.samples = 0

    def push(self, chunk: Chunk) -> NDArray[np.float32]:
        """The samples that a chunk completes. Raises `StageError` for a chunk that does not continue the last one."""
        spectra, unit, start = chunk.arrays.get("spectra"), chunk.meta.get("unit"), chunk.meta.get("start")
        synthesizer = self._synthesizer = self._synthesizer or self._begin(chunk)
        left = synthesizer.frames - synthesizer.done
        if (unit, start) != (self._unit, synthesizer.done):
            raise StageError(
                f"frames of unit {unit} from {start} came where unit {self._unit} was at {synthesizer.done}"
            )
        if spectra is None or spectra.dtype != np.float32 or spectra.shape[:-1] != (PARTS, BINS):
            raise StageError(f"a chunk of unit {unit} has no float32 spectra [{PARTS}, {BINS}, frames]")
        if not 1 <= spectra.shape[-1] <= left:
            raise StageError(f"a chunk of unit {unit} has {spectra.shape[-1]} frames where 1 to {left} can follow")
        samples = synthesizer.push(spectra)
        if synthesizer.done == synthesizer.frames:
            self._synthesizer = None
        self.samples += samples.size
        return samples

    def finish(self) -> None:
        """Raises `StageError` within a unit."""
        if self._synthesizer is not None:
            raise StageError(f"the talker's frames ended within unit {self._unit}")

    def _begin(self, chunk: Chunk) -> UnitSynthesizer:
        f0 = chunk.arrays.get("f0")
        self._unit += 1
        if f0 is None or f0.dtype != np.float32 or f0.ndim != 1 or f0.size != chunk.meta.get("frames") or not f0.size:
            raise StageError(f"the first chunk of unit {self._unit} has no float32 f0 for each of its frames")
        return UnitSynthesizer(f0, unit_seed(self._seed, self._unit))
