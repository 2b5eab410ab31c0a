"""Aborts that come while rings are full and nothing moves: each is confirmed, and everything is free then (A6, B3).

Rings are as small as they can be, and chunks large: a few requests fill an edge, the others wait in line for room.
`test_cancellation` has 500 callers that go at once.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from typing import Any

import pytest
from support.drill import FAST, STAGES, play, quiet, replica, status_when
from support.running import Asking, collect, kill, launched, samples_of
from support.stress_watch import ring_rows

from omnizmq import AsyncClient

pytestmark = pytest.mark.usefixtures("no_leaks")

MIB = 1 << 20
CHUNK = 100_000
OUTPUTS = 40
ENDLESS = 100_000
CALLERS = 60

FULL = (
    "stage.thinker.options.echo=false",
    f"stage.thinker.options.chunks={ENDLESS}",
    f"stage.thinker.options.chunk_bytes={CHUNK}",
    f"stage.talker.options.chunk_bytes={CHUNK}",
    "stage.code2wav.options.echo=false",
    "stage.code2wav.options.chunk_bytes=400",
    *(f"edge.{edge}.ring_mib=1" for edge in ("thinker->talker", "talker->code2wav")),
    *(f"edge.{edge}.window_chunks=1000" for edge in ("thinker->talker", "talker->code2wav")),
    "router.heartbeat_timeout_s=60",
)
SOUND = {"modalities": ["audio"]}


async def answer_is_whole(client: AsyncClient) -> None:
    outputs = await collect(client, "x", params={"thinker": {"max_tokens": OUTPUTS}}, **SOUND)
    assert outputs[-1].finish_reason == "length"
    assert samples_of(outputs) == OUTPUTS * 100
    assert [outputs[-1].usage[stage]["completion_tokens"] for stage in STAGES] == [OUTPUTS] * 3


async def full(client: AsyncClient, edge: str) -> None:
    """Wait until the edge has no room for another chunk."""

    def is_full(status: dict[str, Any]) -> bool:
        used: dict[str, int] = {row["edge"]: row["used_bytes"] for row in ring_rows(status)}
        return used.get(edge, 0) > MIB - 2 * CHUNK

    await status_when(client, is_full)


async def all_abort(client: AsyncClient, asked: Sequence[Asking], *, how: str) -> None:
    """One by one, all bearers of one id at once, or by callers who are cancelled at once."""
    if how == "cancelled":
        for asking in asked:
            asking.task.cancel()
        ends = await asyncio.gather(*(asking.task for asking in asked), return_exceptions=True)
        assert all(isinstance(end, asyncio.CancelledError) for end in ends)
        return
    if how == "together":
        assert await client.abort("doomed") == CALLERS
    else:
        matched = [await client.abort(f"doomed-{number}") for number in range(CALLERS)]
        assert matched == [1] * CALLERS
    for asking in asked:
        assert await asking.error() is None
        assert asking.outputs[-1].finish_reason == "abort"
        assert [output.finished for output in asking.outputs].count(True) == 1


def doomed(client: AsyncClient, how: str) -> list[Asking]:
    """They do not end by themselves, however late this process is."""
    names = ["doomed" if how == "together" else f"doomed-{number}" for number in range(CALLERS)]
    return [Asking(client, "x", request_id=name, **SOUND) for name in names]


@pytest.mark.parametrize(("consumer", "edge"), [("talker", "thinker->talker"), ("code2wav", "talker->code2wav")])
def test_a6_with_a_stopped_consumer_and_full_rings_aborts_do_not_wait_for_it(consumer: str, edge: str) -> None:
    """It is a leftover until it goes on, then it confirms; nobody is killed."""

    async def scenario(client: AsyncClient) -> None:
        await answer_is_whole(client)  # each has met its peers: its chunks go by ring
        pid = (await replica(client, f"{consumer}/0"))["pid"]
        for how in ("one by one", "together", "cancelled"):
            asked = doomed(client, how)
            for asking in asked[:4]:
                await asking.has(1)
            kill(pid, signal.SIGSTOP)
            try:
                await full(client, edge)
                await all_abort(client, asked, how=how)
                status = await client.status()
                assert (status["live_requests"], status["queued"]) == (0, 0)
                assert 0 < status["leftovers"] == status["bindings"]
                assert all(
                    one["inflight"] == 0
                    for name, stage in status["stages"].items()
                    for one in stage["replicas"]
                    if name != consumer
                )
            finally:
                kill(pid, signal.SIGCONT)
            await quiet(client)
            await answer_is_whole(client)
        assert (await replica(client, f"{consumer}/0"))["restarts"] == 0

    with launched("synthetic", *FAST, *FULL, "router.abort_timeout_s=0.5") as deployment:
        play(deployment, scenario)
        assert deployment.stop() == 0


@pytest.mark.parametrize("how", ["together", "cancelled"])
def test_a6_with_a_busy_consumer_and_full_rings_all_confirm_and_nothing_is_left_over(how: str) -> None:
    """Its engine is in a step of a second when the aborts come: they are acknowledged, and confirmed after it."""
    sets = ("stage.talker.options.slow_at=2", "stage.talker.options.fault_only=doomed", "router.abort_timeout_s=600")

    async def scenario(client: AsyncClient) -> None:
        await answer_is_whole(client)
        asked = doomed(client, how)
        await full(client, "thinker->talker")
        await all_abort(client, asked, how=how)
        await quiet(client)
        counters = (await client.status())["counters"]
        assert (counters["aborted"], counters["failed"]) == (CALLERS, 0)
        await answer_is_whole(client)

    with launched("synthetic", *FAST, *FULL, *sets) as deployment:
        play(deployment, scenario)
        assert deployment.stop() == 0
