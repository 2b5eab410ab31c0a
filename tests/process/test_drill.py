"""Workers that die at random while many requests run: each request has one end, answers are right, nothing is left.

The seed decides who dies, when and how, and what is asked. It is printed when the test fails.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
from support.running import Asking, collect, launched, samples_of, state_of, text_of

from omnizmq import AsyncClient, RequestOutput
from omnizmq.errors import OmnizmqError, ReplicaLostError, UnavailableError

pytestmark = pytest.mark.usefixtures("no_leaks")

REQUESTS = 100
LASTS_S = 4.0
DEATHS = 12
STAGES = ("thinker", "talker", "code2wav")
SETS = (
    *(f"stage.{stage}.replicas=2" for stage in STAGES),
    *(f"stage.{stage}.max_inflight=8" for stage in STAGES),
    "router.heartbeat_interval_s=0.1",
    "router.heartbeat_timeout_s=1",
    "router.restart_delay_s=0.02",
    "router.max_restart_delay_s=0.1",
    "router.abort_timeout_s=1",
    "router.terminal_grace_s=1",
    "stage.thinker.options.interval_ms=5",
    "stage.talker.options.terminal_delay_ms=3",
    "edge.thinker->talker.window_chunks=2",
    "edge.talker->code2wav.window_chunks=1",
    "router.output_window=4",
)


class Slow(Asking):
    """It pauses at its window again and again."""

    async def _read(self, outputs: AsyncIterator[RequestOutput]) -> None:
        async for output in outputs:
            self.outputs.append(output)
            await asyncio.sleep(0.02)


class Drill:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.ends: Counter[str] = Counter()
        self.deaths = 0

    async def run(self, name: str) -> None:
        async with AsyncClient.connect(name) as client, AsyncClient.connect(name) as watcher:
            killing = asyncio.create_task(self._kill(watcher))
            async with asyncio.timeout(60):
                await asyncio.gather(*(self._ask(client, number) for number in range(REQUESTS)))
            await killing
            async with asyncio.timeout(20):
                while not await self._recovered(watcher):
                    await asyncio.sleep(0.05)
            assert text_of(await collect(client, "all is well")) == "all is well"
            counters = (await watcher.status())["counters"]
            assert (counters["bad_frames"], counters["router_errors"]) == (0, 0)

    async def _kill(self, watcher: AsyncClient) -> None:
        """About as long as new requests come: whoever waits for a replica has one in the end. A worker that is stopped
        while it loads has `start_timeout_s`, which is longer than this test."""
        while self.deaths < DEATHS:
            await asyncio.sleep(self.random.uniform(0.1, 0.4))
            stages = (await watcher.status())["stages"].values()
            replicas = [one for stage in stages for one in stage["replicas"] if one["pid"]]
            if replicas:
                victim = self.random.choice(replicas)
                ways = [signal.SIGKILL, signal.SIGTERM, *[signal.SIGSTOP] * (victim["state"] == "ready")]
                with suppress(ProcessLookupError):
                    os.kill(victim["pid"], self.random.choice(ways))
                    self.deaths += 1

    async def _recovered(self, watcher: AsyncClient) -> bool:
        """B3: every table is empty. Every replica serves again, and is the one that will."""
        status = await watcher.status()
        idle = not any(status[key] for key in ("live_requests", "bindings", "queued", "leftovers"))
        replicas = [one for stage in status["stages"].values() for one in stage["replicas"]]
        fresh = all(one["state"] == "ready" and one["heartbeat_age_s"] < 0.5 for one in replicas)
        return idle and fresh and not any(state_of(one["pid"]) in (None, "T", "Z") for one in replicas)

    async def _ask(self, client: AsyncClient, number: int) -> None:
        await asyncio.sleep(self.random.uniform(0, LASTS_S))
        words = [f"w{number}.{word}" for word in range(self.random.randint(1, 40))]
        patience = self.random.uniform(0, 0.2)
        what = self.random.choice(["read", "read", "slow", "text", "abort", "cancel"])
        modalities = ["text"] if what == "text" else None
        kind = Slow if what == "slow" else Asking
        asking = kind(client, " ".join(words), request_id=f"r{number}", modalities=modalities)
        if what == "abort":
            await asyncio.sleep(patience)
            await client.abort(f"r{number}")
        elif what == "cancel":
            await asyncio.sleep(patience)
            asking.task.cancel()
        try:
            error = await asking.error()
        except asyncio.CancelledError:
            self.ends["cancelled"] += 1
            return
        self._judge(asking, error, words, sounds=modalities is None)

    def _judge(self, asking: Asking, error: OmnizmqError | None, words: list[str], *, sounds: bool) -> None:
        ends = [output for output in asking.outputs if output.finished]
        if error is not None:
            assert isinstance(error, ReplicaLostError | UnavailableError), error
            assert (error.retriable, ends) == (True, [])
            self.ends[error.code] += 1
            return
        assert len(ends) == 1
        assert ends[0] is asking.outputs[-1]
        if ends[0].finish_reason == "stop":
            assert text_of(asking.outputs) == " ".join(words)
            assert samples_of(asking.outputs) == 2400 * len(words) * sounds
        else:
            assert ends[0].finish_reason == "abort"
        self.ends[str(ends[0].finish_reason)] += 1


@pytest.mark.parametrize(("seed", "redrive"), [(7, "other"), (8, "wait")])
def test_every_request_has_one_end_whoever_dies(seed: int, redrive: str) -> None:
    drill = Drill(seed)
    with launched("synthetic", *SETS, f"router.redrive={redrive}") as deployment:
        asyncio.run(drill.run(deployment.name))
        assert deployment.stop() == 0
    assert drill.ends.total() == REQUESTS
    assert drill.ends["stop"] > 0
