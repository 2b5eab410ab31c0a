"""The synthetic engine in a worker that says what it should not: a welcomed peer that is hostile (W1).

A request called `say:WHOM:FILE` has its worker send all messages of that file, as they are: to the `router`, to every
`consumer`, or back to every `producer`. Then it is a request like any other.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from omnizmq.workers.engine import EngineContext, EngineRequest
from omnizmq.workers.engines.synthetic import SyntheticEngine, check_options
from omnizmq.workers.worker import Worker

TESTS = Path(__file__).parent.parent


class Hostile(SyntheticEngine):
    """In the engine thread; what is said is said by the socket thread."""

    def add(self, request: EngineRequest) -> None:
        if request.external_id.startswith("say:"):
            _, whom, name = request.external_id.split(":")
            messages = msgspec.msgpack.decode(Path(os.environ["DRILL_MESSAGES"], name).read_bytes(), type=list[bytes])
            (worker,) = (found for found in gc.get_objects() if isinstance(found, Worker))
            worker._post(lambda: _say(worker, whom, messages))
        super().add(request)


def _say(worker: Worker, whom: str, messages: list[bytes]) -> None:
    if whom == "router":
        worker._router.send(messages)
    elif whom == "consumer":
        for dealer in worker._plane._consumers.values():
            dealer.send(messages)
    else:
        for identity in worker._plane._producers:
            worker._plane._socket.send(identity, messages)


def create(context: EngineContext) -> Hostile:
    return Hostile(context, check_options(context.stage, context.options))


@contextmanager
def hostile_engines(folder: Path) -> Iterator[None]:
    """Workers that are started in here find the engine `hostile`; messages to say are written to `folder`."""
    about = folder / "hostile-0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: hostile\nVersion: 0\n")
    (about / "entry_points.txt").write_text("[omnizmq.engines]\nhostile = support.drill_engine:create\n")
    paths = [str(folder), str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(paths))
        patch.setenv("DRILL_MESSAGES", str(folder))
        yield


def write_messages(folder: Path, name: str, messages: list[bytes]) -> None:
    (folder / name).write_bytes(msgspec.msgpack.encode(messages))
