"""CSM's backbone and depth decoder: a text's tokens in, codec frames out, for several requests at once.

It follows `CsmForConditionalGeneration.generate` of transformers 5.24.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import CsmForConditionalGeneration, DynamicCache

from omnizmq.workers.engines.hf.sampling import Sampler, choose, finite
from omnizmq.workers.engines.hf.slots import Slots
from omnizmq.workers.engines.hf.stage import Stage
from omnizmq.workers.engines.hf.weights import make_model

_TENSORS = ("backbone_model.", "depth_decoder.", "embed_text_tokens.", "lm_head.")


class _WithoutCodec(CsmForConditionalGeneration):  # type: ignore[misc]
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        del self.codec_model


class TalkerModel:
    """Slots are the caller's to take and give back. To be called in `torch.inference_mode`."""

    def __init__(self, stage: Stage) -> None:
        config, dtype = stage.config, stage.dtype()
        self._model: Any = make_model(_WithoutCodec, config, stage.tensors(_TENSORS), dtype, stage.device)
        self._device = stage.device
        self.slots = Slots(
            config, stage.slots, min(stage.slot_tokens, config.max_position_embeddings), dtype, self._device
        )
        self.end: int = config.codebook_eos_token_id
        # Ids above the codec's codebook are no sound.
        self.suppressed = torch.arange(config.vocab_size, device=self._device) >= config.codec_config.codebook_size

    def prefill(self, slot: int, ids: Sequence[int]) -> torch.Tensor:
        """A whole text into a slot -> `[1, hidden]`, of its last position."""
        return self._forward(self._model.embed_text_tokens(torch.tensor([ids], device=self._device)), [slot], [0])

    def advance(self, slots: Sequence[int], starts: Sequence[int], frames: Sequence[Sequence[int]]) -> torch.Tensor:
        """The last frame of several requests; slot `slots[n]` holds `starts[n]`. `[rows, hidden]`."""
        codes = torch.tensor(frames, device=self._device)[:, None]
        return self._forward(self._model.backbone_model.embed_tokens(codes), slots, starts)

    def frames(self, hidden: torch.Tensor, samplers: Sequence[Sampler]) -> list[list[int] | None]:
        """The frame that follows each row: codes of all groups, each chosen in the light of those before it; None where
        logits were not finite."""
        depth = self._model.depth_decoder
        logits = self._model.lm_head(hidden)
        fine, codes = finite(logits), [choose(logits, samplers)]
        cache = DynamicCache(config=depth.config)
        inputs = torch.stack((hidden, depth.model.embed_tokens(codes[0])), dim=1)
        for group, head in enumerate(depth.codebooks_head.weight, start=1):
            made = depth.model(inputs_embeds=inputs, cache=cache, use_cache=True).last_hidden_state[:, -1]
            logits = made @ head
            fine &= finite(logits)
            codes.append(choose(logits, samplers))
            inputs = depth.model.embed_tokens(codes[-1] + group * depth.vocab_size)[:, None]
        frames = torch.stack((*codes, fine.to(codes[0].dtype)), dim=1).tolist()
        return [codes if good else None for *codes, good in frames]

    def _forward(self, inputs: torch.Tensor, slots: Sequence[int], starts: Sequence[int]) -> torch.Tensor:
        rows = self.slots.rows(slots, starts, inputs.shape[1])
        made = self._model.backbone_model(
            inputs_embeds=inputs, attention_mask=rows.mask, position_ids=rows.positions[0], cache=rows
        )
        hidden: torch.Tensor = made.last_hidden_state[:, -1]
        return hidden
