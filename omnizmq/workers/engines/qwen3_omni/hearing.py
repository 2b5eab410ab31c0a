"""Sounds as the features that the Thinker's audio encoder takes, and how many tokens each of them becomes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import WhisperFeatureExtractor

from omnizmq.errors import LaunchError
from omnizmq.workers.engines.hf.checkpoint import Checkpoint
from omnizmq.workers.engines.qwen3_omni import sound

TOKENS_PER_S = 13


@dataclass(frozen=True, slots=True)
class Features:
    """Of all sounds of a prompt: `values` float32 `[sounds, mels, frames]`, and which frames are real: `mask`."""

    values: torch.Tensor
    mask: torch.Tensor
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
        """Raises `InvalidRequestError` for a sound that cannot be read, or is too short or too long."""
        waves = [sound.read(data, longest_s) for data in files]
        made = self._extractor(
            waves,
            sampling_rate=sound.RATE,
            padding=True,
            truncation=False,
            return_attention_mask=True,
            return_tensors="pt",
        )
        frames = made["attention_mask"].sum(1).tolist()
        return Features(made["input_features"], made["attention_mask"], [self._tokens(count) for count in frames])

    def _tokens(self, frames: int) -> int:
        """Each window of frames, the last one cut short, goes through three convolutions of stride 2."""
        whole, rest = divmod(frames, self._window)
        return whole * _halved_thrice(self._window) + _halved_thrice(rest)


def _halved_thrice(count: int) -> int:
    for _ in range(3):
        count = -(-count // 2)
    return count
