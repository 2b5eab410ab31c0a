"""Callers' sound files as 16 kHz mono: any format that libsndfile reads, any rate, any number of channels.

A few bytes may stand for hours of silence: what is too much, by the headers and all sounds together, is not decoded.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence

import numpy as np
import soundfile
from numpy.typing import NDArray

from omnizmq.errors import InvalidRequestError

RATE = 16_000
SHORTEST_S = 0.1
SAMPLES_PER_S = 96_000
"""Of all channels, before they are mixed: as many as 48 kHz stereo has, for as long as sounds may be together."""

LOUDEST = 2.0**31
"""Whole numbers of 32 bits may have been written as floats. The power of what is louder by far is no float32."""

_PIECE_S = 10
_MARGIN_S = 1  # on both sides of a piece, where it rings
_WHOLE = 0.9  # of what a header says: MP3's may be an estimate
_BLOCK = 1 << 16  # frames
_SILENCE_S = 0.05  # put at the end while resampling: a spectrum is periodic, and the end would leak into the beginning


def read(files: Sequence[bytes], longest_s: float) -> list[NDArray[np.float32]]:
    """float32 `[samples]` of each at `RATE`. `longest_s`: of all together. Raises `InvalidRequestError`."""
    try:
        _check_headers(files, longest_s)
        return [_decode(data) for data in files]
    except soundfile.LibsndfileError as error:
        raise InvalidRequestError(f"a sound cannot be read: {error.error_string}") from None


def _check_headers(files: Sequence[bytes], longest_s: float) -> None:
    total_s, samples, most = 0.0, 0, int(longest_s * SAMPLES_PER_S)
    for data in files:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            seconds = file.frames / file.samplerate
            samples += file.frames * file.channels
        if not SHORTEST_S <= seconds <= longest_s:
            raise InvalidRequestError(
                f"a sound of {seconds:.2f} s is not usable: it must have {SHORTEST_S} to {longest_s:.0f} s"
            )
        total_s += seconds
    if total_s > longest_s:
        raise InvalidRequestError(
            f"the prompt's {len(files)} sounds have {total_s:.2f} s: together they may have {longest_s:.0f} s"
        )
    if samples > most:
        raise InvalidRequestError(
            f"the prompt's sounds have {samples} samples in all channels: together they may have {most}, "
            f"{SAMPLES_PER_S} a second"
        )


def _decode(data: bytes) -> NDArray[np.float32]:
    with soundfile.SoundFile(io.BytesIO(data)) as file:
        said, rate, blocks = file.frames, file.samplerate, []
        # Not by the library's `blocks`: where a file ends early, those are of memory that nobody wrote.
        while len(block := file.read(_BLOCK, dtype="float32", always_2d=True)):
            blocks.append(_mixed(block))
    came = sum(map(len, blocks))
    if came < said * _WHOLE:
        raise InvalidRequestError(
            f"a sound is damaged: it has {came / rate:.2f} s of sound where its header says {said / rate:.2f} s"
        )
    return resample(np.concatenate(blocks), rate)


def _mixed(block: NDArray[np.float32]) -> NDArray[np.float32]:
    """`[frames, channels]` to `[frames]`."""
    if not np.isfinite(block).all():
        raise InvalidRequestError("a sound has samples that are no numbers")
    if np.abs(block).max(initial=0) > LOUDEST:
        raise InvalidRequestError(f"a sound has samples beyond {LOUDEST:.0f}: full scale is 1")
    mixed: NDArray[np.float32] = block.mean(axis=1)
    return mixed


def resample(samples: NDArray[np.float32], rate: int) -> NDArray[np.float32]:
    """`[n]` at `rate` -> `[n * RATE / rate]`, rounded up, cutting or extending the spectrum of pieces that overlap:
    a spectrum takes many times the memory of its sound."""
    if rate == RATE:
        return samples
    common = math.gcd(rate, RATE)
    step, out_step = rate // common, RATE // common
    piece, margin = (-(-seconds * rate // step) for seconds in (_PIECE_S, _MARGIN_S))  # in steps
    made = []
    for first in range(0, -(-len(samples) // step), piece):
        before = min(margin, first)
        around = samples[(first - before) * step : (first + piece + margin) * step]
        silence = round(_SILENCE_S * rate)
        resampled = _by_spectrum(around, step, out_step, -(-(len(around) + silence) // step))
        made.append(resampled[before * out_step : (before + piece) * out_step])
    return np.concatenate(made)[: -(-len(samples) * out_step // step)]


def _by_spectrum(samples: NDArray[np.float32], step: int, out_step: int, steps: int) -> NDArray[np.float32]:
    """`[n]`, and silence up to `steps * step` -> `[steps * out_step]`."""
    spectrum = np.fft.rfft(samples, steps * step)
    made = np.fft.irfft(spectrum[: steps * out_step // 2 + 1], steps * out_step) * (out_step / step)
    return made.astype(np.float32)
