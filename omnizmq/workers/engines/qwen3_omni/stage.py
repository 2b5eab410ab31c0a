"""What all stages have in common: their options, the checkpoint, device and dtype."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
import transformers
from transformers import AutoConfig

from omnizmq.errors import ConfigError
from omnizmq.workers.engine import EngineContext
from omnizmq.workers.engines.qwen3_omni.checkpoint import Checkpoint
from omnizmq.workers.engines.qwen3_omni.weights import check_experts, mapped


class Stage:
    """A stage about to be loaded. Raises `ConfigError`, `LaunchError`."""

    def __init__(self, context: EngineContext, options: Mapping[str, Any], checkpoint: Checkpoint) -> None:
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        torch.set_num_threads(options.get("threads", 1))
        self.name = context.stage
        self.options = options
        self.device = _device(context)
        self.checkpoint = checkpoint
        self.config = AutoConfig.from_pretrained(self.checkpoint.path)
        self.slots = min(options.get("slots", context.max_inflight), context.max_inflight)
        self.slot_tokens: int = options.get("slot_tokens", 4096)

    def dtype(self) -> torch.dtype:
        """The option's, or the checkpoint's own."""
        named = self.options.get("dtype")
        dtype: torch.dtype = getattr(torch, named) if named else self.config.dtype or torch.float32
        return dtype

    def tensors(self, prefixes: Iterable[str], strip: str = "", experts: int = 0) -> dict[str, torch.Tensor]:
        """The stage's own, mapped, under their names without `strip`; `experts`: of each layer that has any."""
        found = self.checkpoint.find(prefixes)
        check_experts(found, experts)
        return {name.removeprefix(strip): tensor for name, tensor in mapped(found).items()}


def _device(context: EngineContext) -> torch.device:
    if len(context.device) > 1:
        raise ConfigError(f"stage.{context.stage}.devices: this engine uses one device a replica")
    try:
        return torch.device(context.device[0] if context.device else "cpu")
    except RuntimeError:
        raise ConfigError(f'stage.{context.stage}.devices: "{context.device[0]}" is no device of torch') from None
