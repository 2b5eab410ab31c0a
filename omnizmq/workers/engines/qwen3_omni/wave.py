"""The Code2Wav's network as a decoder in two parts.

It is causal in frames but for its last samples: a transposed convolution looks one input ahead, so that F frames make
`samples_per_position` x F samples less a fixed tail. Attention looks back over a window, whose keys and values are
kept.
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

from omnizmq.workers.engines.hf.stage import Stage
from omnizmq.workers.engines.hf.weights import make_model


class WaveModel:
    """A `Vocoder` (see `hf.wave`), of one position a frame. In float32: bfloat16 was 16 % off on a tiny one."""

    def __init__(self, stage: Stage) -> None:
        config = stage.config.code2wav_config
        tensors = stage.tensors(["code2wav."], strip="code2wav.")
        self.network: Any = make_model(Qwen3OmniMoeCode2Wav, config, tensors, torch.float32, stage.device)
        self.device = stage.device
        self.groups: int = config.num_quantizers
        self.codebook: int = config.codebook_size
        self.sample_rate = 24_000
        self.samples_per_position = int(self.network.total_upsample)
        self.context = _context(self.network)

    def begin(self) -> DynamicCache:
        return DynamicCache(config=self.network.config)

    def hidden(self, codes: torch.Tensor, state: DynamicCache) -> torch.Tensor:
        network = self.network
        embedded = network.code_embedding(codes.to(self.device) + network.code_offset).mean(1)
        made = network.pre_transformer(inputs_embeds=embedded, cache=state, use_cache=True)
        hidden: torch.Tensor = made.last_hidden_state.mT
        return hidden

    def wave(self, hidden: torch.Tensor) -> NDArray[np.float32]:
        for block in (*(block for pair in self.network.upsample for block in pair), *self.network.decoder):
            hidden = block(hidden)
        samples: NDArray[np.float32] = hidden.clamp(-1, 1)[0, 0].cpu().numpy()
        return samples


def _tail(network: Any) -> int:
    """Samples that the last frame lacks: each transposed convolution cuts kernel - stride on both sides."""
    tail = 0
    for module in _convolutions(network):
        if isinstance(module, Qwen3OmniMoeCausalTransConvNet):
            tail = tail * module.conv.stride[0] + module.right_pad
    return tail


def _context(network: Any) -> int:
    """Frames of the past that the convolutions see from the sample before which the last decode ended."""
    past = _tail(network)
    for module in reversed(_convolutions(network)):
        if isinstance(module, Qwen3OmniMoeCausalTransConvNet):
            past = -(-past // module.conv.stride[0])
        else:
            past += module.padding
    return past


def _convolutions(network: Any) -> list[Any]:
    kinds = (Qwen3OmniMoeCausalConvNet, Qwen3OmniMoeCausalTransConvNet)
    return [m for part in (network.upsample, network.decoder) for m in part.modules() if isinstance(m, kinds)]
