"""The options of a stage: our own, and vLLM's engine arguments by their names. Imports nothing of vLLM's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omnizmq.errors import ConfigError
from omnizmq.workers.engines.settings import check_given, whole

_OWN = {"threads": whole(1, 1024), "tensor_parallel_size": whole(1, 1024), "pipeline_parallel_size": whole(1, 1024)}

CPU_CACHE_BYTES = 1 << 30
"""Of keys and values, unless `kv_cache_memory_bytes` says it. vLLM itself would take nearly all of the machine's
memory, which other stages need, too."""

INSIDE = 2
"""Times `max_inflight`: so many requests are inside vLLM at most, those among them that may not go on."""

_ELSEWHERE = {
    "model": "the configuration's `model` says it",
    "tokenizer": "the checkpoint's own is used",
    "runner": "this engine makes text",
    "hf_overrides": "the engine says what a model needs",
    "served_model_name": "the deployment's `name` is what callers see",
    "disable_log_stats": "`omnizmq status` and the trace say what it would",
    "otlp_traces_endpoint": "`router.trace_otlp` says it",
    "distributed_executor_backend": "the stage's `devices` decide it",
    "scheduler_cls": "vLLM's own is used",
    "skip_tokenizer_init": "answers are text",
    "stream_interval": "each token goes on as it is made",
    "worker_cls": "the engine's own is used",
    "worker_extension_cls": "the engine's own is used",
}
"""Arguments that are not a stage's to give, and where what they say is said."""


def split(stage: str, options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Those that the engine reads itself, and vLLM's by name, which only vLLM can check. Raises `ConfigError`."""
    for name in options:
        instead = _ELSEWHERE.get(name)
        if name.startswith("data_parallel"):
            instead = "`replicas` says how many engines there are"
        if instead is not None:
            raise ConfigError(f"stage.{stage}.options.{name} cannot be set: {instead}")
    own = check_given(stage, {name: value for name, value in options.items() if name in _OWN}, _OWN)
    return own, {name: value for name, value in options.items() if name not in _OWN and value is not None}


def check_parallel(stage: str, own: Mapping[str, Any], devices: int) -> tuple[int, int]:
    """Sizes of tensor and pipeline parallelism, of a replica with so many GPUs (0: on a CPU). Raises `ConfigError`."""
    pipeline = int(own.get("pipeline_parallel_size", 1))
    tensor = int(own.get("tensor_parallel_size", max(1, devices // pipeline)))
    if devices and tensor * pipeline != devices:
        raise ConfigError(
            f"stage.{stage}.options: tensor_parallel_size = {tensor} and pipeline_parallel_size = {pipeline} "
            f"take {tensor * pipeline} GPUs: a replica of this stage has {devices}"
        )
    return tensor, pipeline
