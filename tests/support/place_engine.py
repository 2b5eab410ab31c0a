"""An engine that answers each prompt with its place: its devices as it is told them, and what the process may see."""

from __future__ import annotations

import os
from collections.abc import Sequence

from omnizmq.workers.engine import Engine, EngineContext, EngineRequest, StageOutput
from omnizmq.workers.engines.synthetic import SyntheticEngine, check_options


class Place(SyntheticEngine):
    """See the module. A request is one step."""

    def __init__(self, context: EngineContext) -> None:
        super().__init__(context, check_options(context.stage, context.options))
        self._text = f"{' '.join(context.device) or 'cpu'} of {os.environ.get('CUDA_VISIBLE_DEVICES', 'all')!r}"
        self._new: set[str] = set()

    def add(self, request: EngineRequest) -> None:
        self._new.add(request.request_id)

    def has_work(self, request_id: str) -> bool:
        return request_id in self._new

    def abort(self, request_id: str) -> list[StageOutput]:
        self._new.discard(request_id)
        return []

    def step(self, ready: Sequence[str]) -> list[StageOutput]:
        self._new.difference_update(ready)
        return [StageOutput(request_id, self._text, ended=True, finish_reason="stop") for request_id in ready]


def create(context: EngineContext) -> Engine:
    return Place(context)
