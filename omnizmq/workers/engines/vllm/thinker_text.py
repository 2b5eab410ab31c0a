"""The language model of Qwen3-Omni's Thinker, without its encoders, as a model that vLLM loads.

Its layers are those of Qwen3-MoE (vLLM's class). Sounds and images reach it as rows (`items`); of a prompt that is text
alone the Talker needs token ids and nothing else (`qwen3_omni.rows`).

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


def text_config(config: Any, *, items: bool, accepted_layer: int | None) -> Any:
    """Of a Qwen3-Omni's configuration: its language model's, as that of an ordinary text model. `items`: it may get
    sounds and images, which stand on three axes of positions; `accepted_layer`: which hidden states of theirs are kept
    (`qwen3_omni.rows`)."""
    if not hasattr(config, "thinker_config"):
        return config  # vLLM asks about an empty one first
    thinker = config.thinker_config
    text = thinker.text_config
    if not items:  # Positions that are the same on all axes are ordinary ones.
        text.rope_parameters = {key: text.rope_parameters[key] for key in text.rope_parameters if key[:5] != "mrope"}
    text.tie_word_embeddings = False
    text.architectures = [ARCHITECTURE]
    text.layers_of_images = len(thinker.vision_config.deepstack_visual_indexes) if items else 0
    text.accepted_layer = accepted_layer if items else None
    return text
