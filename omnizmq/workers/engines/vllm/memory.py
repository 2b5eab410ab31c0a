"""What a stage on vLLM needs of memory, from headers and `config.json` alone: no vLLM.

On a CPU: the weights, the cache of keys and values, and the process. On GPUs vLLM fills the share of them that it is
told (`gpu_memory_utilization`), whatever the model needs; the weights are the least of that.
"""

from __future__ import annotations

from typing import Any

from omnizmq.workers.engines import qwen3_omni
from omnizmq.workers.engines.hf.checkpoint import Checkpoint
from omnizmq.workers.engines.vllm.options import CPU_CACHE_BYTES
from omnizmq.workers.memory import MemoryAsked, MemoryNeed

OF_THINKER_TEXT = ("thinker.model.", "thinker.lm_head.")
"""The tensors of Qwen3-Omni's Thinker that are its language model."""

GPU_SHARE = 0.92
"""Of a GPU, unless `gpu_memory_utilization` says it: the default of vLLM 0.32."""

_PROCESS_BYTES = 800 << 20
"""Python, torch and vLLM on a CPU, before a model. Measured."""

_CUDA_PROCESS_BYTES = 4 << 30
"""The same with CUDA's libraries. Not measured."""

_FLOATS = {"F32": 4, "F16": 2, "BF16": 2}
_DTYPES = {"float32": 4, "float": 4, "bfloat16": 2, "float16": 2, "half": 2}


def estimate(asked: MemoryAsked, checkpoint: Checkpoint) -> MemoryNeed:
    """Raises `LaunchError` for a damaged checkpoint."""
    cache: Any = asked.options.get("kv_cache_memory_bytes")
    slots = cache if isinstance(cache, int) else CPU_CACHE_BYTES if asked.on_cpu else 0
    return MemoryNeed(
        weights=weights(checkpoint, str(asked.options.get("dtype", "auto"))),
        slots=slots * max(1, len(asked.device)),
        process=_PROCESS_BYTES if asked.on_cpu else _CUDA_PROCESS_BYTES,
        notes=() if asked.on_cpu or slots else (_filled(asked),),
    )


def is_for_talker(checkpoint: Checkpoint) -> bool:
    return bool(checkpoint.config.get("model_type") == qwen3_omni.MODEL.model_type)


def weights(checkpoint: Checkpoint, dtype: str) -> int:
    """Bytes of what is loaded. `dtype` is that of floating-point tensors; quantised ones stay as they are."""
    found = checkpoint.find(OF_THINKER_TEXT if is_for_talker(checkpoint) else ("",)).values()
    size = _DTYPES.get(dtype)
    return sum(
        entry.nbytes if size is None or entry.dtype not in _FLOATS else entry.nbytes // _FLOATS[entry.dtype] * size
        for entry in found
    )


def _filled(asked: MemoryAsked) -> str:
    share = asked.options.get("gpu_memory_utilization", GPU_SHARE)
    return f"stage {asked.stage}: vLLM fills {share} of each of its GPUs (gpu_memory_utilization), with or without need"
