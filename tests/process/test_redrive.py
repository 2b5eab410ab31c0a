"""Replicas that are killed under load, and what becomes of their requests by policy (F2, F3)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from support.running import Asking, Held, Running, eventually, kill, launched, text_of, until

from omnizmq import AsyncClient, RequestOutput
from omnizmq.errors import ReplicaLostError

pytestmark = pytest.mark.usefixtures("no_leaks")

WORDS = " ".join(f"word{n}" for n in range(12))
PACE = (
    "stage.thinker.options.interval_ms=20",
    "stage.talker.options.interval_ms=5",
    "router.output_window=4",
)
FAST_RESTART = ("router.restart_delay_s=0.05", "router.max_restart_delay_s=0.2")
TWO_TALKERS = ("stage.talker.replicas=2", "stage.talker.policy=round_robin", *PACE, *FAST_RESTART)


def sound_of(outputs: Sequence[RequestOutput]) -> np.ndarray[Any, Any]:
    return np.concatenate([output.audio for output in outputs if output.audio is not None])


def is_whole(outputs: Sequence[RequestOutput], external_id: str) -> bool:
    """All that was asked for, once and in order, one terminal, and the right names on everything."""
    ends = [output.stage for output in outputs if output.stage_finished]
    terminals = [output for output in outputs if output.finished]
    assert sorted(ends) == ["code2wav", "thinker"]
    assert len(terminals) == 1
    assert outputs[-1] is terminals[0]
    assert (terminals[0].stage, terminals[0].modality, terminals[0].finish_reason) == ("code2wav", "audio", "stop")
    assert terminals[0].usage.keys() == {"thinker", "talker", "code2wav"}
    assert terminals[0].usage_incomplete == ()
    assert {output.external_id for output in outputs} == {external_id}
    assert len({output.request_id for output in outputs}) == 1
    return text_of(list(outputs)) == WORDS


async def replicas(client: AsyncClient, stage: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await client.status())["stages"][stage]["replicas"]
    return found


async def serves(client: AsyncClient) -> None:
    """Somebody is back."""
    async with asyncio.timeout(30):
        while not (await client.status())["ready"]:
            await asyncio.sleep(0.05)


async def ready_again(client: AsyncClient, stage: str, incarnations: Mapping[int, int]) -> None:
    for _ in range(500):
        now = await replicas(client, stage)
        if all(now[n]["state"] == "ready" and now[n]["incarnation"] == i for n, i in incarnations.items()):
            return
        await asyncio.sleep(0.02)
    raise AssertionError(now)


async def sixteen(client: AsyncClient) -> dict[str, Held]:
    """In their middle, until they are awaited."""
    asked = {f"load-{n}": Held(client, WORDS, after=6, request_id=f"load-{n}") for n in range(16)}
    await until(lambda: all(len(asking.outputs) >= 6 for asking in asked.values()))
    return asked


class TestKilledUnderLoad:
    def test_f2_with_other_the_dead_ones_requests_complete_on_the_other_replica(self) -> None:
        async def scenario(deployment: Running) -> dict[str, list[RequestOutput]]:
            async with AsyncClient.connect(deployment.name) as client:
                asked = await sixteen(client)
                kill((await replicas(client, "talker"))[0]["pid"])
                errors = await asyncio.gather(*(asking.error() for asking in asked.values()))
                assert errors == [None] * 16
                await ready_again(client, "talker", {0: 2, 1: 1})
                assert (await client.status())["counters"]["redriven"] == 8
                return {name: asking.outputs for name, asking in asked.items()}

        with launched("synthetic", *TWO_TALKERS) as deployment:
            outputs = asyncio.run(scenario(deployment))
            assert all(is_whole(outputs[name], name) for name in outputs)
            sounds = {name: sound_of(got) for name, got in outputs.items()}
            assert all(np.array_equal(sounds["load-0"], sound) for sound in sounds.values())
            attempts = {name: deployment.trace(name)["attempts"] for name in outputs}
            moved = [name for name, tried in attempts.items() if len(tried) == 2]
            assert len(moved) == 8
            for name, tried in attempts.items():
                first, last = (tried[n]["stages"]["talker"]["replica"] for n in (0, -1))
                assert (first, last) == (("talker/0", "talker/1") if name in moved else ("talker/1", "talker/1"))
            assert eventually(deployment.idle)
            assert deployment.stop() == 0

    def test_f2_with_never_the_dead_ones_requests_end_with_replica_lost(self) -> None:
        async def scenario(deployment: Running) -> None:
            async with AsyncClient.connect(deployment.name) as client:
                asked = await sixteen(client)
                kill((await replicas(client, "talker"))[0]["pid"])
                errors = await asyncio.gather(*(asking.error() for asking in asked.values()))
                lost = [error for error in errors if error is not None]
                assert len(lost) == 8
                for error in lost:
                    assert isinstance(error, ReplicaLostError)
                    assert (error.stage, error.replica, error.retriable) == ("talker", "talker/0", True)
                whole = [name for name, error in zip(asked, errors, strict=True) if error is None]
                assert all(is_whole(asked[name].outputs, name) for name in whole)
                await ready_again(client, "talker", {0: 2, 1: 1})

        with launched("synthetic", "router.redrive=never", *TWO_TALKERS) as deployment:
            asyncio.run(scenario(deployment))
            assert eventually(deployment.idle)

    @pytest.mark.parametrize("stage", ["thinker", "talker", "code2wav"])
    def test_f2_with_wait_and_one_replica_all_complete_when_it_is_back(self, stage: str) -> None:
        async def scenario(deployment: Running) -> dict[str, list[RequestOutput]]:
            async with AsyncClient.connect(deployment.name) as client:
                asked = await sixteen(client)
                kill((await replicas(client, stage))[0]["pid"])
                errors = await asyncio.gather(*(asking.error() for asking in asked.values()))
                assert errors == [None] * 16
                return {name: asking.outputs for name, asking in asked.items()}

        with launched("synthetic", "router.redrive=wait", *PACE, *FAST_RESTART) as deployment:
            outputs = asyncio.run(scenario(deployment))
            assert all(is_whole(outputs[name], name) for name in outputs)
            assert eventually(deployment.idle)
            assert deployment.status()["counters"]["redriven"] == 16

    def test_f2_with_other_and_one_replica_nobody_waits(self) -> None:
        async def scenario(deployment: Running) -> None:
            async with AsyncClient.connect(deployment.name) as client:
                asked = await sixteen(client)
                kill((await replicas(client, "talker"))[0]["pid"])
                errors = await asyncio.gather(*(asking.error() for asking in asked.values()))
                assert all(isinstance(error, ReplicaLostError) for error in errors)
                assert all(error is not None and error.replica == "talker/0" for error in errors)

        with launched("synthetic", *PACE, *FAST_RESTART) as deployment:
            asyncio.run(scenario(deployment))
            assert eventually(deployment.idle)


class TestARequestThatKills:
    def test_f2_it_does_not_take_all_replicas_along_for_ever(self) -> None:
        sets = ("stage.talker.options.crash_at=2", "stage.talker.options.fault_only=deadly", "router.redrive=wait")

        async def scenario(deployment: Running) -> None:
            async with AsyncClient.connect(deployment.name) as client:
                deadly = Asking(client, WORDS, request_id="deadly")
                error = await deadly.error()
                assert isinstance(error, ReplicaLostError)
                assert error.stage == "talker"
                assert text_of(deadly.outputs) in WORDS  # a part of it, once
                await serves(client)
                harmless = Asking(client, WORDS, request_id="harmless")
                assert await harmless.error() is None
                assert is_whole(harmless.outputs, "harmless")

        with launched("synthetic", *sets, *TWO_TALKERS) as deployment:
            asyncio.run(scenario(deployment))
            assert len(deployment.trace("deadly")["attempts"]) == 3
            assert eventually(deployment.idle)

    def test_f2_a_fault_that_strikes_once_is_not_noticed(self) -> None:
        sets = ("stage.thinker.options.crash_at=4", "stage.thinker.options.fault_once=true", "router.redrive=wait")

        async def scenario(deployment: Running) -> None:
            async with AsyncClient.connect(deployment.name) as client:
                asking = Asking(client, WORDS, request_id="struck")
                assert await asking.error() is None
                assert is_whole(asking.outputs, "struck")

        with launched("synthetic", *sets, *PACE, *FAST_RESTART) as deployment:
            asyncio.run(scenario(deployment))
            trace = deployment.trace("struck")
            assert [attempt["number"] for attempt in trace["attempts"]] == [1, 2]
            assert trace["verdict"]["complete"] is True
            assert eventually(deployment.idle)
