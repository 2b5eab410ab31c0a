"""Sounds as the features that the Thinker's audio encoder takes, and how many tokens each of them becomes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import WhisperFeatureExtractor

from omnizmq.errors import LaunchError
from omnizmq.workers.engines.hf.checkpoint import Checkpoint
from omnizmq.workers.engines.qwen3_omni import sound


@dataclass(frozen=True, slots=True)
class Features:
    """Of all sounds of a prompt, one after the other: `values` float32 `[mels, frames]`; of each, how many `frames` and
    `tokens` it has."""

    values: torch.Tensor
    frames: list[int]
    tokens: list[int]


class Hearing:
    """Raises `LaunchError` when the checkpoint's preprocessor cannot be used."""

    def __init__(self, checkpoint: Checkpoint, audio_config: Any) -> None:
        try:
            self._extractor: Any = WhisperFeatureExtractor.from_pretrained(checkpoint.path)
        except (OSError, ValueError) as error:
            raise LaunchError(f"the audio preprocessor of {checkpoint.path} cannot be used: {error}") from error
        self._window: int = 2 * audio_config.n_window

    def features(self, files: Sequence[bytes], longest_s: float) -> Features:
        """Raises `InvalidRequestError` for what cannot be read, is too short, or with the others longer than
        `longest_s`."""
        waves = sound.read(files, longest_s)
        longest = max(map(len, waves))
        made = [self._of(wave, longest) for wave in waves]
        frames = [values.shape[1] for values in made]
        return Features(torch.cat(made, dim=1), frames, [self._tokens(count) for count in frames])

    def _of(self, wave: NDArray[np.float32], longest: int) -> torch.Tensor:
        """`[mels, frames]`, equal to what the library makes of all sounds in one batch, where each is as long as the
        longest: of the silence after a sound, its last frames see one window. So that silence takes no memory."""
        hop, window = self._extractor.hop_length, self._extractor.n_fft
        frames = min(-(-len(wave) // hop), longest // hop)
        padded = np.pad(wave, (0, min(longest - len(wave), window)))
        made = self._extractor(padded, sampling_rate=sound.RATE, padding=True, truncation=False, return_tensors="pt")
        values: torch.Tensor = made["input_features"][0, :, :frames].clone()
        return values

    def _tokens(self, frames: int) -> int:
        """Each window of frames, the last one cut short, goes through three convolutions of stride 2."""
        whole, rest = divmod(frames, self._window)
        return whole * _halved_thrice(self._window) + _halved_thrice(rest)


def _halved_thrice(count: int) -> int:
    for _ in range(3):
        count = -(-count // 2)
    return count
