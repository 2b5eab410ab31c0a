"""Codec frames to samples, in increments.

The network is causal in frames but for its last samples: a transposed convolution looks one input ahead, so that F
frames make `samples_per_frame` x F samples less a fixed `tail`. Attention looks back over a window, whose keys and
values are kept; the convolutions look back over a few frames, whose hidden states are kept and go through them again
with the next chunk.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import DynamicCache
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import (
    Qwen3OmniMoeCausalConvNet,
    Qwen3OmniMoeCausalTransConvNet,
    Qwen3OmniMoeCode2Wav,
)

from omnizmq.workers.engines.qwen3_omni.stage import Stage
from omnizmq.workers.engines.qwen3_omni.weights import make_model

SAMPLE_RATE = 24_000


class WaveModel:
    """The network, and what follows from its shape. In float32: in bfloat16 a tiny model's wave was 16 % off."""

    def __init__(self, stage: Stage) -> None:
        config = stage.config.code2wav_config
        tensors = stage.tensors(["code2wav."], strip="code2wav.")
        self.network: Any = make_model(Qwen3OmniMoeCode2Wav, config, tensors, torch.float32, stage.device)
        self.device = stage.device
        self.groups: int = config.num_quantizers
        self.codebook: int = config.codebook_size
        self.samples_per_frame = int(self.network.total_upsample)
        self.tail = _tail(self.network)
        self.context = _context(self.network, self.tail)

    def hidden(self, codes: torch.Tensor, cache: DynamicCache) -> torch.Tensor:
        """Codes `[1, groups, n]` that follow those in the cache -> `[1, hidden, n]`."""
        network = self.network
        embedded = network.code_embedding(codes.to(self.device) + network.code_offset).mean(1)
        made = network.pre_transformer(inputs_embeds=embedded, cache=cache, use_cache=True)
        hidden: torch.Tensor = made.last_hidden_state.mT
        return hidden

    def wave(self, hidden: torch.Tensor) -> NDArray[np.float32]:
        """`[1, hidden, n]` -> float32 `[samples_per_frame x n - tail]`."""
        for block in (*(block for pair in self.network.upsample for block in pair), *self.network.decoder):
            hidden = block(hidden)
        samples: NDArray[np.float32] = hidden.clamp(-1, 1)[0, 0].cpu().numpy()
        return samples


class WaveStream:
    """The sound of one request. `frames` that came, `samples` that were made of them."""

    def __init__(self, model: WaveModel) -> None:
        self._model = model
        self._cache = DynamicCache(config=model.network.config)
        self._hidden: torch.Tensor | None = None  # of the last frames, at most `context`
        self.frames = 0
        self.samples = 0

    def push(self, codes: torch.Tensor) -> NDArray[np.float32]:
        """int64 `[1, groups, n]` -> the samples that they complete."""
        with torch.inference_mode():
            return self._push(codes)

    def _push(self, codes: torch.Tensor) -> NDArray[np.float32]:
        model = self._model
        hidden = model.hidden(codes, self._cache)
        self.frames += hidden.shape[2]
        if self._hidden is not None:
            hidden = torch.cat((self._hidden, hidden), dim=2)
        first = (self.frames - hidden.shape[2]) * model.samples_per_frame
        made = model.wave(hidden)[self.samples - first :]
        self._hidden = hidden[:, :, -model.context :]
        self.samples += made.size
        return made


def _tail(network: Any) -> int:
    """Samples that the last frame lacks: each transposed convolution cuts kernel - stride on both sides."""
    tail = 0
    for module in _convolutions(network):
        if isinstance(module, Qwen3OmniMoeCausalTransConvNet):
            tail = tail * module.conv.stride[0] + module.right_pad
    return tail


def _context(network: Any, tail: int) -> int:
    """Frames of the past that the convolutions see from the sample before which the last decode ended."""
    past = tail
    for module in reversed(_convolutions(network)):
        if isinstance(module, Qwen3OmniMoeCausalTransConvNet):
            past = -(-past // module.conv.stride[0])
        else:
            past += module.padding
    return past


def _convolutions(network: Any) -> list[Any]:
    kinds = (Qwen3OmniMoeCausalConvNet, Qwen3OmniMoeCausalTransConvNet)
    return [m for part in (network.upsample, network.decoder) for m in part.modules() if isinstance(m, kinds)]
