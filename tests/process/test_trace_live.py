"""`omnizmq trace` of a live request: what its router and workers answer, and when they do not (T1, T2)."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from support.drill import FAST, LIMIT_S, both_ended, words
from support.running import OMNIZMQ, Asking, Running, launched, omnizmq

from omnizmq import AsyncClient

pytestmark = pytest.mark.usefixtures("no_leaks")

PROMPT = words("w", 5)
PATIENT = ("router.heartbeat_timeout_s=600", "router.abort_timeout_s=0.5", "router.redrive=never")


def look(deployment: Running, id_: str) -> dict[str, Any]:
    done = omnizmq("trace", id_, "--json", "--connect", deployment.name)
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


async def looks(deployment: Running, id_: str, cause: str) -> dict[str, Any]:
    """What is said as soon as it is this cause."""
    while (found := await asyncio.to_thread(look, deployment, id_))["verdict"]["cause"] != cause:
        pass
    return found


def named(document: dict[str, Any]) -> tuple[str, str, str]:
    verdict = document["verdict"]
    return verdict["stage"], verdict["replica"], verdict["owner"]


def play(deployment: Running, scenario: Callable[[AsyncClient], Awaitable[None]]) -> None:
    """With a client. What hangs is left to the deployment's end."""

    async def whole() -> None:
        async with asyncio.timeout(LIMIT_S), AsyncClient.connect(deployment.name) as client:
            await scenario(client)

    asyncio.run(whole())


TALKER = ("talker", "talker/0", "talker/0")


def test_t2_an_engine_that_hangs_then_a_worker_and_then_the_router_that_are_stopped() -> None:
    async def scenario(client: AsyncClient) -> None:
        asking = Asking(client, PROMPT, request_id="stuck", modalities=["text", "audio"])
        found = await looks(deployment, "stuck", "stuck_step")
        assert named(found) == TALKER
        assert "the engine of talker/0 has been in one step" in found["verdict"]["text"]
        assert found["live"]["stages"]["talker"]["answer"]["engine"] == "stepping"

        worker = deployment.worker_pid("talker/0")
        os.kill(worker, signal.SIGSTOP)
        try:
            found = await looks(deployment, "stuck", "worker_silent")
            assert named(found) == TALKER
            assert found["live"]["silent"] == ["talker/0"]
        finally:
            os.kill(worker, signal.SIGCONT)

        os.kill(deployment.pid, signal.SIGSTOP)
        try:
            found = await looks(deployment, "stuck", "router_silent")
            assert found["verdict"]["owner"] == "router"
            assert found["live"] is None
        finally:
            os.kill(deployment.pid, signal.SIGCONT)
        assert await client.abort("stuck") == 1
        await asking.error()
        ended = await asyncio.to_thread(deployment.trace, "stuck")
        assert (ended["verdict"]["cause"], ended["verdict"]["replica"]) == ("aborted", "talker/0")

    with launched("synthetic", *FAST, *PATIENT, "stage.talker.options.hang_at=3") as deployment:
        play(deployment, scenario)


def test_t2_a_report_that_withholds_the_terminal_and_a_request_that_is_in_no_trace() -> None:
    async def scenario(client: AsyncClient) -> None:
        asking = Asking(client, PROMPT, request_id="late", modalities=["text", "audio"])
        await both_ended(asking)
        found = await looks(deployment, "late", "report")
        assert named(found) == TALKER
        assert found["verdict"]["text"].endswith(" (the trace has no row of it)")
        assert found["external_id"] == "late"
        shown = await asyncio.to_thread(omnizmq, "trace", "late")
        assert "(tracing is off: live answers alone)" in shown.stdout
        command = [*OMNIZMQ, "trace", "late", "--follow"]
        following = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        assert following.stdout is not None
        assert b"(tracing is off: live answers alone)" in await following.stdout.readline()
        assert await client.abort("late") == 1
        await asking.error()
        last = (await following.communicate())[0].decode().splitlines()[-1]
        assert "the router holds it no more, and its end was not recorded" in last
        assert following.returncode == 0
        off = ": tracing is off in deployment synthetic (router.trace)"
        for asked, said in (("late", "no request with id 'late' is known"), ("--last", "no request is stored")):
            for follow in ((), ("--follow",)):
                done = await asyncio.to_thread(omnizmq, "trace", asked, *follow)
                assert (done.returncode, done.stderr) == (1, f"omnizmq trace: {said}{off}\n")
        done = await asyncio.to_thread(omnizmq, "trace", "late", "--connect", deployment.name)
        assert done.returncode == 1
        assert done.stderr.endswith(f"{off}\n")
        for options in ((), ("--connect", deployment.name)):
            done = await asyncio.to_thread(omnizmq, "trace", "--failed", *options)
            assert (done.returncode, done.stderr) == (0, "")
            assert done.stdout.endswith(f"{off}\n")

    late = "stage.talker.options.terminal_delay_ms=3600000"
    with launched(
        "synthetic", *FAST, *PATIENT, "router.terminal_grace_s=600", "router.trace=false", late
    ) as deployment:
        play(deployment, scenario)
