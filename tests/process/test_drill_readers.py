"""Callers that stop reading, with others beside them: they alone pause, and past the grace they alone end (B1).

What is asked here is long: one text output is 4 KiB, and a request makes far more of them than its window holds.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from support.drill import FAST, play, replica, status_when
from support.drill_peers import Peer, hello
from support.running import Running, collect, launched, text_of

from omnizmq import AsyncClient, RequestOutput, runtime
from omnizmq import protocol as wire
from omnizmq.errors import SlowReaderError
from omnizmq.workers.engines.synthetic_pattern import text_pattern

pytestmark = pytest.mark.usefixtures("no_leaks")

KIB = 1024
OUTPUT = 4 * KIB
WINDOW = 16
OUTPUTS = 1500
"""Of one request: 6 MB."""

LONG = (
    "stage.thinker.options.echo=false",
    f"stage.thinker.options.chunks={OUTPUTS}",
    f"stage.thinker.options.chunk_bytes={OUTPUT}",
    "stage.thinker.max_inflight=8",
    "stage.thinker.max_registered=100",
    f"router.output_window={WINDOW}",
)
FEW = {"thinker": {"max_tokens": 40}}


def answer(external_id: str, count: int) -> str:
    return "".join(text_pattern(external_id, "thinker", number, OUTPUT) for number in range(1, count + 1))


async def others_are_right(client: AsyncClient, count: int = 8) -> None:
    """Who reads gets all, however small the window is, and whoever else does not."""
    names = [f"swift-{number}" for number in range(count)]
    asked = (collect(client, "x", request_id=name, modalities=["text"], params=FEW) for name in names)
    for name, outputs in zip(names, await asyncio.gather(*asked), strict=True):
        assert text_of(outputs) == answer(name, 40)
        assert (outputs[-1].finish_reason, outputs[-1].usage["thinker"]["completion_tokens"]) == ("length", 40)


class Reader:
    """A caller that takes an output when it is told to."""

    def __init__(self, client: AsyncClient, name: str) -> None:
        self.name = name
        self.text = ""
        self._outputs: AsyncGenerator[RequestOutput, None] = client.generate("x", request_id=name, modalities=["text"])

    async def read(self, outputs: int) -> None:
        for _ in range(outputs):
            self.text += (await anext(self._outputs)).text or ""

    async def rest(self) -> SlowReaderError:
        """What it ended with, after what there is to read."""
        try:
            async for output in self._outputs:
                self.text += output.text or ""
        except SlowReaderError as error:
            return error
        raise AssertionError("it ended well")

    async def close(self) -> None:
        await self._outputs.aclose()


def test_b1_a_caller_that_never_reads_pauses_and_nobody_else_does_until_the_grace_is_over() -> None:
    async def scenario(client: AsyncClient) -> None:
        async with AsyncClient.connect() as other:
            reader = Reader(other, "never")
            await reader.read(1)
            status = await status_when(client, lambda status: status["paused"] == 1)
            assert status["counters"]["unconsumed"] <= WINDOW
            await others_are_right(client)
            await others_are_right(other)  # the same connection, too
            await status_when(client, lambda status: status["counters"]["failed"] == 1)
            error = await reader.rest()
            assert (error.code, error.stage, error.replica, error.retriable) == (
                "slow_reader",
                "thinker",
                "thinker/0",
                False,
            )
            assert "(router.slow_reader_grace_s)" in error.message
            assert reader.text == answer("never", len(reader.text) // OUTPUT)
            assert len(reader.text) == WINDOW * OUTPUT  # what was delivered stands
            assert (await client.status())["counters"]["failed"] == 1

    with launched("synthetic", *FAST, *LONG, "router.slow_reader_grace_s=1") as deployment:
        play(deployment, scenario)
        assert deployment.stop() == 0


def test_b1_a_caller_that_reads_too_little_in_the_grace_ends_and_one_that_reads_enough_does_not() -> None:
    """An eighth of the window, which is two outputs, is worth a credit; without one for a whole grace it is over."""

    async def scenario(client: AsyncClient) -> None:
        enough, too_little = Reader(client, "enough"), Reader(client, "little")
        await asyncio.gather(enough.read(2), too_little.read(2))
        await status_when(client, lambda status: status["paused"] == 2)
        while (await client.status())["counters"]["failed"] == 0:
            await enough.read(2)
            await asyncio.sleep(0.2)
        error = await too_little.rest()
        assert isinstance(error, SlowReaderError)
        assert too_little.text == answer("little", len(too_little.text) // OUTPUT)
        for _ in range(12):  # for longer than the grace, all together
            await enough.read(2)
            await asyncio.sleep(0.2)
        assert enough.text == answer("enough", len(enough.text) // OUTPUT)
        assert (await client.status())["counters"]["failed"] == 1
        await enough.close()

    with launched("synthetic", *FAST, *LONG, "router.slow_reader_grace_s=2") as deployment:
        play(deployment, scenario)
        assert deployment.stop() == 0


CALLERS = 64
SLACK = 24 * KIB * KIB
"""What a router may grow by for 64 connections and requests, whatever they have asked."""


class TestSixtyFour:
    """Connections that do not even take what is in their sockets."""

    @pytest.fixture
    def deployment(self, home: Path) -> Iterator[Running]:  # noqa: ARG002 (its environment)
        sets = ("router.slow_reader_grace_s=3", "stage.thinker.options.max_batch=8")
        with launched("synthetic", *FAST, *LONG, *sets) as deployment:
            yield deployment
            assert deployment.stop() == 0

    def test_b1_they_do_not_grow_the_router_and_a_fast_one_gets_its_answers(
        self, deployment: Running, home: Path
    ) -> None:
        async def scenario(client: AsyncClient) -> None:
            await others_are_right(client)
            before, outputs = rss(deployment.pid), (await client.status())["counters"]["outputs"]
            with unread(home, CALLERS) as peers:
                await status_when(client, lambda status: status["paused"] == CALLERS)
                status = await client.status()
                assert status["counters"]["outputs"] - outputs == CALLERS * WINDOW
                assert status["counters"]["unconsumed"] == CALLERS * WINDOW
                assert (await replica(client, "thinker/0"))["active"] == 0  # they take nobody's place
                await others_are_right(client)
                assert rss(deployment.pid) - before < 4 * CALLERS * WINDOW * OUTPUT + SLACK
                await status_when(client, lambda status: status["counters"]["failed"] == CALLERS)
                for number, peer in enumerate(peers):
                    assert_cut(peer, f"slow-{number}")

        play(deployment, scenario)


@contextmanager
def unread(home: Path, count: int) -> Iterator[list[Peer]]:
    nonce = runtime.find().nonce
    peers: list[Peer] = []
    try:
        for number in range(count):
            peers.append(Peer(home, "clients.sock"))
            peers[-1].says(hello(nonce))
            name = f"slow-{number}"
            prompt = wire.Prompt("x", None, None)
            submit = wire.Submit(f"{name}-{number:016x}", name, prompt, ["text"], {}, 0, None, None, WINDOW, 0, None)
            peers[-1].says(*wire.Packer().pack(submit))
        yield peers
    finally:
        for peer in peers:
            peer.close()


def assert_cut(peer: Peer, name: str) -> None:
    """Its window's outputs, then the error."""
    assert isinstance(peer.hears(), wire.Welcome)
    text = ""
    while not isinstance(frame := peer.hears(), wire.Terminal):
        assert isinstance(frame, wire.Delivery)
        assert isinstance(frame.content, wire.Text)
        text += frame.content.text
    assert frame.error is not None
    assert (frame.finish_reason, frame.error.code) == ("error", "slow_reader")
    assert text == answer(name, WINDOW)


def rss(pid: int) -> int:
    return int(psutil.Process(pid).memory_info().rss)
