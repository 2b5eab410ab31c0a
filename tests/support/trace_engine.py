"""Two engines made of the synthetic one.

`lossy` leaves something out, and ends well all the same. What is lost is said by the request's external id:
`STAGE-no-chunks` has that stage give its consumers nothing that it makes, `STAGE-no-content` its caller, and
`STAGE-no-output` makes nothing of all its input. `slow` takes `STEP_S` for each step, and a chunk at a time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from omnizmq.workers.engine import Audio, Chunk, EngineContext, StageOutput
from omnizmq.workers.engines.synthetic import SyntheticEngine, _Request, check_options

TESTS = Path(__file__).parent.parent


class Lossy(SyntheticEngine):
    def _loses(self, request: _Request, what: str) -> bool:
        return f"{self._context.stage}-no-{what}" in request.external_id

    def _allowed(self, request: _Request) -> int:
        return 0 if self._loses(request, "output") else super()._allowed(request)

    def _output(
        self, request_id: str, request: _Request, content: str | Audio | None, chunks: Mapping[str, Sequence[Chunk]]
    ) -> StageOutput:
        content = None if self._loses(request, "content") else content
        return super()._output(request_id, request, content, {} if self._loses(request, "chunks") else chunks)


STEP_S = 0.2
ENTRY_POINTS = "[omnizmq.engines]\nlossy = support.trace_engine:create\nslow = support.trace_engine:create_slow\n"


class Slow(SyntheticEngine):
    def step(self, ready: Sequence[str]) -> list[StageOutput]:
        time.sleep(STEP_S)
        return super().step(ready)


def create(context: EngineContext) -> Lossy:
    return Lossy(context, check_options(context.stage, context.options))


def create_slow(context: EngineContext) -> Slow:
    return Slow(context, check_options(context.stage, context.options))


@contextmanager
def trace_engines(folder: Path) -> Iterator[None]:
    """Workers that are started in here find the engines `lossy` and `slow`."""
    about = folder / "lossy-0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: lossy\nVersion: 0\n")
    (about / "entry_points.txt").write_text(ENTRY_POINTS)
    paths = [str(folder), str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(paths))
        yield
