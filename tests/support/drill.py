"""What the drills share: healthy requests beside the one that is struck, and what is right of an answer.

A drill's prompts are numbered words, so an answer shows by itself whether anything is missing, doubled or another
request's. All deployments are of `synthetic`: text that echoes the prompt, and a tone of 0.1 s a word.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import numpy as np

from omnizmq import AsyncClient, RequestOutput
from omnizmq.errors import OmnizmqError
from omnizmq.workers.engines.synthetic_pattern import tone
from support.running import Asking, Running, text_of, until
from support.stress_watch import not_quiet

STAGES = ("thinker", "talker", "code2wav")
EDGES = {"thinker": "thinker->talker", "talker": "talker->code2wav"}
HEARTBEAT_S = 0.1
FAST = (
    f"router.heartbeat_interval_s={HEARTBEAT_S}",
    "router.heartbeat_timeout_s=1.5",
    "router.restart_delay_s=0.02",
    "router.max_restart_delay_s=0.05",
)
"""A dead worker is noticed soon, and is soon back."""

LIMIT_S = 30.0


def words(name: str, count: int) -> str:
    return " ".join(f"{name}.{number}" for number in range(1, count + 1))


def heard(outputs: Sequence[RequestOutput]) -> int:
    """Words of text that have come."""
    return len(text_of(list(outputs)).split())


def sounds(outputs: Sequence[RequestOutput]) -> int:
    """Tones that have come, each of them whole and the right one."""
    tones = [output.audio for output in outputs if output.audio is not None]
    for number, came in enumerate(tones, 1):
        assert np.array_equal(came, tone(number)), f"tone {number} is another one"
    return len(tones)


def assert_part(outputs: Sequence[RequestOutput], prompt: str) -> None:
    """Whatever came is the beginning of the right answer, once and in order, and nothing says that it is the end."""
    text = text_of(list(outputs))
    assert prompt.startswith(text), text
    assert sounds(outputs) <= len(prompt.split())
    assert not any(output.finished for output in outputs)


def assert_whole(
    outputs: Sequence[RequestOutput], prompt: str, *, usage_incomplete: tuple[str, ...] = (), redriven: bool = False
) -> None:
    """All that was asked for, once and in order; each stage's end once; one terminal, which is the last thing.

    `redriven`: another attempt made it, which may cut its outputs otherwise.
    """
    terminals = [output for output in outputs if output.finished]
    assert len(terminals) == 1
    assert outputs[-1] is terminals[0]
    terminal = terminals[0]
    assert (terminal.stage, terminal.modality, terminal.finish_reason) == ("code2wav", "audio", "stop")
    assert (terminal.text, terminal.audio) == (None, None)
    assert sorted(output.stage for output in outputs if output.stage_finished) == ["code2wav", "thinker"]
    assert len({output.request_id for output in outputs}) == 1
    assert text_of(list(outputs)) == prompt
    count = len(prompt.split())
    if redriven:
        came = np.concatenate([output.audio for output in outputs if output.audio is not None])
        assert np.array_equal(came, np.concatenate([tone(number) for number in range(1, count + 1)]))
    else:
        assert sounds(outputs) == count
    assert terminal.usage_incomplete == usage_incomplete
    for stage in set(STAGES) - set(usage_incomplete):
        assert terminal.usage[stage]["completion_tokens"] == count, stage


class Beside:
    """Healthy requests that were under way before a fault, and have right answers after it."""

    def __init__(self, client: AsyncClient, names: Sequence[str], count: int, **options: Any) -> None:
        self._text_alone = options.get("modalities") == ["text"]
        self._asked = {words(name, count): name for name in names}
        self._asking = {
            prompt: Asking(client, prompt, request_id=name, **options) for prompt, name in self._asked.items()
        }

    @property
    def outputs(self) -> list[list[RequestOutput]]:
        return [asking.outputs for asking in self._asking.values()]

    async def under_way(self) -> None:
        await until(lambda: all(self.outputs))

    async def are_right(self, *, redriven: bool = False) -> None:
        for prompt, asking in self._asking.items():
            error = await asking.error()
            assert error is None, f"{self._asked[prompt]}: {error.code}: {error}"
            if self._text_alone:
                assert text_of(asking.outputs) == prompt
                assert asking.outputs[-1].finish_reason == "stop"
            else:
                assert_whole(asking.outputs, prompt, redriven=redriven)


@asynccontextmanager
async def healthy(client: AsyncClient, count: int = 4, length: int = 12) -> AsyncIterator[None]:
    """Requests that are under way all the while, and must come out right; a later attempt may have made them."""
    beside = Beside(client, [f"well-{number}" for number in range(count)], length)
    await beside.under_way()
    yield
    await beside.are_right(redriven=True)


async def ended(asking: Asking, code: str, stage: str | None, *, replica: str | None = None) -> OmnizmqError:
    """The error that it ended with, which must be this one. `replica`: by default the stage's first."""
    error = await asking.error()
    assert error is not None, "it ended well"
    expected = f"{stage}/0" if replica is None and stage is not None else replica
    assert (error.code, error.stage, error.replica) == (code, stage, expected), error
    return error


async def both_ended(asking: Asking) -> None:
    """Wait until text and sound have ended; the terminal may be awaited still."""
    await until(lambda: sum(output.stage_finished for output in asking.outputs) == 2)


async def quiet(client: AsyncClient) -> None:
    """B3: every table is empty, every replica serves, no byte of a ring is in use, and the workers' next heartbeats say
    so too."""
    calm = 0
    async with asyncio.timeout(LIMIT_S):
        while calm < 3:
            going = not_quiet(await client.status())
            calm = 0 if going else calm + 1
            await asyncio.sleep(HEARTBEAT_S)
    assert (await client.status())["paused"] == 0


@asynccontextmanager
async def bound_together(client: AsyncClient, count: int) -> AsyncIterator[None]:
    """What is asked in here, so many requests, is bound before anything of it is computed: the Thinker is stopped. So a
    stage that takes only a few of them at a time has the others in its worker's queue, and not in the router's."""
    thinker = (await replica(client, "thinker/0"))["pid"]
    os.kill(thinker, signal.SIGSTOP)
    try:
        yield
        await status_when(client, lambda status: (status["live_requests"], status["queued"]) == (count, 0))
    finally:
        os.kill(thinker, signal.SIGCONT)


async def status_when(client: AsyncClient, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The status when that holds."""
    async with asyncio.timeout(LIMIT_S):
        while not holds(status := await client.status()):
            await asyncio.sleep(0.01)
    return status


async def replica(client: AsyncClient, id_: str) -> dict[str, Any]:
    stage, _, number = id_.partition("/")
    found: dict[str, Any] = (await client.status())["stages"][stage]["replicas"][int(number)]
    return found


async def back(client: AsyncClient, id_: str, incarnation: int) -> None:
    """Wait until this incarnation of the replica serves."""
    async with asyncio.timeout(LIMIT_S):
        while ((one := await replica(client, id_))["state"], one["incarnation"]) != ("ready", incarnation):
            await asyncio.sleep(0.02)


@asynccontextmanager
async def stopped(client: AsyncClient, id_: str) -> AsyncIterator[None]:
    """The replica's process is, in here."""
    pid = (await replica(client, id_))["pid"]
    with stopped_process(pid):
        yield


@contextmanager
def stopped_process(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):  # it may have been given up
            os.kill(pid, signal.SIGCONT)


async def ready(client: AsyncClient, id_: str) -> None:
    """Wait until the replica serves."""
    async with asyncio.timeout(LIMIT_S):
        while (await replica(client, id_))["state"] != "ready":
            await asyncio.sleep(0.02)


def play(deployment: Running, scenario: Callable[[AsyncClient], Any]) -> None:
    """With a client. Afterwards nothing is left in any table, and the router met no error of its own."""

    async def whole() -> None:
        async with AsyncClient.connect(deployment.name) as client:
            try:
                await scenario(client)
                await quiet(client)
            except BaseException:
                await cancel_the_rest()
                raise
            assert (await client.status())["counters"]["router_errors"] == 0

    asyncio.run(whole())


async def cancel_the_rest() -> None:
    """So that a drill that has failed says nothing but why."""
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
