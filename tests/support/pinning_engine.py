"""The synthetic engine, which writes down each mapping of a ring that it is given and gives back: a line a call, with
the worker's process, the address and whether it may write there, in the file that PINNED names."""

from __future__ import annotations

import os

import numpy as np

from omnizmq.workers.engine import Engine, EngineContext
from omnizmq.workers.engines.synthetic import SyntheticEngine, check_options


class Pinning(SyntheticEngine):
    def __init__(self, context: EngineContext) -> None:
        super().__init__(context, check_options(context.stage, context.options))
        self.ring_memory = self
        self._stage = context.stage

    def pin(self, memory: memoryview) -> None:
        self._note("pin", memory)

    def unpin(self, memory: memoryview) -> None:
        self._note("unpin", memory)

    def _note(self, call: str, memory: memoryview) -> None:
        region = np.frombuffer(memory, np.uint8)
        assert region[0] in range(256)  # it is mapped
        kind = "reads" if memory.readonly else "writes"
        line = f"{call} {self._stage} {kind} {os.getpid()} {region.ctypes.data:x} {region.nbytes}\n"
        with open(os.environ["PINNED"], "a") as file:
            file.write(line)


def create(context: EngineContext) -> Engine:
    return Pinning(context)
