"""A caller's sound file as 16 kHz mono: any format that libsndfile reads, any rate, any number of channels."""

from __future__ import annotations

import io
import math

import numpy as np
import soundfile
from numpy.typing import NDArray

from omnizmq.errors import InvalidRequestError

RATE = 16_000
SHORTEST_S = 0.1
_SILENCE_S = 0.05  # put at the end while resampling: a spectrum is periodic, and the end would leak into the beginning


def read(data: bytes, longest_s: float) -> NDArray[np.float32]:
    """float32 `[samples]` at `RATE`. Raises `InvalidRequestError`; what is too long is not decoded."""
    try:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            seconds = file.frames / file.samplerate
            if not SHORTEST_S <= seconds <= longest_s:
                raise InvalidRequestError(
                    f"a sound of {seconds:.2f} s is not usable: it must have {SHORTEST_S} to {longest_s:.0f} s"
                )
            samples, rate = file.read(dtype="float32", always_2d=True), file.samplerate
    except soundfile.LibsndfileError as error:
        raise InvalidRequestError(f"a sound cannot be read: {error.error_string}") from None
    mono = samples.mean(axis=1)
    if not np.isfinite(mono).all():
        raise InvalidRequestError("a sound has samples that are no numbers")
    return resample(mono, rate)


def resample(samples: NDArray[np.float32], rate: int) -> NDArray[np.float32]:
    """`[n]` at `rate` -> `[n * RATE / rate]`, rounded up, by cutting or extending the spectrum."""
    if rate == RATE:
        return samples
    common = math.gcd(rate, RATE)
    step, out_step = rate // common, RATE // common
    blocks = -(-(len(samples) + round(_SILENCE_S * rate)) // step)
    spectrum = np.fft.rfft(samples, blocks * step)
    made = np.fft.irfft(spectrum[: blocks * out_step // 2 + 1], blocks * out_step) * (out_step / step)
    return made[: -(-len(samples) * out_step // step)].astype(np.float32)
