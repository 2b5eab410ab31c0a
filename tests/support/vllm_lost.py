"""`vllm_lost`: the engine `vllm` whose model fails inside vLLM's own step, at its sixth, once in a deployment."""

from __future__ import annotations

from typing import Any

from omnizmq.workers.engine import Engine, EngineContext
from omnizmq.workers.engines.vllm import engine as vllm
from support.broken_engines import first_time

REASON = "the device is lost"
STEP = 6


def create(context: EngineContext) -> Engine:
    engine: Any = vllm.create(context)
    executor = engine._engine.engine_core.engine_core.model_executor
    sound, steps = executor.execute_model, iter(range(1, STEP + 1))

    def execute(*given: Any, **named: Any) -> Any:
        if next(steps, 0) == STEP and first_time(context.private_dir / "lost"):
            raise RuntimeError(f"{REASON}\nand details")
        return sound(*given, **named)

    executor.execute_model = execute
    return engine
