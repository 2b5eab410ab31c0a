"""The class that vLLM loads for the Thinker of Qwen3-Omni (`thinker_text`)."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from vllm.model_executor.models.qwen3_moe import Qwen3MoeForCausalLM

from omnizmq.workers.engines.vllm.memory import OF_THINKER_TEXT


class ThinkerText(Qwen3MoeForCausalLM):  # type: ignore[misc]
    """`thinker.model` and `thinker.lm_head` of a checkpoint."""

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        own = ((name.removeprefix("thinker."), tensor) for name, tensor in weights if name.startswith(OF_THINKER_TEXT))
        loaded: set[str] = super().load_weights(own)
        return loaded
