"""A terminal that is withheld because one stage's report is late, and what may happen meanwhile (C2, C3, C5).

Two final stages, text and sound. Any one of the three stages ends its output with the others and reports much later.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from support.drill import (
    FAST,
    LIMIT_S,
    STAGES,
    assert_whole,
    back,
    both_ended,
    ended,
    play,
    replica,
    sounds,
    status_when,
    words,
)
from support.running import Asking, Held, Running, kill, launched, text_of, until

from omnizmq import AsyncClient
from omnizmq.errors import RouterLostError

pytestmark = pytest.mark.usefixtures("no_leaks")

LATE = pytest.mark.parametrize("late", STAGES)
NEVER_MS = 3_600_000
PROMPT = words("w", 5)
WAITS = ("router.terminal_grace_s=600", "router.redrive=wait")


def reports_after(stage: str, delay_ms: int) -> str:
    return f"stage.{stage}.options.terminal_delay_ms={delay_ms}"


async def withheld(client: AsyncClient, count: int) -> list[Asking]:
    """Requests whose outputs are all there, and whose terminals are not."""
    asked = [Asking(client, PROMPT, request_id=f"r{number}") for number in range(count)]
    for asking in asked:
        await both_ended(asking)
        assert (text_of(asking.outputs), sounds(asking.outputs)) == (PROMPT, 5)
    assert (await client.status())["live_requests"] == count
    assert not any(asking.task.done() for asking in asked)
    return asked


@LATE
def test_c2_both_outputs_are_there_at_once_and_the_terminal_comes_later_with_complete_usage(late: str) -> None:
    async def scenario(client: AsyncClient) -> None:
        asked = [Asking(client, PROMPT, request_id=f"r{number}") for number in range(4)]
        for asking in asked:
            assert await asking.error() is None
            assert_whole(asking.outputs, PROMPT)

    with launched("synthetic", *FAST, *WAITS, reports_after(late, 1000)) as deployment:
        play(deployment, scenario)
        trace = deployment.trace("r0")
        (fact,) = [event for event in trace["events"] if event["event"] == "withheld"]
        assert late in fact["stages"].split(",")
        terminal_ms = trace["terminal"]["at_ms"]
        assert fact["at_ms"] < trace["stages"][late]["finished_ms"] <= terminal_ms
        ended_ms = [event["at_ms"] for event in trace["events"] if event["event"] == "output_ended"]
        assert len(ended_ms) == 2
        assert max(ended_ms) < trace["stages"][late]["finished_ms"]


@LATE
def test_c5_whatever_ends_the_waiting_both_outputs_stand_and_one_terminal_names_who_is_missing(late: str) -> None:
    """Another stage's replica is killed, which changes nothing; the late stage's is killed; it is stopped; the deadline
    passes; the caller aborts; the caller goes away."""

    async def scenario(client: AsyncClient) -> None:
        other = STAGES[(STAGES.index(late) + 1) % 3]
        async with ends_well(client, late):
            kill((await replica(client, f"{other}/0"))["pid"])
            await back(client, f"{other}/0", 2)
            assert (await client.status())["live_requests"] == 3
            kill((await replica(client, f"{late}/0"))["pid"])
        await back(client, f"{late}/0", 2)
        async with ends_well(client, late):
            kill((await replica(client, f"{late}/0"))["pid"], signal.SIGSTOP)
        await back(client, f"{late}/0", 3)
        asked = [Asking(client, PROMPT, request_id=f"r{number}", deadline_s=1.5) for number in range(3)]
        await all_whole_but(asked, late)
        await aborted(client)
        await cancelled(client)
        assert (await client.status())["counters"]["redriven"] == 0

    with launched("synthetic", *FAST, *WAITS, reports_after(late, NEVER_MS)) as deployment:
        play(deployment, scenario)
        counters = deployment.status()["counters"]
        assert (counters["finished"], counters["aborted"], counters["failed"]) == (9, 6, 0)
        assert deployment.stop() == 0


@asynccontextmanager
async def ends_well(client: AsyncClient, late: str) -> AsyncIterator[None]:
    """What is done in here to requests whose terminal is withheld lets it go."""
    asked = await withheld(client, 3)
    yield
    await all_whole_but(asked, late)


async def all_whole_but(asked: Sequence[Asking], late: str) -> None:
    """They end well, without that stage's report."""
    for asking in asked:
        assert await asking.error() is None
        assert_whole(asking.outputs, PROMPT, usage_incomplete=(late,))


async def aborted(client: AsyncClient) -> None:
    for number, asking in enumerate(await withheld(client, 3)):
        assert await client.abort(f"r{number}") == 1
        assert await asking.error() is None
        terminals = [output for output in asking.outputs if output.finished]
        assert [(one.stage, one.modality, one.finish_reason) for one in terminals] == [("code2wav", "audio", "abort")]
        assert (text_of(asking.outputs), sounds(asking.outputs)) == (PROMPT, 5)
        assert sum(output.stage_finished for output in asking.outputs) == 2
        assert terminals[0].usage.keys() == set(STAGES)  # an abort is a report


async def cancelled(client: AsyncClient) -> None:
    for asking in await withheld(client, 3):
        asking.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking.task
    await status_when(client, lambda status: status["live_requests"] == 0)


@LATE
def test_c5_a_drain_waits_for_what_is_withheld_and_ends_with_it(late: str) -> None:
    async def scenario(deployment: Running) -> None:
        async with AsyncClient.connect(deployment.name) as client:
            asked = await withheld(client, 3)
            deployment.process.send_signal(signal.SIGTERM)
            await status_when(client, lambda status: status["state"] == "draining")
            assert not any(asking.task.done() for asking in asked)
            kill((await replica(client, f"{late}/0"))["pid"])
            await all_whole_but(asked, late)

    with launched("synthetic", *FAST, *WAITS, reports_after(late, NEVER_MS)) as deployment:
        asyncio.run(scenario(deployment))
        assert deployment.process.wait(LIMIT_S) == 0


def test_f6_outputs_stand_when_the_router_is_killed_before_the_terminal() -> None:
    async def scenario(deployment: Running) -> None:
        async with AsyncClient.connect(deployment.name) as client:
            asked = await withheld(client, 3)
            kill(deployment.pid)
            for asking in asked:
                assert isinstance(await asking.error(), RouterLostError)
                assert (text_of(asking.outputs), sounds(asking.outputs)) == (PROMPT, 5)
                assert not any(output.finished for output in asking.outputs)

    with launched("synthetic", *FAST, *WAITS, reports_after("talker", NEVER_MS)) as deployment:
        asyncio.run(scenario(deployment))


@pytest.mark.parametrize("fault", ["fail_at", "crash_at"])
def test_c5_with_the_text_complete_a_talker_that_fails_leaves_it_and_one_error(fault: str) -> None:
    """It is stopped until the text has ended, so that is what comes first."""
    count = 12
    prompt = words("w", count)
    sets = (
        f"stage.talker.options.{fault}={count}",
        "stage.talker.options.fault_only=bad",
        "router.output_window=4",
        "router.heartbeat_timeout_s=60",
        "router.redrive=never",
    )
    code = {"fail_at": "stage_error", "crash_at": "replica_lost"}[fault]

    async def scenario(client: AsyncClient) -> None:
        names = [f"{name}-{n}" for n in range(2) for name in ("bad", "good")]
        asked = [Held(client, prompt, after=1, request_id=name) for name in names]
        for asking in asked:
            await asking.has(1)
        talker = (await replica(client, "talker/0"))["pid"]
        kill(talker, signal.SIGSTOP)
        for asking in asked:
            asking.go_on()
        try:
            await until(lambda: all(text_of(asking.outputs) == prompt for asking in asked))
            await until(lambda: all(any(o.stage_finished for o in asking.outputs) for asking in asked))
        finally:
            kill(talker, signal.SIGCONT)
        for asking in asked[::2]:
            await ended(asking, code, "talker")
            assert text_of(asking.outputs) == prompt
            assert [output.stage for output in asking.outputs if output.stage_finished] == ["thinker"]
            assert not any(output.finished for output in asking.outputs)
            assert sounds(asking.outputs) < count
        for asking in asked[1::2]:
            if fault == "fail_at":
                assert await asking.error() is None
                assert_whole(asking.outputs, prompt)
            else:  # they were bound to it, too
                await ended(asking, code, "talker")
        if fault == "crash_at":
            await back(client, "talker/0", 2)

    with launched("synthetic", *FAST, *sets) as deployment:
        play(deployment, scenario)
        assert deployment.stop() == 0
