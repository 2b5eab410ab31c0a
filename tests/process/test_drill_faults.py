"""Each fault at the first, a middle and the last output, on each stage, with healthy requests beside it (F1, F2, R4).

One deployment for a fault and a number: all three stages have it, and each strikes the requests that name the stage. A
request of as many words as that number is struck at its last output, a longer one in the middle.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from support.drill import (
    EDGES,
    FAST,
    STAGES,
    assert_part,
    assert_whole,
    back,
    ended,
    healthy,
    heard,
    play,
    replica,
    sounds,
    words,
)
from support.running import Asking, Running, launched

from omnizmq import AsyncClient

pytestmark = pytest.mark.usefixtures("no_leaks")

SILENCE = tuple(f"edge.{edge}.input_timeout_s=0.5" for edge in EDGES.values())
PACE = ("stage.thinker.options.interval_ms=20", "stage.talker.options.interval_ms=5")
WHERE = pytest.mark.parametrize("number", [1, 3])


def struck(fault: str, number: int) -> tuple[str, ...]:
    """Settings: on each stage, this fault at this output of the requests that name the stage."""
    options = [(f"options.{fault}={number}", f"options.fault_only=at-{stage}-", stage) for stage in STAGES]
    return tuple(f"stage.{stage}.{text}" for *texts, stage in options for text in texts)


def cases(number: int) -> Iterator[tuple[str, str, str]]:
    """Stage, external id and prompt of each request that is struck."""
    for stage in STAGES:
        for where, length in (("first", 3),) if number == 1 else (("middle", 6), ("last", number)):
            name = f"at-{stage}-{where}"
            yield stage, name, words(name, length)


def assert_partial(asking: Asking, stage: str, number: int, prompt: str) -> None:
    """The struck stage's own output stands up to the fault, where it is a final one; others' as far as it went."""
    assert_part(asking.outputs, prompt)
    if stage == "thinker":
        assert heard(asking.outputs) == number - 1
    assert sounds(asking.outputs) == number - 1 if stage == "code2wav" else sounds(asking.outputs) < number


def play_together(deployment: Running, number: int, strike: Callable[[AsyncClient, str, str, str], Any]) -> None:
    """All cases at once, and healthy requests beside them. Nobody is lost over it."""

    async def scenario(client: AsyncClient) -> None:
        async with healthy(client):
            await asyncio.gather(*(strike(client, *case) for case in cases(number)))
        for stage in STAGES:
            assert (await replica(client, f"{stage}/0"))["restarts"] == 0

    play(deployment, scenario)
    counters = deployment.status()["counters"]
    assert (counters["redriven"], counters["bad_frames"]) == (0, 0)
    assert deployment.stop() == 0


@WHERE
def test_f1_a_stage_that_fails_ends_its_request_with_its_error_and_no_other(number: int) -> None:
    async def strike(client: AsyncClient, stage: str, name: str, prompt: str) -> None:
        asking = Asking(client, prompt, request_id=name)
        error = await ended(asking, "stage_error", stage)
        assert error.message == f"told to fail at output {number} (fail_at)"
        assert not error.retriable
        assert_partial(asking, stage, number, prompt)

    with launched("synthetic", *FAST, *PACE, *struck("fail_at", number)) as deployment:
        play_together(deployment, number, strike)


@WHERE
def test_r4_a_stage_that_falls_silent_is_named_with_its_edge_and_last_sequence_number(number: int) -> None:
    """What no edge waits for, its request's deadline ends."""

    async def strike(client: AsyncClient, stage: str, name: str, prompt: str) -> None:
        waited_for = stage in EDGES
        asking = Asking(client, prompt, request_id=name, deadline_s=None if waited_for else 1.0)
        if waited_for:
            error = await ended(asking, "input_timeout", stage)
            last = f"after chunk {number - 1}" if number > 1 else "from the start"
            assert all(part in error.message for part in (f"edge {EDGES[stage]}", f"{stage}/0", last)), error
            assert error.retriable
        else:
            await ended(asking, "deadline_exceeded", None)
        assert_partial(asking, stage, number, prompt)

    with launched("synthetic", *FAST, *PACE, *SILENCE, *struck("silent_at", number)) as deployment:
        play_together(deployment, number, strike)


@WHERE
def test_f2_a_step_that_is_long_within_its_limit_harms_nobody(number: int) -> None:
    """It lasts a second: longer than its consumers' edges may be silent (R4)."""

    async def strike(client: AsyncClient, stage: str, name: str, prompt: str) -> None:  # noqa: ARG001 (of every case)
        asking = Asking(client, prompt, request_id=name)
        assert await asking.error() is None
        assert_whole(asking.outputs, prompt)

    with launched("synthetic", *FAST, *PACE, *SILENCE, *struck("slow_at", number)) as deployment:
        play_together(deployment, number, strike)


@WHERE
@pytest.mark.parametrize("fault", ["crash_at", "hang_at"])
def test_f2_a_worker_that_dies_or_hangs_is_replaced_and_all_it_had_is_driven_again(
    home: Path, fault: str, number: int
) -> None:
    """One of every stage, all at about the same time; then once more."""
    once = [f"stage.{stage}.options.fault_once=true" for stage in STAGES]
    limits = [f"stage.{stage}.step_timeout_s=1" for stage in STAGES]
    marks = home / "run" / "omnizmq" / "synthetic" / "engines"

    async def strike(client: AsyncClient, stage: str, name: str, prompt: str) -> None:
        before = (await replica(client, f"{stage}/0"))["incarnation"]
        asking = Asking(client, prompt, request_id=name, params={"thinker": {"logprobs": 1}})
        assert await asking.error() is None
        assert_whole(asking.outputs, prompt, redriven=True)
        assert b"".join(each.token for output in asking.outputs for each in output.logprobs).decode() == prompt
        await back(client, f"{stage}/0", before + 1)

    async def scenario(client: AsyncClient) -> None:
        for round_ in sorted({name.rpartition("-")[2] for _, name, _ in cases(number)}):
            async with healthy(client, length=8):
                await asyncio.gather(*(strike(client, *case) for case in cases(number) if case[1].endswith(round_)))
            struck_here = sorted(marks.glob("*.struck"))
            assert len(struck_here) == len(STAGES)
            for mark in struck_here:
                mark.unlink()  # for the next round

    sets = (*FAST, *PACE, *once, *limits, "router.redrive=wait", "router.max_attempts=10", *struck(fault, number))
    with launched("synthetic", *sets) as deployment:
        play(deployment, scenario)
        counters = deployment.status()["counters"]
        assert counters["replicas_lost"] == len(list(cases(number)))
        assert counters["redriven"] >= len(list(cases(number)))
        assert deployment.stop() == 0


@WHERE
def test_f2_without_a_second_try_the_dead_ones_requests_end_and_the_others_do_not(number: int) -> None:
    """The struck request and its company go to one replica of the stage, the healthy ones to the other."""
    two = [f"stage.{stage}.{setting}" for stage in STAGES for setting in ("replicas=2", "policy=affinity")]

    async def scenario(client: AsyncClient) -> None:
        for stage, name, prompt in cases(number):
            bad = int(name.endswith("last"))
            well = words("well", 12)
            others = [Asking(client, well, request_id=f"well-{n}", affinity=KEYS[1 - bad]) for n in range(3)]
            for other in others:
                await other.has(1)
            asking = Asking(client, prompt, request_id=name, affinity=KEYS[bad])
            error = await ended(asking, "replica_lost", stage, replica=f"{stage}/{bad}")
            assert error.message == f"{stage}/{bad} died: killed by SIGKILL"
            assert error.retriable
            assert_part(asking.outputs, prompt)
            for other in others:
                assert await other.error() is None
                assert_whole(other.outputs, well)
            await back(client, f"{stage}/{bad}", 2)

    sets = (*FAST, *PACE, *two, "router.redrive=never", *struck("crash_at", number))
    with launched("synthetic", *sets) as deployment:
        play(deployment, scenario)
        assert deployment.status()["counters"]["failed"] == len(list(cases(number)))
        assert deployment.stop() == 0


def key_to(number: int) -> str:
    """An affinity key that leads to the replica of this number in every stage of two (rendezvous hashing)."""

    def chosen(key: str, stage: str) -> int:
        return max((0, 1), key=lambda number: sha256(f"{stage}/{number} {key}".encode()).digest())

    return next(key for key in map(str, count()) if all(chosen(key, stage) == number for stage in STAGES))


KEYS = (key_to(0), key_to(1))
