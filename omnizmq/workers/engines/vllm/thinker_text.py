"""The language model of Qwen3-Omni's Thinker, without its encoders, as a model that vLLM loads.

Of a prompt that is text alone the Talker needs token ids and nothing else (`qwen3_omni.rows`), so an engine that gives
no hidden states can serve as the Thinker. Its layers are those of Qwen3-MoE (vLLM's class), and positions on three axes
that are all the same are ordinary ones.

vLLM takes models from outside by its `ModelRegistry`, which a plugin fills in each of its processes: entry point
`vllm.general_plugins` (https://docs.vllm.ai/en/latest/contributing/model/registration.html).
"""

from __future__ import annotations

from typing import Any

ARCHITECTURE = "OmnizmqThinkerText"


def register() -> None:
    """Called by vLLM in each of its processes."""
    from vllm import ModelRegistry

    ModelRegistry.register_model(ARCHITECTURE, "omnizmq.workers.engines.vllm.thinker_model:ThinkerText")


def text_config(config: Any) -> Any:
    """Of a Qwen3-Omni's configuration: its language model's, as that of an ordinary text model."""
    if not hasattr(config, "thinker_config"):
        return config  # vLLM asks about an empty one first
    text = config.thinker_config.text_config
    text.rope_parameters = {key: value for key, value in text.rope_parameters.items() if not key.startswith("mrope")}
    text.tie_word_embeddings = False
    text.architectures = [ARCHITECTURE]
    return text
