"""The language model of Qwen3-Omni's Thinker, without its encoders, as a model that vLLM loads.

Of a prompt that is text alone the Talker needs token ids and nothing else (`qwen3_omni.rows`), so an engine that gives
no hidden states can serve as the Thinker. Its layers are those of Qwen3-MoE (vLLM's class), and positions on three axes
that are all the same are ordinary ones. `vllm.ModelRegistry` is how vLLM takes models from outside
(https://docs.vllm.ai/en/latest/contributing/model/registration.html).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from vllm.model_executor.models.qwen3_moe import Qwen3MoeForCausalLM

ARCHITECTURE = "OmnizmqQwen3OmniThinkerText"
_OWN = ("thinker.model.", "thinker.lm_head.")


class ThinkerText(Qwen3MoeForCausalLM):  # type: ignore[misc]
    """`thinker.model` and `thinker.lm_head` of a checkpoint."""

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        own = ((name.removeprefix("thinker."), tensor) for name, tensor in weights if name.startswith(_OWN))
        loaded: set[str] = super().load_weights(own)
        return loaded


def text_config(config: Any) -> Any:
    """Of a Qwen3-Omni's configuration: its language model's, as that of an ordinary text model."""
    if not hasattr(config, "thinker_config"):
        return config  # vLLM asks about an empty one first
    text = config.thinker_config.text_config
    text.rope_parameters = {key: value for key, value in text.rope_parameters.items() if not key.startswith("mrope")}
    text.tie_word_embeddings = False
    text.architectures = [ARCHITECTURE]
    return text
