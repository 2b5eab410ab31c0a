"""Engines that fail as GPUs do, where no GPU is.

`broken` is the synthetic engine; of the first request whose external id contains `broken`, its second outputs break the
engine: in the `step`, or when a chunk is copied, `inline` or into the `ring`, as its option `where` says. Once in a
deployment.

`lost_gpu` is the `transformers` engine; the method of its model that the option `fails` names raises what torch raises
when a GPU is lost, at its second call, once in a deployment; on a GPU it loses it indeed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omnizmq.workers.engine import Chunk, Engine, EngineBrokenError, EngineContext, EngineRequest, StageOutput
from omnizmq.workers.engines.synthetic import SyntheticEngine, check_options

REASON = "its GPU cannot be used any more: CUDA error: an illegal memory access was encountered"
ARRAY_BYTES = {"inline": 1 << 10, "ring": 1 << 20}


class Lost:
    """An array on a device that is lost."""

    dtype = np.dtype(np.uint8)

    def __init__(self, nbytes: int) -> None:
        self.shape = (nbytes,)

    def copy_to(self, out: NDArray[Any]) -> None:  # noqa: ARG002
        raise EngineBrokenError(REASON)


class Broken(SyntheticEngine):
    """See the module."""

    def __init__(self, context: EngineContext, options: Any, where: str) -> None:
        super().__init__(context, options)
        self._where = where
        self._mark = context.private_dir / "broke"
        self._struck: set[str] = set()
        self._outputs: dict[str, int] = {}

    def add(self, request: EngineRequest) -> None:
        super().add(request)
        if "broken" in request.external_id:
            self._struck.add(request.request_id)

    def step(self, ready: Sequence[str]) -> list[StageOutput]:
        outputs = super().step(ready)
        return [self._spoiled(output) if output.request_id in self._struck else output for output in outputs]

    def _spoiled(self, output: StageOutput) -> StageOutput:
        self._outputs[output.request_id] = count = self._outputs.get(output.request_id, 0) + 1
        if count < 2 or not first_time(self._mark):
            return output
        if self._where == "step":
            raise EngineBrokenError(REASON)
        lost = [Chunk(tensors={"lost": Lost(ARRAY_BYTES[self._where])})]
        return dataclasses.replace(
            output, chunks={target: [*chunks, *lost] for target, chunks in output.chunks.items()}
        )


def first_time(mark: Path) -> bool:
    """Whether nobody in the deployment has been here before."""
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def lost_gpu(context: EngineContext) -> Engine:
    import torch

    from omnizmq.workers.engines.hf import engine as hf

    options = {key: value for key, value in context.options.items() if key != "fails"}
    engine: Any = hf.create(dataclasses.replace(context, options=options))
    name = context.options["fails"]
    sound, calls = getattr(engine._model, name), iter((1, 2))

    def method(*given: Any) -> Any:
        if next(calls, 0) == 2 and first_time(context.private_dir / "broke"):
            if context.device:
                torch.zeros(1, device="cuda")[torch.tensor([9], device="cuda")].tolist()
            raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered\nand advice")
        return sound(*given)

    setattr(engine._model, name, method)
    return engine


def broken(context: EngineContext) -> Engine:
    options = {key: value for key, value in context.options.items() if key != "where"}
    return Broken(context, check_options(context.stage, options), context.options["where"])
