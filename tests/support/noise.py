"""Noise as a sound and its file, for tests."""

from __future__ import annotations

import io

import numpy as np
import soundfile


def sound(seconds: float, rate: int = 16_000, channels: int = 1) -> np.ndarray:
    """float32 `[samples, channels]`: noise that swells, different in each channel."""
    count = round(seconds * rate)
    noise = np.random.default_rng(round(seconds * 10)).normal(size=(count, channels))
    return (0.1 * noise * np.linspace(0, 1, count)[:, None]).astype(np.float32)


def wave_file(samples: np.ndarray, rate: int = 16_000) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format="WAV", subtype="FLOAT")
    return file.getvalue()
