"""`omnizmq restart` and `omnizmq drain` on a real deployment: replicas go and come back, and no request is lost."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from support.running import (
    Asking,
    Held,
    Running,
    alive,
    collect,
    document,
    eventually,
    launched,
    omnizmq,
    samples_of,
    text_of,
)

from omnizmq import AsyncClient
from omnizmq.errors import InvalidRequestError, ReplicaLostError, UnavailableError

pytestmark = pytest.mark.usefixtures("no_leaks")

NEVER = "one two three"  # what a quiet request is asked, of which it says two words
QUIET = ("stage.thinker.options.silent_at=3", "stage.thinker.options.fault_only=quiet")
TONE = 2400  # samples for each word


async def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command, while this process's requests go on."""
    return await asyncio.to_thread(omnizmq, *arguments)


async def replica(client: AsyncClient, id_: str) -> dict[str, Any]:
    stage, _, number = id_.partition("/")
    found: dict[str, Any] = (await client.status())["stages"][stage]["replicas"][int(number)]
    return found


async def when(client: AsyncClient, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The status when that holds."""
    async with asyncio.timeout(20):
        while not holds(status := await client.status()):
            await asyncio.sleep(0.02)
    return status


def run(deployment: Running, scenario: Callable[[AsyncClient], Any]) -> None:
    """With a client; afterwards nothing is left in any table (B3)."""

    async def connected() -> None:
        async with AsyncClient.connect(deployment.name) as client:
            await scenario(client)

    asyncio.run(connected())
    assert eventually(deployment.idle), deployment.status()
    assert deployment.status()["counters"]["router_errors"] == 0


class TestRestart:
    def test_under_load_two_replicas_are_replaced_one_after_the_other_and_no_request_is_lost(self) -> None:
        async def scenario(client: AsyncClient) -> None:
            over = asyncio.Event()
            answered = []

            async def ask(number: int) -> None:
                words = f"caller {number} asks for this"
                while not over.is_set():
                    outputs = await collect(client, words)
                    assert (text_of(outputs), samples_of(outputs)) == (words, 5 * TONE)
                    assert outputs[-1].finish_reason == "stop"
                    answered.append(number)

            before = [await replica(client, id_) for id_ in ("talker/0", "talker/1")]
            asking = [asyncio.create_task(ask(number)) for number in range(6)]
            restart = asyncio.create_task(command("restart", "talker", "--json", "--connect", client.name))
            ready = []
            while not restart.done():
                replicas = (await client.status())["stages"]["talker"]["replicas"]
                ready.append(sum(one["state"] == "ready" for one in replicas))
                await asyncio.sleep(0.02)
            done = await restart
            count = len(answered)
            over.set()
            await asyncio.gather(*asking)
            assert done.returncode == 0, done.stderr
            assert count > 0
            assert min(ready) == 1  # one went while the other served
            after = document(done)["replicas"]
            assert [one["id"] for one in after] == ["talker/0", "talker/1"]
            assert [(one["state"], one["restarts"]) for one in after] == [("ready", 1), ("ready", 1)]
            for old, new in zip(before, after, strict=True):
                assert new["pid"] != old["pid"]
                assert not alive(old["pid"])

        with launched("synthetic", "stage.talker.replicas=2", "stage.thinker.options.interval_ms=10") as deployment:
            run(deployment, scenario)
            counters = deployment.status()["counters"]
            assert (counters["failed"], counters["refused"], counters["aborted"]) == (0, 0, 0)

    def test_one_replica_alone_is_replaced(self) -> None:
        async def scenario(client: AsyncClient) -> None:
            before = [await replica(client, id_) for id_ in ("talker/0", "talker/1")]
            await client.restart("talker/1")
            after = [await replica(client, id_) for id_ in ("talker/0", "talker/1")]
            assert after[0]["pid"] == before[0]["pid"]
            assert after[1]["pid"] != before[1]["pid"]
            assert (after[1]["state"], after[1]["incarnation"]) == ("ready", 2)
            assert text_of(await collect(client, "still here")) == "still here"

        with launched("synthetic", "stage.talker.replicas=2") as deployment:
            run(deployment, scenario)

    def test_while_the_only_replica_is_replaced_new_requests_wait_and_are_not_refused(self) -> None:
        async def scenario(client: AsyncClient) -> None:
            old = await replica(client, "talker/0")
            holder = Asking(client, NEVER, request_id="quiet")
            await holder.has(2)
            restart = asyncio.create_task(command("restart", "talker", "--connect", client.name))
            await when(client, lambda status: status["stages"]["talker"]["replicas"][0]["state"] != "ready")
            waiting = [asyncio.create_task(collect(client, f"number {number}")) for number in range(4)]
            await when(client, lambda status: status["queued"] == 4)
            assert text_of(await collect(client, "text alone", modalities=["text"])) == "text alone"
            assert not any(one.done() for one in waiting)
            assert not restart.done()
            assert await client.abort("quiet") == 1
            assert await holder.error() is None
            done = await restart
            assert [text_of(await one) for one in waiting] == [f"number {number}" for number in range(4)]
            assert done.returncode == 0, done.stderr
            new = await replica(client, "talker/0")
            assert done.stdout.startswith(f"restarted talker/0 (pid {new['pid']}) in ")
            assert new["pid"] != old["pid"]
            said = done.stderr.splitlines()
            assert said.index("talker/0: loading") < said.index("talker/0: ready")

        with launched("synthetic", *QUIET, "stage.talker.options.start_delay_ms=1500") as deployment:
            run(deployment, scenario)

    def test_a_request_that_outlives_the_timeout_stops_it_and_goes_on(self) -> None:
        async def scenario(client: AsyncClient) -> None:
            asking = Asking(client, NEVER, request_id="quiet", modalities=["text"])
            await asking.has(2)
            before = await replica(client, "thinker/0")
            done = await command("restart", "thinker", "--timeout", "0.5", "--connect", client.name)
            assert (done.returncode, done.stdout) == (1, "")
            assert done.stderr.splitlines()[-1].startswith("omnizmq restart: ")
            assert "thinker/0" in done.stderr.splitlines()[-1]
            assert not asking.task.done()
            after = await replica(client, "thinker/0")
            assert (after["pid"], after["state"], after["restarts"]) == (before["pid"], "ready", 0)
            assert text_of(await collect(client, "served again")) == "served again"
            assert await client.abort("quiet") == 1
            assert await asking.error() is None
            assert [output.text for output in asking.outputs] == ["one", " two", None, None]

        with launched("synthetic", *QUIET) as deployment:
            run(deployment, scenario)

    def test_it_waits_for_requests_that_end_in_time(self) -> None:
        async def scenario(client: AsyncClient) -> None:
            asking = Held(client, "one two three four five six", after=1)
            await asking.has(1)
            restart = asyncio.create_task(client.restart("thinker"))
            await when(client, lambda status: status["stages"]["thinker"]["replicas"][0]["state"] != "ready")
            assert not restart.done()
            assert await asking.error() is None
            await restart
            assert text_of(asking.outputs) == "one two three four five six"
            assert (await replica(client, "thinker/0"))["restarts"] == 1

        with launched("synthetic", "router.output_window=2") as deployment:
            run(deployment, scenario)

    def test_f2_with_force_what_has_not_ended_is_driven_anew_on_another_replica(self) -> None:
        async def scenario(client: AsyncClient) -> None:
            asking = Asking(client, NEVER, request_id="quiet", modalities=["text"])
            await asking.has(2)
            replicas = (await client.status())["stages"]["thinker"]["replicas"]
            (holder,) = [one for one in replicas if one["inflight"] == 1]
            done = await command("restart", holder["id"], "--force", "--timeout", "0.5", "--connect", client.name)
            assert done.returncode == 0, done.stderr
            assert await asking.error() is None
            assert text_of(asking.outputs) == NEVER  # what had been said is not said again
            assert (await replica(client, holder["id"]))["pid"] != holder["pid"]
            assert not alive(holder["pid"])

        with launched(
            "synthetic", "stage.thinker.replicas=2", "stage.thinker.options.fault_once=true", *QUIET
        ) as deployment:
            run(deployment, scenario)

    def test_f2_with_force_and_without_a_second_try_it_ends_with_replica_lost(self) -> None:
        async def scenario(client: AsyncClient) -> None:
            asking = Asking(client, NEVER, request_id="quiet", modalities=["text"])
            await asking.has(2)
            await client.restart("thinker/0", timeout_s=0.5, force=True)
            error = await asking.error()
            assert isinstance(error, ReplicaLostError)
            assert error.replica == "thinker/0"
            assert text_of(await collect(client, "served again")) == "served again"

        with launched("synthetic", "router.redrive=never", *QUIET) as deployment:
            run(deployment, scenario)


class TestDrain:
    SETS = ("stage.talker.replicas=2", "stage.talker.policy=round_robin", *QUIET)

    @staticmethod
    async def quiet(client: AsyncClient, count: int, name: str) -> list[Asking]:
        asking = [Asking(client, NEVER, request_id=f"quiet-{name}-{number}") for number in range(count)]
        for one in asking:
            await one.has(2)
        return asking

    @staticmethod
    async def end(client: AsyncClient, *asking: Asking) -> None:
        for one in asking:
            assert await client.abort(one.outputs[0].request_id) == 1
            assert await one.error() is None

    def test_a_drained_replica_is_idle_takes_nothing_and_comes_back(self) -> None:
        async def inflight(client: AsyncClient) -> list[int]:
            return [one["inflight"] for one in (await client.status())["stages"]["talker"]["replicas"]]

        async def scenario(client: AsyncClient) -> None:
            before = await self.quiet(client, 2, "before")
            assert await inflight(client) == [1, 1]
            drain = asyncio.create_task(client.drain("talker/0"))
            await when(client, lambda status: status["stages"]["talker"]["replicas"][0]["state"] == "draining")
            meanwhile = await self.quiet(client, 2, "meanwhile")
            assert await inflight(client) == [1, 3]
            assert not drain.done()
            await self.end(client, *before)
            await drain
            later = await self.quiet(client, 2, "later")
            assert await inflight(client) == [0, 4]
            drained = await replica(client, "talker/0")
            assert (drained["state"], drained["restarts"]) == ("draining", 0)
            again = await command("drain", "talker/0", "--connect", client.name)
            assert (again.returncode, again.stderr, again.stdout) == (
                0,
                "",
                "drained talker/0: it takes no new requests until `omnizmq drain talker/0 --undo`\n",
            )
            undone = await command("drain", "talker/0", "--undo", "--json", "--connect", client.name)
            assert document(undone)["replicas"][0]["state"] == "ready"
            back = await self.quiet(client, 4, "back")
            assert (await inflight(client))[0] > 0
            await self.end(client, *meanwhile, *later, *back)

        with launched("synthetic", *self.SETS) as deployment:
            run(deployment, scenario)

    def test_one_that_is_not_idle_in_time_says_so_and_takes_nothing_new_all_the_same(self) -> None:
        async def scenario(client: AsyncClient) -> None:
            (asking,) = await self.quiet(client, 1, "long")
            done = await command("drain", "thinker/0", "--timeout", "0.5", "--connect", client.name)
            assert (done.returncode, done.stdout) == (1, "")
            first, said = done.stderr.splitlines()
            assert first == "thinker/0: draining, 1 request left"
            assert said.startswith("omnizmq drain: ")
            assert "thinker/0" in said
            assert isinstance(await Asking(client, "hi").error(), UnavailableError)
            assert not asking.task.done()
            await self.end(client, asking)
            await client.resume("thinker/0")
            assert text_of(await collect(client, "served again")) == "served again"

        with launched("synthetic", *QUIET) as deployment:
            run(deployment, scenario)

    def test_f4_without_its_last_replica_a_stage_is_unavailable_and_others_serve(self) -> None:
        async def scenario(client: AsyncClient) -> None:
            await client.drain("talker/0")
            error = await Asking(client, "hi").error()
            assert isinstance(error, UnavailableError)
            assert (error.stage, error.retriable) == ("talker", True)
            assert (await client.status())["ready"] is False
            assert text_of(await collect(client, "text alone", modalities=["text"])) == "text alone"
            await client.resume("talker/0")
            assert (await client.status())["ready"] is True
            assert samples_of(await collect(client, "and sound")) == 2 * TONE

        with launched("synthetic") as deployment:
            run(deployment, scenario)


def test_what_does_not_exist_is_wrong_usage_and_named() -> None:
    async def scenario(client: AsyncClient) -> None:
        for arguments, named in (
            (("restart", "talkr"), "talkr"),
            (("restart", "talker/7"), "talker/7"),
            (("drain", "talkr/0"), "talkr"),
            (("drain", "talker/7"), "talker/7"),
            (("drain", "talker/7", "--undo"), "talker/7"),
            (("drain", "talker"), "talker/0"),  # what would be right
        ):
            done = await command(*arguments, "--connect", client.name)
            assert (done.returncode, done.stdout) == (2, ""), arguments
            assert done.stderr.startswith(f"omnizmq {arguments[0]}: ")
            assert named in done.stderr
            assert done.stderr.count("\n") == 1
        with pytest.raises(InvalidRequestError):
            await client.restart("talkr")
        states = [one["state"] for stage in (await client.status())["stages"].values() for one in stage["replicas"]]
        assert states == ["ready"] * 3

    with launched("synthetic") as deployment:
        run(deployment, scenario)
