"""The Thinker's encoders: sounds and images as rows that stand in a prompt for the embeddings of their tokens."""

from __future__ import annotations

from typing import Any

import torch
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import (
    Qwen3OmniMoeAudioEncoder,
    Qwen3OmniMoeVisionEncoder,
)

from omnizmq.workers.engines.hf.checkpoint import Checkpoint
from omnizmq.workers.engines.hf.weights import make_model, mapped
from omnizmq.workers.engines.qwen3_omni.hearing import Features
from omnizmq.workers.engines.qwen3_omni.memory import AUDIO_TENSORS, VISION_TENSORS
from omnizmq.workers.engines.qwen3_omni.seeing import Patches


class Encoders:
    """`audio` and `vision`: the library's modules, which compute in `dtype`. Callers are in inference mode."""

    def __init__(self, audio: Any, vision: Any, dtype: torch.dtype, device: torch.device) -> None:
        self._audio = audio
        self._vision = vision
        self._merged: int = vision.spatial_merge_size
        self._dtype = dtype
        self._device = device

    def hear(self, sounds: Features) -> torch.Tensor:
        """`[tokens, hidden]`: of all sounds, one after the other."""
        frames = torch.tensor(sounds.frames, device=self._device)
        heard: torch.Tensor = self._audio(
            sounds.values.to(self._device, self._dtype), feature_lens=frames, return_dict=True
        ).last_hidden_state
        return heard.to(self._dtype)

    def see(self, patches: Patches) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """`[tokens, hidden]` of all images, one after the other; and as much to add after each of the first layers."""
        grids = [(1, rows * self._merged, columns * self._merged) for rows, columns in patches.grids]
        seen = self._vision(
            patches.values.to(self._device, self._dtype),
            grid_thw=torch.tensor(grids, device=self._device),
            return_dict=True,
        )
        return seen.pooler_output.to(self._dtype), seen.deepstack_features


def load(checkpoint: Checkpoint, config: Any, dtype: torch.dtype, device: torch.device) -> Encoders:
    """Those of a checkpoint alone, without its language model. `config`: the Thinker's. Raises `LaunchError`."""
    kinds = (
        (Qwen3OmniMoeAudioEncoder, config.audio_config, AUDIO_TENSORS),
        (Qwen3OmniMoeVisionEncoder, config.vision_config, VISION_TENSORS),
    )
    audio, vision = (make_model(kind, own, _tensors(checkpoint, at), dtype, None).to(device) for kind, own, at in kinds)
    return Encoders(audio, vision, dtype, device)


def _tensors(checkpoint: Checkpoint, prefix: str) -> dict[str, torch.Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in mapped(checkpoint.find([prefix])).items()}
