"""`kill -9` and SIGSTOP of each kind of process, under load: in submission, stream, abort and drain (F2, F6, A6, A7).

While a terminal is withheld: `test_drill_withheld`, but for callers and owners, who are here.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import pytest
from support.drill import (
    FAST,
    LIMIT_S,
    STAGES,
    Beside,
    assert_part,
    assert_whole,
    back,
    play,
    replica,
    status_when,
    words,
)
from support.drill_caller import Caller, caller
from support.running import Asking, Held, Running, alive, eventually, kill, launched

from omnizmq import AsyncClient, Client
from omnizmq.errors import OmnizmqError, RouterLostError

pytestmark = pytest.mark.usefixtures("no_leaks")

LOAD = 8
LENGTH = 8
PROMPT = words("w", LENGTH)
PACE = ("stage.thinker.options.interval_ms=20", "stage.talker.options.interval_ms=5")
NARROW = "router.output_window=4"
QUIET = ("stage.thinker.options.silent_at=3", "stage.thinker.options.fault_only=quiet")
PATIENT = ("router.redrive=wait", "router.abort_timeout_s=600", "router.max_attempts=10")


async def load(client: AsyncClient, name: str = "load") -> list[Asking]:
    return [Asking(client, PROMPT, request_id=f"{name}-{number}") for number in range(LOAD)]


async def streaming(client: AsyncClient, name: str = "load") -> list[Held]:
    """With a narrow window they are in their middle until they are awaited."""
    asked = [Held(client, PROMPT, after=3, request_id=f"{name}-{number}") for number in range(LOAD)]
    for asking in asked:
        await asking.has(3)
    return asked


async def all_whole(asked: Sequence[Asking]) -> None:
    assert await errors_of(asked) == [None] * LOAD
    for asking in asked:
        assert_whole(asking.outputs, PROMPT, redriven=True)


async def errors_of(asked: Sequence[Asking]) -> list[OmnizmqError | None]:
    return await asyncio.gather(*(asking.error() for asking in asked))


async def abort_all(client: AsyncClient, asked: Sequence[Asking]) -> None:
    assert [await client.abort(asking.outputs[0].request_id) for asking in asked] == [1] * LOAD


async def aborting(client: AsyncClient, asked: Sequence[Asking]) -> None:
    """A1: each abort is acknowledged, although somebody has not confirmed."""
    await abort_all(client, asked)
    assert (await client.status())["live_requests"] == LOAD


async def all_aborted(asked: Sequence[Asking]) -> None:
    assert await errors_of(asked) == [None] * LOAD
    for asking in asked:
        terminal = asking.outputs.pop()
        assert (terminal.finish_reason, terminal.stage) == ("abort", "code2wav")
        assert_part(asking.outputs, PROMPT)


class TestWorkers:
    @pytest.mark.parametrize("stage", STAGES)
    def test_f2_killed_during_submission_and_abort(self, stage: str) -> None:
        """It is stopped before, so that it does not get any further."""

        async def scenario(client: AsyncClient) -> None:
            kill(pid := (await replica(client, f"{stage}/0"))["pid"], signal.SIGSTOP)
            asked = await load(client)
            await status_when(client, lambda status: status["live_requests"] == LOAD)
            assert not any(asking.outputs for asking in asked)
            kill(pid)
            await all_whole(asked)
            await back(client, f"{stage}/0", 2)

            asked = await streaming(client)
            kill(pid := (await replica(client, f"{stage}/0"))["pid"], signal.SIGSTOP)
            await aborting(client, asked)
            kill(pid)
            await all_aborted(asked)

        with launched("synthetic", *FAST, *PACE, *PATIENT, NARROW, "router.heartbeat_timeout_s=60") as deployment:
            play(deployment, scenario)
            assert deployment.stop() == 0

    @pytest.mark.parametrize("stage", STAGES)
    def test_f2_stopped_during_stream_and_abort_it_is_killed_for_its_silence(self, stage: str) -> None:
        async def scenario(client: AsyncClient) -> None:
            asked = await streaming(client)
            kill((await replica(client, f"{stage}/0"))["pid"], signal.SIGSTOP)
            await all_whole(asked)
            await back(client, f"{stage}/0", 2)

            asked = await streaming(client)
            kill((await replica(client, f"{stage}/0"))["pid"], signal.SIGSTOP)
            await abort_all(client, asked)
            await all_aborted(asked)

        with launched("synthetic", *FAST, *PACE, *PATIENT, NARROW) as deployment:
            play(deployment, scenario)
            assert deployment.stop() == 0

    @pytest.mark.parametrize("stage", STAGES)
    def test_f2_killed_during_a_drain(self, stage: str) -> None:
        async def scenario(deployment: Running) -> None:
            async with AsyncClient.connect(deployment.name) as client:
                asked = await streaming(client)
                deployment.process.send_signal(signal.SIGTERM)
                status = await status_when(client, lambda status: status["state"] == "draining")
                kill(status["stages"][stage]["replicas"][0]["pid"])
                await all_whole(asked)

        with launched("synthetic", *FAST, *PACE, *PATIENT, NARROW) as deployment:
            asyncio.run(scenario(deployment))
            assert deployment.process.wait(LIMIT_S) == 0


class TestRouter:
    @pytest.mark.parametrize("phase", ["submission", "abort", "drain"])
    def test_f6_killed_every_request_ends_with_router_lost_and_nothing_stays(self, home: Path, phase: str) -> None:
        async def scenario(deployment: Running) -> None:
            async with AsyncClient.connect(deployment.name) as client:
                workers = [one["pid"] for one in await replicas(client)]
                async with reached(deployment, client, phase) as asked:
                    kill(deployment.pid)
                    assert [type(error) for error in await errors_of(asked)] == [RouterLostError] * LOAD
                    for asking in asked:
                        assert_part(asking.outputs, PROMPT)
                assert eventually(lambda: not any(map(alive, workers)))
                assert eventually(lambda: os.listdir(home / "run" / "omnizmq") == [])

        with launched("synthetic", *FAST, *PACE, *PATIENT, NARROW, "router.heartbeat_timeout_s=60") as deployment:
            asyncio.run(scenario(deployment))

    def test_f6_stopped_for_less_than_a_heartbeats_timeout_it_loses_nothing(self) -> None:
        """Meanwhile requests are submitted, streamed and aborted."""

        async def scenario(client: AsyncClient) -> None:
            under_way = await streaming(client)
            doomed = await streaming(client, "doomed")
            router = deployment.pid
            kill(router, signal.SIGSTOP)
            aborts = [asyncio.create_task(client.abort(f"doomed-{n}")) for n in range(LOAD)]
            later = await load(client, "later")
            await asyncio.sleep(1.5)
            assert not any(asking.task.done() for asking in (*under_way, *doomed, *later))
            kill(router, signal.SIGCONT)
            assert await asyncio.gather(*aborts) == [1] * LOAD
            await all_aborted(doomed)
            await all_whole(under_way)
            await all_whole(later)
            assert [one["restarts"] for one in await replicas(client)] == [0, 0, 0]

        sets = (
            "router.heartbeat_interval_s=0.1",
            "router.heartbeat_timeout_s=5",
            NARROW,
        )
        with launched("synthetic", *sets) as deployment:
            play(deployment, scenario)
            assert deployment.stop() == 0

    def test_f6_stopped_for_longer_it_is_given_up_by_its_workers_and_its_requests_end(self) -> None:
        async def scenario(deployment: Running) -> None:
            async with AsyncClient.connect(deployment.name) as client:
                workers = [one["pid"] for one in await replicas(client)]
                asked = await streaming(client)
                kill(deployment.pid, signal.SIGSTOP)
                try:
                    assert eventually(lambda: not any(map(alive, workers)))
                finally:
                    kill(deployment.pid, signal.SIGCONT)
                await all_whole(asked)

        with launched("synthetic", *FAST, *PACE, *PATIENT, NARROW) as deployment:
            asyncio.run(scenario(deployment))
            assert eventually(deployment.idle)
            assert deployment.stop() == 0


@contextmanager
def going_on(process: Caller, what: str) -> Iterator[None]:
    """Its aborts are acknowledged in here and not confirmed, or it closes."""
    with Client.connect() as client:
        talker = client.status()["stages"]["talker"]["replicas"][0]["pid"]
    if what == "close":
        process.go_on()
    if what != "abort":
        yield
        return
    kill(talker, signal.SIGSTOP)
    try:
        process.go_on()
        assert process.line() == str(LOAD)
        yield
    finally:
        with suppress(ProcessLookupError):  # it goes with its deployment
            kill(talker, signal.SIGCONT)


async def replicas(client: AsyncClient) -> list[dict[str, int]]:
    stages = (await client.status())["stages"]
    return [one for stage in STAGES for one in stages[stage]["replicas"]]


@asynccontextmanager
async def reached(deployment: Running, client: AsyncClient, phase: str) -> AsyncIterator[Sequence[Asking]]:
    """Requests in that phase. A stopped Talker keeps them there; it goes with the router."""
    talker = (await replica(client, "talker/0"))["pid"]
    asked: Sequence[Asking] = await (load(client) if phase == "submission" else streaming(client))
    kill(talker, signal.SIGSTOP)
    if phase == "submission":
        await status_when(client, lambda status: status["live_requests"] == LOAD)
    elif phase == "abort":
        await aborting(client, asked)
    elif phase == "drain":
        deployment.process.send_signal(signal.SIGTERM)
        await status_when(client, lambda status: status["state"] == "draining")
    assert not any(asking.task.done() for asking in asked)
    yield asked


class TestCallers:
    SETS = (*FAST, *PACE, *PATIENT, *QUIET, "router.terminal_grace_s=600")
    LATE = "stage.code2wav.options.terminal_delay_ms=3600000"

    def test_a7_killed_during_submission_stream_abort_and_with_its_terminals_withheld(self) -> None:
        """Text beside it is not touched; sound would be withheld here for ever."""

        async def scenario(client: AsyncClient) -> None:
            for what, name in (("ask", "quiet"), ("stream", "quiet"), ("withheld", "whole"), ("abort", "quiet")):
                beside = Beside(client, [f"well-{n}" for n in range(4)], 40, modalities=["text"])
                await beside.under_way()
                with caller(what, name=name) as process, going_on(process, what):
                    kill(process.pid)
                    process.process.wait()
                    await beside.are_right()
                await status_when(client, lambda status: status["live_requests"] == status["bindings"] == 0)
            counters = (await client.status())["counters"]
            assert (counters["aborted"], counters["failed"], counters["redriven"]) == (4 * LOAD, 0, 0)

        with launched("synthetic", *self.SETS, self.LATE, "router.heartbeat_timeout_s=60") as deployment:
            play(deployment, scenario)
            assert deployment.stop() == 0

    def test_a7_killed_during_a_drain(self) -> None:
        with launched("synthetic", *self.SETS) as deployment, caller("stream") as process:
            deployment.process.send_signal(signal.SIGTERM)
            assert eventually(lambda: deployment.status()["state"] == "draining")
            assert deployment.status()["live_requests"] == LOAD
            kill(process.pid)
            assert deployment.process.wait(LIMIT_S) == 0

    def test_b1_stopped_it_pauses_and_goes_on_where_it_was(self) -> None:
        async def scenario(client: AsyncClient) -> None:
            with caller("stop", name="slow", length=40) as process:
                await status_when(client, lambda status: status["paused"] == LOAD)
                beside = Beside(client, [f"well-{n}" for n in range(4)], 40)
                await beside.are_right()
                assert (await client.status())["paused"] == LOAD
                kill(process.pid, signal.SIGCONT)
                assert await asyncio.to_thread(process.line) == f"{LOAD} whole"
                assert process.process.wait(LIMIT_S) == 0

        with launched("synthetic", *self.SETS, "router.output_window=16") as deployment:
            play(deployment, scenario)
            assert deployment.stop() == 0


class TestOwners:
    @pytest.mark.parametrize("what", ["ask", "stream", "withheld", "abort", "close"])
    def test_f6_killed_its_deployment_goes_with_it(self, home: Path, what: str) -> None:
        """`close`: its deployment is draining then."""
        sets = [*TestCallers.SETS, TestCallers.LATE, "router.abort_timeout_s=0.3", "router.heartbeat_timeout_s=60"]
        with caller(what, *sets, name="whole" if what == "withheld" else "quiet") as owner:
            assert len(os.listdir(home / "run" / "omnizmq")) == 1
            with going_on(owner, what):
                kill(owner.pid)
                owner.process.wait()
                assert eventually(lambda: os.listdir(home / "run" / "omnizmq") == [], LIMIT_S)

    def test_f6_stopped_its_deployment_waits_for_it(self) -> None:
        with caller("stop", *TestCallers.SETS, "router.output_window=16", name="slow", length=40) as owner:
            with Client.connect() as client:
                assert eventually(lambda: client.status()["paused"] == LOAD)
            kill(owner.pid, signal.SIGCONT)
            assert owner.line() == f"{LOAD} whole"
            assert owner.process.wait(LIMIT_S) == 0
