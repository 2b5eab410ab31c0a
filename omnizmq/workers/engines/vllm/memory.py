"""What a stage on vLLM needs of memory, from headers and `config.json` alone: no vLLM.

On a CPU: the weights, the cache of keys and values, and the process. On GPUs vLLM fills the share of them that it is
told (`gpu_memory_utilization`), whatever the model needs; the weights are the least of that. The encoders of
Qwen3-Omni's Thinker compute beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omnizmq.errors import ConfigError
from omnizmq.workers.engines import qwen3_omni
from omnizmq.workers.engines.hf.checkpoint import Checkpoint
from omnizmq.workers.engines.hf.memory import number
from omnizmq.workers.engines.qwen3_omni.memory import AUDIO_TENSORS, VISION_TENSORS, beside
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
_HALF = 2  # where the checkpoint says the dtype
_LONGEST = ("thinker_config", "text_config", "max_position_embeddings")
_DTYPES = {"float32": 4, "float": 4, "bfloat16": 2, "float16": 2, "half": 2}


def estimate(asked: MemoryAsked, checkpoint: Checkpoint, processes: int) -> MemoryNeed:
    """`processes` compute it. Raises `ConfigError`, and `LaunchError` for a damaged checkpoint."""
    alive = processes if processes == 1 else processes + 1  # the worker's own computes nothing then
    cache: Any = asked.options.get("kv_cache_memory_bytes")
    slots = cache if isinstance(cache, int) else CPU_CACHE_BYTES if asked.on_cpu else 0
    dtype = str(asked.options.get("dtype", "auto"))
    with_items = takes_items(asked.stage, checkpoint, asked.options)
    encoding, prepared = _encoding(checkpoint, asked.options, dtype) if with_items else (0, 0)
    return MemoryNeed(
        weights=weights(checkpoint, dtype, with_items=with_items),
        slots=slots * processes,
        workspace=encoding,
        process=(_PROCESS_BYTES if asked.on_cpu else _CUDA_PROCESS_BYTES) * alive + prepared,
        notes=() if asked.on_cpu or slots else (_filled(asked),),
    )


def is_thinker(checkpoint: Checkpoint) -> bool:
    return bool(checkpoint.config.get("model_type") == qwen3_omni.MODEL.model_type)


def takes_items(stage: str, checkpoint: Checkpoint, options: Mapping[str, Any]) -> bool:
    """Whether prompts may have sounds and images: of a Thinker, unless it is told otherwise. Raises `ConfigError`."""
    if not is_thinker(checkpoint) or options.get("language_model_only"):
        return False
    if options.get("pipeline_parallel_size", 1) != 1:
        raise ConfigError(
            f"stage.{stage}.options.pipeline_parallel_size cannot be set for a Thinker that takes sounds and images: "
            "use tensor_parallel_size, or language_model_only = true for text alone"
        )
    return True


def weights(checkpoint: Checkpoint, dtype: str, *, with_items: bool) -> int:
    """Bytes of what is loaded. `dtype` is that of floating-point tensors; quantised ones stay as they are."""
    of_encoders = (AUDIO_TENSORS, VISION_TENSORS) if with_items else ()
    found = checkpoint.find((*OF_THINKER_TEXT, *of_encoders) if is_thinker(checkpoint) else ("",)).values()
    size = _DTYPES.get(dtype)
    return sum(
        entry.nbytes if size is None or entry.dtype not in _FLOATS else entry.nbytes // _FLOATS[entry.dtype] * size
        for entry in found
    )


def _encoding(checkpoint: Checkpoint, options: Mapping[str, Any], dtype: str) -> tuple[int, int]:
    """What the encoders compute in, and what prompts are prepared in."""
    given = options.get("max_model_len")
    tokens = given if isinstance(given, int) and given > 0 else number(checkpoint.config, *_LONGEST)
    return beside(checkpoint, tokens, _DTYPES.get(dtype, _HALF))


def _filled(asked: MemoryAsked) -> str:
    share = asked.options.get("gpu_memory_utilization", GPU_SHARE)
    return f"stage {asked.stage}: vLLM fills {share} of each of its GPUs (gpu_memory_utilization), with or without need"
