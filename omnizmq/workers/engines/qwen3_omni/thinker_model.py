"""The Thinker's network: its cache, its encoders of sound and images, and what a Talker wants of its hidden states.

It follows `Qwen3OmniMoeThinkerForConditionalGeneration` of transformers 5.24, for several requests at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from transformers import Qwen3OmniMoeThinkerForConditionalGeneration

from omnizmq.workers.engines.hf.slots import Rows, Slots
from omnizmq.workers.engines.hf.stage import Stage
from omnizmq.workers.engines.hf.weights import make_model
from omnizmq.workers.engines.qwen3_omni import axes
from omnizmq.workers.engines.qwen3_omni.encoders import Encoders
from omnizmq.workers.engines.qwen3_omni.prompt import Asked
from omnizmq.workers.engines.qwen3_omni.rows import accepted_layer


class ThinkerModel:
    """The network and its cache. Slots are the caller's to take and give back."""

    def __init__(self, stage: Stage, *, for_talker: bool) -> None:
        """`for_talker`: a Talker follows, which wants hidden states of sounds and images. A checkpoint may have
        none."""
        config = stage.config.thinker_config
        dtype = stage.dtype()
        tensors = stage.tensors(["thinker."], experts=config.text_config.num_experts)
        kind = Qwen3OmniMoeThinkerForConditionalGeneration
        self._model: Any = make_model(kind, config, tensors, dtype, stage.device)
        self.slots = Slots(config.text_config, stage.slots, stage.slot_tokens, dtype, stage.device)
        self._device = stage.device
        self._encoders = Encoders(self._model.model.audio_tower, self._model.model.visual, dtype, stage.device)
        self._audio: int = config.audio_token_id
        self._image: int = config.image_token_id
        self._accepted: int | None = accepted_layer(stage.config, stage.checkpoint) if for_talker else None

    def prefill(self, slot: int, asked: Asked) -> tuple[torch.Tensor, torch.Tensor | None]:
        """A whole prompt into a slot. Logits `[1, vocabulary]` of what follows it; for a Talker that follows, what the
        accepted hidden layer makes of the positions of sound and images, `[positions, hidden]`, where there are any."""
        rows = self.slots.rows([slot], [0], len(asked.ids))
        with torch.inference_mode():
            inputs = self._embed([asked.ids])
            if not asked.has_items:
                return self._forward(inputs, rows, rows.positions), None
            ids = torch.tensor(asked.ids, device=self._device)
            heard, seen = ids == self._audio, ids == self._image
            if asked.sounds is not None:
                inputs[0, heard] = self._encoders.hear(asked.sounds)
            added: list[torch.Tensor] = []
            if asked.patches is not None:
                inputs[0, seen], added = self._encoders.see(asked.patches)
            positions = torch.from_numpy(axes.positions(len(ids), asked.images)).to(self._device)[:, None]
            with self._keeping_hidden() as kept:
                logits = self._forward(inputs, rows, positions, seen, added)
            return logits, kept[0][0, heard | seen] if kept else None

    def decode(
        self, slots: Sequence[int], starts: Sequence[int], shifts: Sequence[int], tokens: Sequence[int]
    ) -> torch.Tensor:
        """The next token of several requests; slot `slots[n]` holds `starts[n]`, after images that shift positions by
        `shifts[n]` (`axes.shift`). Logits `[rows, vocabulary]`."""
        rows = self.slots.rows(slots, starts, 1)
        with torch.inference_mode():
            return self._forward(self._embed([[token] for token in tokens]), rows, rows.shifted(shifts))

    def _embed(self, ids: Sequence[Sequence[int]]) -> torch.Tensor:
        embedded: torch.Tensor = self._model.model.language_model.embed_tokens(torch.tensor(ids, device=self._device))
        return embedded

    def _forward(
        self,
        inputs: torch.Tensor,
        rows: Rows,
        positions: torch.Tensor,
        seen: torch.Tensor | None = None,
        added: Sequence[torch.Tensor] = (),
    ) -> torch.Tensor:
        """`positions` `[3, rows, count]`; `seen` bool `[count]`: where the one row has images; `added` as
        `Encoders.see` makes it."""
        hidden = self._model.model.language_model(
            inputs_embeds=inputs,
            attention_mask=rows.mask,
            position_ids=positions,
            cache=rows,
            visual_pos_masks=None if seen is None else seen[None],
            deepstack_visual_embeds=added or None,
        ).last_hidden_state
        logits: torch.Tensor = self._model.lm_head(hidden[:, -1])
        return logits

    @contextmanager
    def _keeping_hidden(self) -> Iterator[list[torch.Tensor]]:
        """`hidden_states[accepted]`, as the library counts them: what the layer before makes, without what is added to
        it of images; 0 is what goes into the first."""
        kept: list[torch.Tensor] = []
        if self._accepted is None:
            yield kept
            return
        layers = self._model.model.language_model.layers
        if self._accepted:
            hook = layers[self._accepted - 1].register_forward_hook(lambda _, __, made: kept.append(made))
        else:
            hook = layers[0].register_forward_pre_hook(lambda _, inputs: kept.append(inputs[0]))
        try:
            yield kept
        finally:
            hook.remove()
