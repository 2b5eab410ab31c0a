"""vLLM as a stage's engine: any text model of its that is on this machine, and the Thinker of Qwen3-Omni.

One engine in the worker's own process; where a replica has several GPUs, vLLM's own executor starts a process for each
of them, in the worker's process group. Greedy and in the same dtype it makes what vLLM makes offline.

Options: `threads` (1) on a CPU; every engine argument of vLLM's by its name (`max_model_len`, `dtype`,
`gpu_memory_utilization`, `kv_cache_memory_bytes`, …) but those that the configuration says elsewhere (`options`).
Parameters: those of `vllm.SamplingParams` by their names (`params`), and `say`: a text that is the answer, for which
nothing is computed but, where a Talker wants hidden states of sounds and images, the prompt.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import re
import tempfile
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from omnizmq.errors import ConfigError, LaunchError
from omnizmq.tables import nearest
from omnizmq.workers.engine import Engine, EngineContext
from omnizmq.workers.engines import qwen3_omni
from omnizmq.workers.engines.hf.checkpoint import Checkpoint
from omnizmq.workers.engines.vllm import memory, options, tracker
from omnizmq.workers.memory import MemoryAsked, MemoryNeed

if TYPE_CHECKING:
    from vllm.v1.engine.llm_engine import LLMEngine

    from omnizmq.workers.engines.vllm.items import Items

log = logging.getLogger(__name__)

PACKAGES = ("vllm", "torch", "transformers")
"""Found by name at run time; `omnizmq check` reads it here."""

_LINE_CHARS = 400
_TINY = re.compile(rf"{qwen3_omni.MODEL.tiny}(?::(\d{{1,9}}))?")


def check_options(stage: str, given: Mapping[str, Any]) -> None:
    """Raises `ConfigError`. What only vLLM can check is checked when it loads."""
    options.split(stage, given)


def estimate_memory(asked: MemoryAsked) -> MemoryNeed:
    """For `omnizmq check`, before anything loads. Raises `ModelNotFoundError`, `ConfigError`, `LaunchError`."""
    _, _, (tensor, pipeline) = _check_place(asked)
    if _TINY.fullmatch(asked.model):
        return MemoryNeed(notes=(f"stage {asked.stage}: {asked.model} is made when it is loaded",))
    return memory.estimate(asked, Checkpoint(asked.model), tensor * pipeline)


def create(context: EngineContext) -> Engine:
    """Load the model. Raises `ConfigError` (option, edge, model) or `LaunchError`."""
    own, arguments, (tensor, pipeline) = _check_place(context)
    _set_environment(context, own)
    if tensor * pipeline > 1:
        tracker.start()
    checkpoint = _checkpoint(context)
    on_cpu = {
        "enforce_eager": True,  # compiling takes a minute there, for a tenth of speed
        "kv_cache_memory_bytes": options.CPU_CACHE_BYTES,
    }
    arguments = {
        **({} if context.device else on_cpu),
        "max_num_seqs": options.INSIDE * context.max_inflight,
        "scheduling_policy": "priority",
        "async_scheduling": False,  # an abort is to take effect within a step
        **arguments,
        "model": str(checkpoint.path),
        "runner": "generate",
        "tensor_parallel_size": tensor,
        "pipeline_parallel_size": pipeline,
        "distributed_executor_backend": "uni" if tensor * pipeline == 1 else "mp",
        "disable_log_stats": True,
    }
    return _generation(context, checkpoint, arguments)


def _check_place(
    asked: EngineContext | MemoryAsked,
) -> tuple[dict[str, Any], dict[str, Any], tuple[int, int]]:
    """The options, and how many processes compute a replica. Raises `ConfigError`."""
    own, arguments = options.split(asked.stage, asked.options)
    if asked.final_output not in (None, "text"):
        raise ConfigError(f'stage.{asked.stage}.final_output = "{asked.final_output}": vllm makes "text"')
    return own, arguments, options.check_parallel(asked.stage, own, len(asked.device))


def _set_environment(context: EngineContext, own: Mapping[str, Any]) -> None:
    """vLLM reads most of its settings there, when it is imported."""
    os.environ.update(
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
        VLLM_NO_USAGE_STATS="1",
        VLLM_RPC_BASE_PATH=str(context.private_dir),
        TMPDIR=str(context.private_dir),
        HF_HUB_OFFLINE="1",
    )
    tempfile.tempdir = None  # it is looked up anew: what a killed process leaves is gone with the deployment
    if not context.device:
        # Replicas on one machine are not to be bound to the same core, nor to compile a kernel within a step.
        os.environ.update(
            OMP_NUM_THREADS=str(own.get("threads", 1)), VLLM_CPU_OMP_THREADS_BIND="nobind", TORCHDYNAMO_DISABLE="1"
        )


def _checkpoint(context: EngineContext) -> Checkpoint:
    tiny = _TINY.fullmatch(context.model)
    if tiny is None:
        return Checkpoint(context.model)
    context.progress("building a tiny random Qwen3-Omni")
    return Checkpoint(str(qwen3_omni.MODEL.make_tiny(context.private_dir, int(tiny[1] or 0))))


def _generation(context: EngineContext, checkpoint: Checkpoint, arguments: dict[str, Any]) -> Engine:
    context.progress("importing vllm")
    from omnizmq.workers.engines.vllm.generation import Generation
    from omnizmq.workers.engines.vllm.handing import Texts, TokenIds
    from omnizmq.workers.engines.vllm.prompts import Prompts, Reading

    is_thinker = memory.is_thinker(checkpoint)
    with_items = memory.takes_items(context.stage, checkpoint, arguments)
    if is_thinker:
        arguments |= _of_thinker(context, checkpoint, with_items=with_items)
    context.progress("loading the model")
    engine = _load(context, arguments)
    config = engine.model_config
    reading: Reading = Prompts(checkpoint, config.get_vocab_size(), config.max_model_len - 1)
    items: Items | None = None
    if with_items:
        from omnizmq.workers.engines.vllm import thinker

        context.progress("loading the encoders")
        reading, items = thinker.encoding(context, checkpoint, engine)
    engine.model_executor.register_failure_callback(
        lambda: context.broken("vLLM's engine failed: a process that computes for it died")
    )
    end = engine.get_tokenizer().eos_token_id
    handing = TokenIds() if is_thinker else Texts()
    return Generation(context, engine, reading, handing, 0 if end is None else end, items)


def _of_thinker(context: EngineContext, checkpoint: Checkpoint, *, with_items: bool) -> dict[str, Any]:
    from omnizmq.workers.engines.vllm import thinker

    made = thinker.arguments(checkpoint, with_items=with_items, for_talker=bool(context.targets))
    for name in made.keys() & context.options.keys():
        raise ConfigError(f"stage.{context.stage}.options.{name} cannot be set: sounds and images come ready")
    return made


def _load(context: EngineContext, arguments: Mapping[str, Any]) -> LLMEngine:
    from vllm import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    known = [field.name for field in dataclasses.fields(EngineArgs)]
    for name in arguments:
        if name not in known:
            raise ConfigError(f"stage.{context.stage}.options.{name} is unknown: {nearest(name, known)}")
    try:
        return LLMEngine.from_engine_args(EngineArgs(**arguments))
    except ValueError as error:  # what vLLM says of it is all there is to know
        raise ConfigError(f"stage {context.stage}: vLLM cannot load {arguments['model']}: {_line(error)}") from error
    except Exception as error:
        log.exception("vLLM did not load")
        raise LaunchError(f"vLLM cannot load {arguments['model']}: {_line(error)}") from error


def _line(error: Exception) -> str:
    """In one; those of pydantic begin with a count and the name of a class."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if len(lines) > 1 and "validation error" in lines[0]:
        return " ".join(lines[1:3]).partition(" [type=")[0].removeprefix("Value error, ")
    return " ".join(lines)[:_LINE_CHARS] if lines else type(error).__name__
