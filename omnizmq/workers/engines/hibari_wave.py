"""Sound from acoustic frames that come in chunks, with the same bytes as from all of them at once.

What `hibari.dsp.synth` computes for a whole unit (its docstring has the formula) is computed here a few frames at a
time. Kept between chunks: the unit's pulse train, which needs the whole F0 and so comes with the first chunk; the
unit's noise, which the package draws bin by bin over all frames; and the last three inverse transforms, because each
hop of sound is the sum of four, added in the package's order. State: 6 kB a frame. Sound lags its frames by two hops.
"""

from __future__ import annotations

import numpy as np
from hibari import dsp
from numpy.typing import NDArray

SAMPLE_RATE: int = dsp.SR
BINS: int = dsp.N_FFT // 2 + 1
PARTS = 5
_OVERLAP: int = dsp.N_FFT // dsp.HOP
_LAG = _OVERLAP // 2
_SQUARED_WINDOW = (dsp.WIN * dsp.WIN).reshape(_OVERLAP, dsp.HOP)

Float = NDArray[np.float32]
Complex = NDArray[np.complex64]


class UnitSynthesizer:
    """One unit. `f0`: float32 [F], Hz; `seed`: of its noise, as for `Hibari.from_phonemes`."""

    def __init__(self, f0: Float, seed: int) -> None:
        self.frames = len(f0)
        self.done = 0
        # The package mirrors the pulse train at both ends before it cuts windows out of it.
        self._pulses: Float = np.pad(dsp.pulses(f0), dsp.N_FFT // 2, mode="reflect")
        normal = np.random.default_rng(seed).standard_normal((BINS, 2 * self.frames), dtype=np.float32)
        self._noise: Complex = normal.view(np.complex64)
        self._tail: Float = np.zeros((_OVERLAP - 1, _OVERLAP, dsp.HOP), np.float32)

    def push(self, spectra: Float) -> Float:
        """The samples that the next frames complete. `spectra`: float32 [5, 601, n]; the rest comes with the last."""
        start, self.done = self.done, self.done + spectra.shape[2]
        waves: Float = dsp.irfft(self._spectrum(start, self.done, spectra).T, dsp.N_FFT, 1)
        waves *= dsp.WIN
        waves = waves.reshape(-1, _OVERLAP, dsp.HOP)
        if self.done == self.frames:
            waves = np.concatenate([waves, np.zeros((_LAG, _OVERLAP, dsp.HOP), np.float32)])
        return self._overlap(start, waves)

    def _spectrum(self, start: int, end: int, spectra: Float) -> Complex:
        """Complex [601, n]: filtered pulses, shaped noise and the rest."""
        harmonic_level, harmonic_phase, noise_level, rest_level, rest_phase = spectra
        windows = np.lib.stride_tricks.sliding_window_view(self._pulses, dsp.N_FFT)[:: dsp.HOP][start:end]
        spectrum: Complex = np.ascontiguousarray(dsp.rfft(windows * dsp.WIN_SRC, 1).T)
        spectrum *= _polar(harmonic_level, np.tanh(harmonic_phase) * np.float32(np.pi))
        spectrum += self._noise[:, start:end] * dsp.ex(noise_level)
        spectrum += _polar(rest_level, rest_phase)
        return spectrum

    def _overlap(self, start: int, waves: Float) -> Float:
        """Hops of sound from `start` on, one for each of `waves`, without the two before the unit begins."""
        count = len(waves)
        joined = np.concatenate([self._tail, waves])
        self._tail = joined[-len(self._tail) :]
        hops = np.arange(start, start + count)[:, None]
        sound = np.zeros((count, dsp.HOP), np.float32)
        weight = np.zeros((count, dsp.HOP), np.float32)
        for part in range(_OVERLAP):
            first = _OVERLAP - 1 - part
            sound += joined[first : first + count, part]
            inside = (hops >= part) & (hops - part < self.frames)
            weight += np.where(inside, _SQUARED_WINDOW[part], np.float32(0))
        sound *= 1.0 / np.maximum(weight, 1e-11)
        return sound[max(0, _LAG - start) :].reshape(-1)


def _polar(level: Float, phase: Float) -> Complex:
    """Complex numbers from the logarithm of their magnitude and their phase."""
    value = np.empty(phase.shape, np.complex64)
    np.cos(phase, out=value.real)
    np.sin(phase, out=value.imag)
    value *= dsp.ex(level)
    return value
