"""T2 after a `kill -9` of the router while requests stand still: what was known is said, and no stage is blamed.

Looked at by the command in a process of its own: at once, while the workers still notice; when nothing of the
deployment is left; and when another one of that name runs.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.drill import STAGES, cancel_the_rest, words
from support.running import OMNIZMQ, Asking, Running, alive, eventually, kill, launched, omnizmq
from support.trace_drill import CALM, HELD, HOLD, Case, ask, events, steps, struck
from support.trace_watch import Document, Expected, Watch

from omnizmq import AsyncClient, RequestOutput
from omnizmq.errors import OmnizmqError, RouterLostError

pytestmark = pytest.mark.usefixtures("no_leaks")


@dataclass(frozen=True)
class Stuck:
    """A request, how it is seen to stand still, and what its sentence has to name. `end`: what its caller gets."""

    id: str
    end: Awaitable[object]
    stands: Callable[[Document], bool]
    says: tuple[str, ...]
    boundaries: tuple[str, ...] = ()

    @property
    def lost(self) -> Expected:
        """Nobody's move it is."""
        says = ("lost with its router", "killed", *self.says)
        return Expected(("router_lost",), boundaries=self.boundaries, says=says)


def of(client: AsyncClient, case: Case) -> Stuck:
    return Stuck(case.id, ask(client, case).error(), case.stands, (f"awaited then: {case.replica}",), case.boundaries)


def drilled(home: Path, sets: Sequence[str], begin: Callable[[AsyncClient], Awaitable[list[Stuck]]]) -> None:
    """A deployment of its own, in which all that has begun stands still when its router is killed."""

    async def look(watch: Watch, when: str, stuck: Sequence[Stuck]) -> None:
        for one in stuck:
            watch.judge(one.id, when, await asyncio.to_thread(watch.look_from_outside, one.id), one.lost)

    async def whole(deployment: Running, watch: Watch) -> list[Stuck]:
        workers = await asyncio.to_thread(deployment.worker_pids)
        async with AsyncClient.connect(deployment.name) as client:
            try:
                stuck = await begin(client)
                for one in stuck:
                    await watch.when(one.id, one.stands)
                kill(deployment.pid)
                await look(watch, "router killed", stuck)
                for one in stuck:
                    assert isinstance(await one.end, RouterLostError)
            except BaseException:
                await cancel_the_rest()
                raise
        assert eventually(lambda: not any(map(alive, workers)))
        assert eventually(lambda: os.listdir(home / "run" / "omnizmq") == [])
        await look(watch, "all gone", stuck)
        return stuck

    with launched("synthetic", *sets) as deployment:
        watch = Watch(deployment.name)
        stuck = asyncio.run(whole(deployment, watch))
    with launched("synthetic") as another:
        assert another.name == watch.name
        asyncio.run(look(watch, "another runs", stuck))
        assert another.stop() == 0
    listed = omnizmq("trace", "--failed").stdout
    assert all(one.id in listed for one in stuck)
    watch.all_right()


def test_f6_an_engine_that_makes_nothing_more(home: Path) -> None:
    async def begin(client: AsyncClient) -> list[Stuck]:
        return [of(client, Case(f"quiet-at-{stage}-middle", stage, 2, 3)) for stage in STAGES]

    drilled(home, (*CALM, *HELD), begin)


@pytest.mark.parametrize("stage", STAGES)
def test_f6_a_step_that_does_not_end(home: Path, stage: str) -> None:
    async def begin(client: AsyncClient) -> list[Stuck]:
        return [of(client, Case(f"hang-at-{stage}-middle", stage, 2, 3))]

    drilled(home, (*CALM, *struck("hang_at", 2)), begin)


def test_f6_a_request_that_waits_for_a_place_and_the_one_that_has_it(home: Path) -> None:
    async def begin(client: AsyncClient) -> list[Stuck]:
        holder = of(client, HOLD)
        await asyncio.sleep(0)  # it goes first
        behind = Asking(client, "one two", request_id="behind").error()
        return [
            holder,
            Stuck(
                "behind",
                behind,
                lambda seen: "queued" in events(seen),
                ("talker/0 ready, 0/1 in flight, 1/1 registered",),
                ("queued",),
            ),
        ]

    drilled(home, (*CALM, *HELD, "stage.talker.max_inflight=1", "stage.talker.max_registered=1"), begin)


def test_f6_a_report_that_does_not_come(home: Path) -> None:
    def stands(seen: Document) -> bool:
        return "withheld" in events(seen)

    async def begin(client: AsyncClient) -> list[Stuck]:
        end = Asking(client, words("w", 3), request_id="withheld").error()
        return [Stuck("withheld", end, stands, ("for talker/0's report",), ("withheld",))]

    drilled(home, (*CALM, "stage.talker.options.terminal_delay_ms=3600000"), begin)


def test_f6_a_caller_that_does_not_read(home: Path) -> None:
    def stands(seen: Document) -> bool:
        return "paused" in steps(seen, "thinker")

    async def begin(client: AsyncClient) -> list[Stuck]:
        outputs = client.generate(words("w", 12), request_id="unread", modalities=["text"])
        await anext(outputs)
        return [Stuck("unread", rest_of(outputs), stands, ("thinker/0 waits for the caller to read",))]

    drilled(home, (*CALM, "router.output_window=2", "router.slow_reader_grace_s=3600"), begin)


async def rest_of(outputs: AsyncIterator[RequestOutput]) -> OmnizmqError | None:
    try:
        async for _ in outputs:
            pass
    except OmnizmqError as error:
        return error
    return None


@pytest.mark.usefixtures("home")
def test_f6_who_follows_it_is_told() -> None:
    case = Case("quiet-at-talker-middle", "talker", 2, 3)

    async def begin(deployment: Running) -> None:
        async with AsyncClient.connect(deployment.name) as client:
            asking = ask(client, case)
            await Watch(deployment.name).when(case.id, case.stands)
            command = [*OMNIZMQ, "trace", case.id, "--follow"]
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
                assert process.stdout is not None
                line = await asyncio.to_thread(lambda: next(line for line in process.stdout if "now: " in line))
                assert line.startswith("now: talker/0 ")
                kill(deployment.pid)
                out, err = await asyncio.to_thread(process.communicate, timeout=30)
            assert (process.returncode, err) == (0, "")
            assert out.splitlines()[-1].startswith("lost with its router, which ended some time after ")
            assert isinstance(await asking.error(), RouterLostError)

    with launched("synthetic", *CALM, *HELD) as deployment:
        asyncio.run(begin(deployment))
