"""What all stages have in common: their options, the checkpoint, device and dtype."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

import torch
import transformers
from transformers import AutoConfig

from omnizmq.errors import ConfigError
from omnizmq.workers.engine import EngineContext
from omnizmq.workers.engines.hf.checkpoint import Checkpoint
from omnizmq.workers.engines.hf.options import SLOT_TOKENS, held_slots
from omnizmq.workers.engines.hf.weights import check_experts, mapped


class Stage:
    """A stage about to be loaded. Raises `ConfigError`, `LaunchError`."""

    def __init__(self, context: EngineContext, options: Mapping[str, Any], checkpoint: Checkpoint) -> None:
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        torch.set_num_threads(options.get("threads", 1))
        torch.backends.cudnn.conv.fp32_precision = "ieee"  # a wave in float32 is meant: TF32 has 10 bits of it
        self.name = context.stage
        self.options = options
        self.device = _device(context)
        self.checkpoint = checkpoint
        self.config = AutoConfig.from_pretrained(self.checkpoint.path)
        self.slots = held_slots(options, context.max_inflight)
        self.slot_tokens: int = options.get("slot_tokens", SLOT_TOKENS)

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
    if not context.device:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        looked = f"finds none by CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES')}"
        why = "is built without CUDA" if torch.version.cuda is None else looked
        raise ConfigError(f"stage.{context.stage}.devices: no GPU can be used: torch {torch.__version__} {why}")
    return torch.device(context.device[0])
