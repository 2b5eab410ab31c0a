"""Callers on a real deployment: those that all go at once, one that is busy and has not gone (A7), and those that read
slowly, or not at all (B1)."""

from __future__ import annotations

import asyncio
import subprocess
import time
from pathlib import Path
from subprocess import PIPE

import pytest
from support.running import OMNIZMQ, Asking, Running, collect, eventually, launched, text_of, until

from omnizmq import AsyncClient

pytestmark = pytest.mark.usefixtures("deployment")

SETS = (
    "stage.thinker.options.silent_at=3",
    "stage.thinker.options.fault_only=quiet",
    "stage.thinker.options.interval_ms=25",
    "router.max_queued=1000",
    "router.heartbeat_interval_s=0.1",
    "router.heartbeat_timeout_s=1",
    "router.output_window=16",
)
CALLERS = 500


@pytest.fixture
def home(module_home: Path) -> Path:
    return module_home


def test_a7_500_callers_that_are_cancelled_at_once_all_abort(deployment: Running) -> None:
    """Some have outputs, some wait for their first, some are queued; a request beside them is not touched."""

    async def scenario() -> None:
        async with AsyncClient.connect(deployment.name) as client, AsyncClient.connect(deployment.name) as other:
            asking = [Asking(client, "one two three", request_id=f"quiet-{number}") for number in range(CALLERS)]
            await asking[0].has(2)
            await until(lambda: sum(map(bool, (one.outputs for one in asking))) > 10)
            beside = Asking(other, "one two three", request_id="quiet-beside", priority=1)
            while (await client.status())["live_requests"] < CALLERS + 1:
                await asyncio.sleep(0.02)
            assert len(client._table) == CALLERS
            for one in asking:
                one.task.cancel()
            results = await asyncio.gather(*(one.task for one in asking), return_exceptions=True)
            assert all(isinstance(result, asyncio.CancelledError) for result in results)
            assert len(client._table) == 0
            await beside.has(2)
            status = await other.status()
            assert (status["live_requests"], status["queued"], status["leftovers"]) == (1, 0, 0)
            assert await other.abort("quiet-beside") == 1
            assert await beside.error() is None

    before = deployment.status()["counters"]
    asyncio.run(scenario())
    assert eventually(deployment.idle)
    after = deployment.status()["counters"]
    assert after["aborted"] == before["aborted"] + CALLERS + 1
    assert (after["failed"], after["router_errors"]) == (before["failed"], 0)


def test_a7_a_busy_caller_is_not_mistaken_for_a_gone_one(deployment: Running) -> None:
    """Its loop does nothing for three times as long as a worker may be silent; the request pauses at its window."""
    words = " ".join(f"word{number}" for number in range(60))

    async def scenario() -> None:
        async with AsyncClient.connect(deployment.name) as client:
            text = ""
            async for output in client.generate(words, modalities=["text"]):
                if not text:
                    time.sleep(3)
                    assert deployment.status()["paused"] == 1
                text += output.text or ""
            assert text == words

    before = deployment.status()["counters"]
    asyncio.run(scenario())
    after = deployment.status()["counters"]
    assert after["aborted"] == before["aborted"]


def test_b1_a_window_much_smaller_than_the_answer_pauses_and_loses_nothing(deployment: Running) -> None:
    """For a caller that reads on when its stage has paused, one that never waits, and one that wants the whole."""
    words = " ".join(f"word{number}" for number in range(60))

    async def late(client: AsyncClient) -> str:
        text = ""
        async for output in client.generate(words, modalities=["text"]):
            while not text and (await client.status())["paused"] == 0:
                await asyncio.sleep(0.02)
            text += output.text or ""
        return text

    async def scenario() -> None:
        async with AsyncClient.connect(deployment.name) as client:
            swift = collect(client, words, modalities=["text"])
            whole = collect(client, words, modalities=["text"], output_kind="final")
            texts = await asyncio.wait_for(asyncio.gather(late(client), swift, whole), 30)
            assert (texts[0], text_of(texts[1]), text_of(texts[2])) == (words, words, words)

    asyncio.run(scenario())
    assert deployment.status()["paused"] == 0


def test_b1_a_chat_that_nobody_reads_ends_with_one_clear_line() -> None:
    """Its pipe is full, so it takes nothing more; what it was told when it reads on is how its request ended."""
    sets = (
        "stage.thinker.options.echo=false",
        "stage.thinker.options.chunks=1000",
        "stage.thinker.options.chunk_bytes=4096",
        "router.output_window=16",
        "router.slow_reader_grace_s=0.5",
        "router.heartbeat_interval_s=0.1",
    )
    with launched("synthetic", *sets, name="slow") as slow:
        chat = subprocess.Popen([*OMNIZMQ, "chat", "hi", "--connect", "slow"], stdout=PIPE, stderr=PIPE, text=True)
        try:
            assert eventually(lambda: slow.status()["counters"]["failed"] == 1)
            out, err = chat.communicate(timeout=20)
        finally:
            chat.kill()
            chat.wait()
        assert chat.returncode == 1
        assert 16 * 4096 <= len(out) < 100 * 4096
        assert err.startswith("omnizmq chat: thinker/0: ")
        assert err.count("\n") == 1
        assert eventually(slow.idle)
