"""Operators get in whoever else is connected, and take nobody's place (B1)."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from support.drill import status_when
from support.running import OMNIZMQ, Asking, Running, collect, document, launched, omnizmq, text_of

from omnizmq import AsyncClient, Client
from omnizmq.errors import InvalidRequestError, OverloadedError

SETS = (
    *("router.max_clients=2", "router.max_operators=1"),
    *("stage.thinker.options.silent_at=3", "stage.thinker.options.fault_only=quiet"),
)
NEVER = "one two three"


@pytest.fixture(autouse=True)
def deployment(no_leaks: None) -> Iterator[Running]:  # noqa: ARG001 (it looks before and after)
    with launched("synthetic", *SETS) as running:
        yield running
        assert running.stop() == 0


def test_b1_a_client_too_many_is_refused_and_every_command_of_an_operator_works() -> None:
    async def command(*arguments: str) -> tuple[dict[str, Any], int]:
        done = await asyncio.to_thread(omnizmq, *arguments, "--json")
        return document(done), done.returncode

    async def scenario() -> None:
        async with AsyncClient.connect() as client, AsyncClient.connect():
            asking = Asking(client, NEVER, request_id="quiet")
            await asking.has(2)
            with pytest.raises(
                OverloadedError, match=r"2 clients are connected already \(router.max_clients\)"
            ) as full:
                async with AsyncClient.connect():
                    pass
            assert full.value.retriable
            refused, code = await command("chat", "hi")
            assert (refused["error"]["code"], code) == ("overloaded", 1)
            status, code = await command("status")
            assert (status["live_requests"], code) == (1, 0)
            for done, code in (
                await command("abort", "quiet"),
                await command("drain", "talker/0"),
                await command("drain", "talker/0", "--undo"),
                await command("restart", "talker"),
            ):
                assert (done.get("error"), code) == (None, 0)
            assert await asking.error() is None
            assert asking.outputs[-1].finish_reason == "abort"

    asyncio.run(scenario())
    assert omnizmq("chat", "there is room again").stdout == "there is room again\n"


def test_b1_operators_have_a_limit_too_and_take_no_place_of_a_client() -> None:
    async def scenario() -> None:
        async with AsyncClient.connect(operator=True) as operator:
            with pytest.raises(OverloadedError, match=r"1 operators are connected already \(router.max_operators\)"):
                async with AsyncClient.connect(operator=True):
                    pass
            async with AsyncClient.connect(), AsyncClient.connect() as client:
                assert text_of(await collect(client, "both of them")) == "both of them"
                assert (await operator.status())["ready"] is True
        async with AsyncExitStack() as room:
            for _ in range(3):  # one after another
                async with AsyncClient.connect(operator=True):
                    pass
            for _ in range(2):
                await room.enter_async_context(AsyncClient.connect())

    asyncio.run(scenario())


def test_b1_who_follows_a_request_keeps_one_connection() -> None:
    """Nobody else gets in between two looks of it."""

    async def scenario() -> None:
        command = [*OMNIZMQ, "trace", "quiet", "--follow"]
        async with AsyncClient.connect() as client:
            asking = Asking(client, NEVER, request_id="quiet")
            await asking.has(2)
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
                shown = process.stdout
                assert shown is not None
                assert await asyncio.to_thread(lambda: any(line.startswith("now: ") for line in shown))
                for _ in range(20):
                    with pytest.raises(OverloadedError):
                        await AsyncClient.connect(operator=True).__aenter__()
                await client.abort("quiet")
                said = (await asyncio.to_thread(process.communicate, timeout=20))[1]
            assert (process.returncode, said) == (0, "")
            assert await asking.error() is None

    asyncio.run(scenario())


def test_an_operator_who_goes_is_no_caller_who_is_gone() -> None:
    async def scenario() -> None:
        async with AsyncClient.connect(operator=True) as operator:
            async with AsyncClient.connect():
                pass
            await status_when(operator, lambda seen: seen["counters"]["clients_gone"] == 1)
        for command in (("status",), ("abort", "nobody"), ("trace", "nobody")):
            await asyncio.to_thread(omnizmq, *command)
        async with AsyncClient.connect(operator=True) as operator:
            assert (await operator.status())["counters"]["clients_gone"] == 1

    asyncio.run(scenario())


def test_b1_an_operator_submits_nothing_and_is_told_so() -> None:
    with Client.connect(operator=True) as operator:
        before = operator.status()["counters"]
        with pytest.raises(InvalidRequestError, match="an operator's connection, which submits nothing") as refused:
            next(operator.generate("hi", request_id="mine"))
        assert refused.value.request_id is not None
        after = operator.status()["counters"]
        assert (after["refused"], after["requests"]) == (before["refused"] + 1, before["requests"])
        assert operator.abort("mine") == 0
