"""The Thinker of Qwen3-Omni in vLLM: its language model there, its encoders beside it in this process."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoConfig

from omnizmq.workers.engine import EngineContext
from omnizmq.workers.engines.hf.checkpoint import Checkpoint
from omnizmq.workers.engines.qwen3_omni import encoders
from omnizmq.workers.engines.qwen3_omni.prompt import Prompts
from omnizmq.workers.engines.qwen3_omni.rows import accepted_layer
from omnizmq.workers.engines.vllm import thinker_text
from omnizmq.workers.engines.vllm.items import Items, Kept
from omnizmq.workers.engines.vllm.thinker_processor import KINDS

if TYPE_CHECKING:
    from vllm.v1.engine.llm_engine import LLMEngine


def arguments(checkpoint: Checkpoint, *, with_items: bool, for_talker: bool) -> dict[str, Any]:
    """Of vLLM's engine. `with_items`: it takes sounds and images. Raises `LaunchError`."""
    accepted = None
    if with_items and for_talker:
        accepted = accepted_layer(AutoConfig.from_pretrained(checkpoint.path), checkpoint)
    made: dict[str, Any] = {
        "hf_overrides": partial(thinker_text.text_config, items=with_items, accepted_layer=accepted)
    }
    if with_items:  # They come ready: vLLM encodes none, and has no copies of files to keep.
        made |= {"enable_mm_embeds": True, "limit_mm_per_prompt": dict.fromkeys(KINDS, 0), "mm_processor_cache_gb": 0}
    if accepted is not None:
        made["worker_extension_cls"] = "omnizmq.workers.engines.vllm.thinker_worker.KeptRows"
    return made


def encoding(context: EngineContext, checkpoint: Checkpoint, engine: LLMEngine) -> tuple[Prompts, Items]:
    """Prompts with sounds and images, and what becomes of those. Raises `LaunchError`."""
    config = AutoConfig.from_pretrained(checkpoint.path).thinker_config
    device = torch.device(context.device[0] if context.device else "cpu")
    made = encoders.load(checkpoint, config, engine.model_config.dtype, device)

    def take() -> Kept | None:
        kept: list[Kept | None] = engine.collective_rpc("take_kept_rows")
        return kept[0]

    items = Items(made, config.audio_token_id, take if context.targets else None)
    return Prompts(checkpoint, config, engine.model_config.max_model_len - 1), items
