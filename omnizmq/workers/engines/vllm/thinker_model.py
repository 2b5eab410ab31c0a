"""The class that vLLM loads for the Thinker of Qwen3-Omni (`thinker_text`): its language model.

Sounds and images come as rows that the encoders have made beside vLLM (`items`), so nothing is encoded here. What is
vLLM's own is used as its classes for such models use it; a layer's hidden states are kept as for its drafts of EAGLE-3.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from vllm.compilation.decorators import support_torch_compile
from vllm.config import VllmConfig
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.models.interfaces import SupportsMRoPE, SupportsMultiModal
from vllm.model_executor.models.qwen3_moe import Qwen3MoeDecoderLayer, Qwen3MoeForCausalLM, Qwen3MoeModel
from vllm.model_executor.models.utils import extract_layer_index, maybe_prefix
from vllm.multimodal import MULTIMODAL_REGISTRY
from vllm.multimodal.inputs import MultiModalFeatureSpec

from omnizmq.workers.engines.qwen3_omni import axes
from omnizmq.workers.engines.vllm.memory import OF_THINKER_TEXT
from omnizmq.workers.engines.vllm.named_rows import split
from omnizmq.workers.engines.vllm.thinker_processor import DummyItems, ItemsInfo, ItemsProcessor


class _Layer(Qwen3MoeDecoderLayer):  # type: ignore[misc]
    """After the layer before it, something is added at images. What that layer makes is what a Talker may want, so it
    is added here, and not there."""

    def __init__(self, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        config = vllm_config.model_config.hf_text_config
        self.adds = 1 <= extract_layer_index(prefix) <= config.layers_of_images
        if self.adds:  # In one place for good: graphs are captured with it.
            most = vllm_config.scheduler_config.max_num_batched_tokens
            self.register_buffer("added", torch.zeros(most, config.hidden_size), persistent=False)

    def forward(
        self, positions: torch.Tensor, hidden_states: torch.Tensor, residual: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if self.adds:
            hidden_states = hidden_states + self.added[: hidden_states.shape[0]]
        made: tuple[torch.Tensor, torch.Tensor] = super().forward(positions, hidden_states, residual)
        return made


@support_torch_compile(
    dynamic_arg_dims={"input_ids": 0, "positions": -1, "intermediate_tensors": 0, "inputs_embeds": 0}
)
class _Layers(Qwen3MoeModel):  # type: ignore[misc]
    """Positions may be on three axes, `[3, tokens]`, which the compiler is told."""

    def forward(
        self,
        input_ids: torch.Tensor | None,
        positions: torch.Tensor,
        intermediate_tensors: Any = None,
        inputs_embeds: torch.Tensor | None = None,
    ) -> Any:
        return super().forward(input_ids, positions, intermediate_tensors, inputs_embeds)


@MULTIMODAL_REGISTRY.register_processor(ItemsProcessor, info=ItemsInfo, dummy_inputs=DummyItems)
class ThinkerText(Qwen3MoeForCausalLM, SupportsMultiModal, SupportsMRoPE):  # type: ignore[misc]
    """`thinker.model` and `thinker.lm_head` of a checkpoint."""

    packed_modules_mapping = {
        "qkv_proj": ["q_proj", "k_proj", "v_proj"],
        "gate_up_proj": ["gate_proj", "up_proj"],
    }

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super(Qwen3MoeForCausalLM, self).__init__()
        config, self.quant_config = vllm_config.model_config.hf_text_config, vllm_config.quant_config
        self.config = config
        self.model = _Layers(vllm_config=vllm_config, prefix=maybe_prefix(prefix, "model"), decoder_layer_type=_Layer)
        self.lm_head = ParallelLMHead(
            config.vocab_size,
            config.hidden_size,
            quant_config=self.quant_config,
            prefix=maybe_prefix(prefix, "lm_head"),
        )
        self.logits_processor = LogitsProcessor(config.vocab_size)
        self.make_empty_intermediate_tensors = self.model.make_empty_intermediate_tensors
        self._keeps = config.accepted_layer is not None
        if self._keeps:
            super().set_aux_hidden_state_layers((config.accepted_layer,))
        self._added = [layer.added for layer in self.model.layers if getattr(layer, "adds", False)]
        self._adds = False  # in the step at hand
        self._items: tuple[torch.Tensor, torch.Tensor] | None = None  # their names, and where they are in the step
        self._kept: tuple[torch.Tensor, torch.Tensor] | None = None

    # --- Sounds and images -----------------------------------------------------------------------------------------

    @classmethod
    def get_placeholder_str(cls, modality: str, i: int) -> str | None:  # noqa: ARG003
        raise ValueError(f"prompts come as tokens, not as messages: there is no text for a {modality}")

    def get_language_model(self) -> ThinkerText:
        return self

    def embed_multimodal(self, **kwargs: Any) -> tuple[torch.Tensor, ...]:
        """Of each item its rows, as they came."""
        return tuple(kwargs["rows"])

    def embed_input_ids(
        self,
        input_ids: torch.Tensor,
        multimodal_embeddings: Sequence[torch.Tensor] | None = None,
        *,
        is_multimodal: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Of one step, before it is computed. `multimodal_embeddings`: the rows of all items, or pieces of them, that
        are in it; `is_multimodal` bool `[tokens]`: where they are."""
        inputs: torch.Tensor = self.model.embed_input_ids(input_ids)
        if self._adds:
            for added in self._added:
                added.zero_()
        self._adds, self._items = False, None
        if not multimodal_embeddings:
            return inputs
        assert is_multimodal is not None
        at = is_multimodal.nonzero().flatten().to(inputs.device)
        names = []
        for item, where in zip(multimodal_embeddings, at.split([*map(len, multimodal_embeddings)]), strict=True):
            name, inputs[where], layers = split(item, inputs.shape[1])
            names.append(name)
            for added, rows in zip(self._added, layers, strict=False):  # a sound has none
                added[where] = rows
                self._adds = True
        self._items = torch.cat(names), at
        return inputs

    def get_mrope_input_positions(
        self, input_tokens: list[int], mm_features: list[MultiModalFeatureSpec]
    ) -> tuple[torch.Tensor, int]:
        """`[3, tokens]`, and by how much what follows is shifted."""
        images = [
            axes.Placed(feature.mm_position.offset, *feature.data["grid"].data.tolist())
            for feature in mm_features
            if feature.modality == "image"
        ]
        return torch.from_numpy(axes.positions(len(input_tokens), images)), axes.shift(images)

    # --- Computing -------------------------------------------------------------------------------------------------

    def forward(
        self,
        input_ids: torch.Tensor | None,
        positions: torch.Tensor,
        intermediate_tensors: Any = None,
        inputs_embeds: torch.Tensor | None = None,
        **_: Any,
    ) -> Any:
        made = self.model(input_ids, positions, intermediate_tensors, inputs_embeds)
        if not self._keeps:
            return made
        hidden, (accepted,) = made
        if self._items is not None:
            names, at = self._items
            self._kept = names, accepted[at]
        return hidden

    def set_aux_hidden_state_layers(self, layers: tuple[int, ...]) -> None:
        """Asked for by what drafts answers from hidden states."""
        if self._keeps:
            raise ValueError("hidden states are kept for the Talker: a draft model that wants others cannot be used")
        super().set_aux_hidden_state_layers(layers)

    def take_kept(self) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Of the items in the last step that had any: their names `[n, 2]` and their hidden states `[n, hidden]`."""
        kept, self._kept = self._kept, None
        return kept

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        own = ((name.removeprefix("thinker."), tensor) for name, tensor in weights if name.startswith(OF_THINKER_TEXT))
        loaded: set[str] = super().load_weights(own)
        return loaded
