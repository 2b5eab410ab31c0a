"""A Code2Wav: codec frames to 24 kHz sound while they come, in float32.

However the frames are cut into chunks, the samples are as many as one decode of all frames makes, and equal to them but
for rounding. A step decodes one chunk of one request; requests take turns.

Options: `threads` (1) on a CPU. No parameters; `seed` is accepted, so that one seed can be given to all stages.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from omnizmq.errors import OmnizmqError
from omnizmq.workers.engine import Chunk, EngineRequest
from omnizmq.workers.engines.hf.frames import read_codes
from omnizmq.workers.engines.hf.requests import not_finite
from omnizmq.workers.engines.hf.wave import Vocoder, WaveStream
from omnizmq.workers.engines.settings import read_params, whole
from omnizmq.workers.engines.torch_errors import failure_of
from omnizmq.workers.engines.turns import Turns

PARAMS = {"seed": whole(0, (1 << 32) - 1)}


class Code2Wav(Turns):
    """See the module."""

    def __init__(self, vocoder: Vocoder) -> None:
        super().__init__(vocoder.sample_rate)
        self._model = vocoder

    def add(self, request: EngineRequest) -> None:
        """Raises `InvalidRequestError`."""
        read_params(request.params, PARAMS)
        self.begin(request.request_id, _Frames(self._model))

    def failure_of(self, error: Exception, request_id: str) -> OmnizmqError:
        """Raises `EngineBrokenError`."""
        return failure_of(error, request_id)


class _Frames:
    """The sound of one request, frame by frame."""

    def __init__(self, vocoder: Vocoder) -> None:
        self._model = vocoder
        self._stream = WaveStream(vocoder)

    @property
    def samples(self) -> int:
        return self._stream.samples

    def push(self, chunk: Chunk) -> NDArray[np.float32]:
        """Raises `StageError`."""
        samples = self._stream.push(read_codes(chunk, self._stream.frames, self._model.groups, self._model.codebook))
        if not np.isfinite(samples).all():
            raise not_finite()
        return samples

    def finish(self) -> None:
        """Frames may end anywhere."""
