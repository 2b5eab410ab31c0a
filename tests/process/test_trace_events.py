"""What a launched deployment records is in the table of events, and every event of the table is recorded (T1)."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator, Sequence

import pytest
from support.drill import FAST, LIMIT_S, words
from support.known_events import mistakes
from support.running import Asking, Held, Running, collect, eventually, launched

from omnizmq import AsyncClient
from omnizmq.errors import InvalidRequestError
from omnizmq.runtime import state_dir
from omnizmq.trace.database import FILE_NAME
from omnizmq.trace.events import EVENTS
from omnizmq.trace.facts import Fact
from omnizmq.trace.store import TraceReader

pytestmark = pytest.mark.usefixtures("no_leaks")

EACH = ("router.trace_chunks=true", "router.trace_contents=true")
NARROW = (
    "router.redrive=wait",
    "router.output_window=4",
    "router.abort_timeout_s=0.5",
    "edge.thinker->talker.window_chunks=1",
    "stage.thinker.max_inflight=1",
    "stage.talker.options.interval_ms=50",
    "stage.talker.options.terminal_delay_ms=100",
    "stage.code2wav.options.fail_at=13",
)
NEVER = {"dropped"}
"""Told where rows were lost, which tests of the store bring about."""


def facts(deployment: Running) -> Iterator[Fact]:
    """All of its trace."""
    with TraceReader(state_dir(deployment.name) / FILE_NAME) as reader:
        for request_id in reader.last(100):
            yield from reader.facts(request_id)


async def refused(client: AsyncClient) -> None:
    with pytest.raises(InvalidRequestError):
        await collect(client, "x", modalities=["smell"])


async def queued(client: AsyncClient) -> None:
    """One place, and two that want it; who is bound also waits for chunks to be taken, and withholds its end."""
    await asyncio.gather(*(collect(client, words(name, 6)) for name in ("one", "two")))


async def read_late(client: AsyncClient) -> None:
    outputs = client.generate(words("late", 20), modalities=["text"])
    await anext(outputs)
    while (await client.status())["paused"] == 0:
        await asyncio.sleep(0.01)
    assert [output async for output in outputs][-1].finish_reason == "stop"


async def driven_again(client: AsyncClient, deployment: Running) -> None:
    worker = await asyncio.to_thread(deployment.worker_pid, "talker/0")
    asking = Held(client, words("again", 12), after=2)
    await asking.has(2)
    os.kill(worker, signal.SIGKILL)
    assert await asking.error() is None


async def left_behind(client: AsyncClient, deployment: Running) -> None:
    worker = await asyncio.to_thread(deployment.worker_pid, "talker/0")
    asking = Held(client, words("left", 12), after=2, request_id="left")
    await asking.has(2)
    os.kill(worker, signal.SIGSTOP)
    try:
        assert await client.abort("left") == 1
        await asking.error()
    finally:
        os.kill(worker, signal.SIGCONT)


async def failed(client: AsyncClient) -> None:
    """In the middle of its sound."""
    error = await Asking(client, words("failed", 20)).error()
    assert error is not None


async def all_kinds(deployment: Running) -> None:
    async with asyncio.timeout(LIMIT_S * 2), AsyncClient.connect(deployment.name) as client:
        await refused(client)
        await queued(client)
        await read_late(client)
        await driven_again(client, deployment)
        await left_behind(client, deployment)
        await failed(client)


def names(found: Sequence[Fact]) -> set[str]:
    return {fact.event for fact in found}


def test_t1_every_event_of_the_table_is_recorded_and_no_other() -> None:
    every = {event.name for event in EVENTS} - NEVER
    with launched("synthetic", *FAST, *EACH, *NARROW) as deployment:
        asyncio.run(all_kinds(deployment))
        assert eventually(lambda: names(list(facts(deployment))) >= every), every - names(list(facts(deployment)))
        found = list(facts(deployment))
    assert [mistake for fact in found for mistake in mistakes(fact)] == []
    assert names(found) == every
