"""Small engines that compute, and one that is made to misbehave."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from omnizmq.workers.engine import Chunk, EngineContext, EngineRequest, StageOutput


class Copier:
    """Makes one output for each chunk it was fed, one a step, and stops when its input has ended.

    Its content is the chunk's number, and the chunk itself goes on to `target`, where there is one. `calls` are the
    methods that were called with which request; `stepped` the requests of each step.
    """

    def __init__(self, sources: Sequence[str] = ("thinker",), target: str | None = "code2wav") -> None:
        self._target = target
        self.calls: list[tuple[str, str]] = []
        self.stepped: list[list[str]] = []
        self.closed = 0
        self._sources = sources
        self._held: dict[str, deque[Chunk]] = {}
        self._open: dict[str, set[str]] = {}

    def add(self, request: EngineRequest) -> None:
        self._called("add", request.request_id)
        self._held[request.request_id] = deque()
        self._open[request.request_id] = set(self._sources)

    def feed(self, request_id: str, edge: str, chunk: Chunk) -> None:
        self._called("feed", request_id)
        assert edge in self._open[request_id]
        self._held[request_id].append(chunk)

    def end_of_input(self, request_id: str, edge: str) -> None:
        self._called("end_of_input", request_id)
        self._open[request_id].discard(edge)

    def abort(self, request_id: str) -> list[StageOutput]:
        self._called("abort", request_id)
        self._open.pop(request_id, None)
        left = self._held.pop(request_id, ())
        return [self._output(request_id, chunk) for chunk in left]

    def has_work(self, request_id: str) -> bool:
        self._called("has_work", request_id)
        return bool(self._held.get(request_id)) or self._open.get(request_id) == set()

    def step(self, ready: Sequence[str]) -> list[StageOutput]:
        self._called("step", ",".join(ready))
        self.stepped.append(list(ready))
        outputs = []
        for request_id in ready:
            if self._held[request_id]:
                outputs.append(self._output(request_id, self._held[request_id].popleft()))
            elif not self._open[request_id]:
                del self._held[request_id], self._open[request_id]
                outputs.append(StageOutput(request_id, finish_reason="stop"))
        return outputs

    def close(self) -> None:
        self.closed += 1

    def holds(self, request_id: str) -> int:
        """Chunks that it was fed and has not used."""
        return len(self._held.get(request_id, ()))

    def _output(self, request_id: str, chunk: Chunk) -> StageOutput:
        number = chunk.meta.get("n", chunk.meta.get("seq"))
        return StageOutput(request_id, f"{number} ", {} if self._target is None else {self._target: [chunk]})

    def _called(self, method: str, request_id: str) -> None:
        self.calls.append((method, request_id))


class Troubled(Copier):
    """`trouble(method, request_id)` is called before each method does its work, and may raise."""

    def __init__(self, trouble: Callable[[str, str], object], sources: Sequence[str] = ("thinker",)) -> None:
        super().__init__(sources)
        self._trouble = trouble

    def _called(self, method: str, request_id: str) -> None:
        super()._called(method, request_id)
        self._trouble(method, request_id)

    def close(self) -> None:
        super().close()
        self._trouble("close", "")


class Deaf(Copier):
    """Takes what it is fed and never has work."""

    def has_work(self, request_id: str) -> bool:
        self._called("has_work", request_id)
        return False


def context(
    stage: str = "talker",
    *,
    sources: Sequence[str] = (),
    targets: Sequence[str] = (),
    final_output: str | None = "text",
    wake: Callable[[], None] = lambda: None,
    private_dir: Path = Path("/nonexistent"),
    **options: Any,
) -> EngineContext:
    """What the synthetic engine is made from."""
    return EngineContext(
        stage=stage,
        model="",
        device=(),
        options=options,
        sources=tuple(sources),
        targets=tuple(targets),
        final_output=final_output,
        max_inflight=64,
        private_dir=private_dir,
        wake=wake,
        progress=lambda text: None,  # noqa: ARG005
    )
