"""CSM's Code2Wav: Mimi's decoder, fed frame by frame, in float32. What a stage of this kind does is in
`hf.code2wav`.

Options: `threads` (1) on a CPU. No parameters; `seed` is accepted, so that one seed can be given to all stages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import DynamicCache, MimiModel
from transformers.models.mimi.modeling_mimi import MimiConv1d, MimiConvTranspose1d

from omnizmq.workers.engine import EngineContext
from omnizmq.workers.engines.hf.checkpoint import Checkpoint
from omnizmq.workers.engines.hf.code2wav import Code2Wav
from omnizmq.workers.engines.hf.stage import Stage
from omnizmq.workers.engines.hf.weights import make_model

_TENSORS = ("quantizer.", "upsample.", "decoder_transformer.", "decoder.")


def create_code2wav(context: EngineContext, options: Mapping[str, Any], checkpoint: Checkpoint) -> Code2Wav:
    """Raises `ConfigError`, `LaunchError`."""
    stage = Stage(context, options, checkpoint)
    context.progress("loading the code2wav")
    return Code2Wav(MimiVocoder(stage))


@dataclass
class MimiState:
    """`latent` `[1, hidden, 1]`: the last frame's, into which the upsampling looks back."""

    cache: DynamicCache
    latent: torch.Tensor | None = None


class MimiVocoder:
    """A `Vocoder` (see `hf.wave`), of two positions a frame in the real model. Nothing looks ahead, nothing is missing
    at the end."""

    def __init__(self, stage: Stage) -> None:
        config = stage.config.codec_config
        config.encoder_config = None
        tensors = stage.tensors([f"codec_model.{part}" for part in _TENSORS], strip="codec_model.")
        self.network: Any = make_model(MimiModel, config, tensors, torch.float32, stage.device)
        self.device = stage.device
        self.groups: int = stage.config.num_codebooks
        self.codebook: int = config.codebook_size
        self.sample_rate: int = config.sampling_rate
        self.samples_per_position = int(np.prod(config.upsampling_ratios))
        self.context = _context(self.network.decoder.decoder_seanet)

    def begin(self) -> MimiState:
        return MimiState(DynamicCache(config=self.network.decoder.config))

    def hidden(self, codes: torch.Tensor, state: MimiState) -> torch.Tensor:
        decoder = self.network.decoder
        latents = self.network.quantizer.decode(codes.to(self.device))
        begun = state.latent is not None
        before = latents if state.latent is None else torch.cat((state.latent, latents), dim=2)
        state.latent = latents[:, :, -1:]
        positions = decoder.upsample(before)
        if begun:
            positions = positions[:, :, positions.shape[2] // before.shape[2] :]
        made = decoder.decoder_transformer(positions.mT, cache=state.cache, use_cache=True)
        hidden: torch.Tensor = made.last_hidden_state.mT
        return hidden

    def wave(self, hidden: torch.Tensor) -> NDArray[np.float32]:
        samples: NDArray[np.float32] = self.network.decoder.decoder_seanet(hidden).clamp(-1, 1)[0, 0].cpu().numpy()
        return samples


def _context(seanet: Any) -> int:
    """Positions of the past that the convolutions see."""
    past = 0
    kinds = (MimiConv1d, MimiConvTranspose1d)
    for module in reversed([module for module in seanet.modules() if isinstance(module, kinds)]):
        if isinstance(module, MimiConvTranspose1d):
            stride, kernel = module.conv.stride[0], module.conv.kernel_size[0]
            past = -(-(past + kernel - stride) // stride)
        else:
            past += int(module.padding_total)
    return past
