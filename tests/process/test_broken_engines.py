"""An engine that can do nothing any more ends its worker, as if that had been killed (F2)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from support.broken_engines import REASON
from support.running import Asking, Running, eventually, launched, text_of, until
from support.stress import visible

from omnizmq import AsyncClient
from omnizmq.errors import ReplicaLostError

pytestmark = pytest.mark.usefixtures("no_leaks")

WORDS = " ".join(f"word{n}" for n in range(12))
FAST_RESTART = ("router.restart_delay_s=0.05", "router.max_restart_delay_s=0.2")


@pytest.fixture(autouse=True)
def engines(home: object) -> Iterator[None]:  # noqa: ARG001 (workers are started with both)
    with visible():
        yield


def settings(where: str, replicas: int) -> list[str]:
    return [
        'stage.talker.engine="broken"',
        f'stage.talker.options.where="{where}"',
        f"stage.talker.replicas={replicas}",
        "stage.talker.policy=round_robin",
        *FAST_RESTART,
    ]


async def ask(deployment: Running, names: list[str]) -> list[Asking]:
    async with AsyncClient.connect(deployment.name) as client:
        asked = [Asking(client, WORDS, request_id=name) for name in names]
        await until(lambda: all(asking.task.done() for asking in asked), timeout_s=30)
        return asked


@pytest.mark.parametrize("where", ["step", "inline", "ring"])
def test_f2_its_requests_are_driven_again_on_another_replica_and_it_is_replaced(where: str) -> None:
    with launched("synthetic", *settings(where, replicas=2)) as deployment:
        for asking in asyncio.run(ask(deployment, ["broken", "one", "two", "three"])):
            assert asking.task.exception() is None
            assert text_of(asking.outputs) == WORDS
        assert deployment.status()["counters"]["redriven"] >= 1
        assert eventually(lambda: _restarts(deployment) == [0, 1], timeout_s=30)


def test_f2_without_another_replica_they_end_with_replica_lost_and_the_reason() -> None:
    with launched("synthetic", *settings("step", replicas=1)) as deployment:
        (struck,) = asyncio.run(ask(deployment, ["broken"]))
        error = struck.task.exception()
        assert isinstance(error, ReplicaLostError)
        assert REASON in error.message
        assert error.replica == "talker/0"
        assert eventually(lambda: _restarts(deployment) == [1], timeout_s=30)
        (after,) = asyncio.run(ask(deployment, ["broken-again"]))
        assert text_of(after.outputs) == WORDS


def _restarts(deployment: Running) -> list[int]:
    """Of the talkers, once all are ready."""
    replicas = deployment.status()["stages"]["talker"]["replicas"]
    return sorted(one["restarts"] for one in replicas) if all(one["state"] == "ready" for one in replicas) else []
