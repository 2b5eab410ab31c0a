"""Connections that ask for nothing or take nothing are closed; no more are held than there may be. On real sockets."""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

pytest.importorskip("uvicorn", reason="not installed: the extra `http`")

import uvicorn
from support.running import until
from uvicorn.server import ServerState

from omnizmq.frontend.http import connections

pytestmark = pytest.mark.http

ASK = b"GET / HTTP/1.1\r\nhost: here\r\n\r\n"
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def app(_: Any, __: Any, send: Any) -> None:
    """Answers later than a connection may be silent."""
    await asyncio.sleep(4 * connections.HEAD_S)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


async def large(_: Any, __: Any, send: Any) -> None:
    """More than sockets hold."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for _ in range(64):
        await send({"type": "http.response.body", "body": bytes(1 << 20), "more_body": True})
    await send({"type": "http.response.body"})


async def whole(_: Any, __: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"67108864")]})
    await send({"type": "http.response.body", "body": bytes(64 << 20)})


@asynccontextmanager
async def serving(app: Any = app) -> AsyncIterator[int]:
    async with served(app) as (port, _):
        yield port


@asynccontextmanager
async def served(app: Any) -> AsyncIterator[tuple[int, ServerState]]:
    config = uvicorn.Config(app, lifespan="off", log_config=None, http=connections.Connection, timeout_keep_alive=60)
    config.load()
    state = ServerState()
    made = lambda: connections.Connection(config=config, server_state=state, app_state={})  # noqa: E731
    async with await asyncio.get_running_loop().create_server(made, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1], state
        for one in list(state.connections):
            one.transport.abort()


async def sent(port: int, data: bytes) -> Streams:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    return reader, writer


async def read(streams: Streams) -> bytes:
    """All that comes until it is closed, or reset."""
    data = b""
    with suppress(ConnectionResetError):
        async with asyncio.timeout(20):
            data = await streams[0].read()
    streams[1].close()
    return data


@pytest.mark.parametrize("data", [b"", ASK[:-2]])
def test_one_that_does_not_ask_in_time_is_closed(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(connections, "HEAD_S", 0.1)

    async def scenario() -> None:
        async with serving() as port:
            assert await read(await sent(port, data)) == b""

    asyncio.run(scenario())


@pytest.mark.parametrize("rest", [b"", ASK[:-2]])
def test_an_answer_takes_as_long_as_it_takes_and_then_time_begins_again(
    monkeypatch: pytest.MonkeyPatch, rest: bytes
) -> None:
    monkeypatch.setattr(connections, "HEAD_S", 0.1)

    async def scenario() -> None:
        async with serving() as port:
            streams = await sent(port, ASK)
            async with asyncio.timeout(20):
                head = await streams[0].readuntil(b"ok")
            assert head.startswith(b"HTTP/1.1 200")
            streams[1].write(rest)
            assert await read(streams) == b""

    asyncio.run(scenario())


@pytest.mark.parametrize("data", [b"\0\n\r\n\r\n", ASK[:-2] + b"transfer-encoding: chunked\r\n\r\nnone\r\n"])
def test_what_is_no_http_is_refused_in_the_shape_of_every_refusal(data: bytes) -> None:
    async def scenario() -> None:
        async with serving() as port:
            head, _, body = (await read(await sent(port, data))).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 400 ")
            assert b"\r\nx-should-retry: false" in head
            assert json.loads(body)["error"] == {
                "message": "Invalid HTTP request received.",
                "type": "invalid_request_error",
                "param": None,
                "code": "invalid_request",
            }

    asyncio.run(scenario())


def test_what_is_no_http_after_an_answer_ends_the_connection(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connections, "HEAD_S", 0.1)

    async def scenario() -> None:
        async with serving() as port:
            streams = await sent(port, ASK[:-2] + b"transfer-encoding: chunked\r\n\r\n")
            async with asyncio.timeout(20):
                await streams[0].readuntil(b"ok")
            streams[1].write(b"none\r\n")
            assert await read(streams) == b""

    asyncio.run(scenario())
    assert [record.getMessage() for record in caplog.records] == ["Invalid HTTP request received."]


def test_more_than_there_may_be_are_closed_at_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connections, "MOST", 2)
    monkeypatch.setattr(connections.Connection, "_complained", 0.0)

    async def scenario() -> None:
        async with serving() as port:
            held = [await sent(port, b"") for _ in range(2)]
            for _ in range(3):
                assert await read(await sent(port, ASK)) == b""
            for _, writer in held:
                writer.close()

    asyncio.run(scenario())
    assert [record.getMessage() for record in caplog.records] == [
        "more than 2 connections: new ones are closed at once"
    ]


@asynccontextmanager
async def asked(port: int, data: bytes) -> AsyncIterator[socket.socket]:
    """By a caller that reads nothing."""
    with socket.create_connection(("127.0.0.1", port)) as caller:
        caller.setblocking(False)
        await asyncio.get_running_loop().sock_sendall(caller, data)
        yield caller


@pytest.mark.parametrize("answer", [large, whole])
@pytest.mark.parametrize("data", [ASK, ASK[:-2] + b"connection: close\r\n\r\n", ASK * 100])
def test_one_that_takes_nothing_of_an_answer_is_closed(
    monkeypatch: pytest.MonkeyPatch, answer: Any, data: bytes
) -> None:
    monkeypatch.setattr(connections.Connection, "stall_s", 0.1)

    async def scenario() -> None:
        async with served(answer) as (port, state), asked(port, data):
            await until(lambda: state.total_requests > 0 or bool(state.tasks))
            await until(lambda: not state.connections and not state.tasks)

    asyncio.run(scenario())


def test_one_that_takes_something_of_an_answer_each_time_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "LOOK_S", 0.01)
    monkeypatch.setattr(connections.Connection, "stall_s", 0.1)
    looks = itertools.count()
    monkeypatch.setattr(connections.tcp, "acknowledged", lambda _: next(looks))

    async def scenario() -> None:
        async with served(large) as (port, state), asked(port, ASK):
            await until(lambda: next(looks) > 100)
            assert state.connections

    asyncio.run(scenario())


def paused(state: ServerState) -> bool:
    return all(one.flow is not None and one.flow.read_paused for one in state.connections)


@pytest.mark.parametrize("rest", [b"", b"\r\n", ASK])
def test_one_that_goes_is_known_to_have_gone_whatever_it_has_sent(rest: bytes) -> None:
    told = []

    async def waits(_: Any, receive: Any, __: Any) -> None:
        while (message := await receive())["type"] != "http.disconnect":
            told.append(message)
        told.append(message)

    async def scenario() -> None:
        async with served(waits) as (port, state):
            async with asked(port, ASK) as caller:
                await until(lambda: len(told) == 1)
                await asyncio.get_running_loop().sock_sendall(caller, rest)
                await until(lambda: not rest or paused(state))
            await until(lambda: len(told) == 2 and not state.connections)

    asyncio.run(scenario())


def test_an_answer_without_its_end_is_cut_off_after_all_that_was_written(caplog: pytest.LogCaptureFixture) -> None:
    async def cut_off(_: Any, __: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": bytes(8 << 20), "more_body": True})

    async def scenario() -> None:
        async with serving(cut_off) as port:
            answer = await read(await sent(port, ASK))
            assert answer.count(0) == 8 << 20
            assert not answer.endswith(b"0\r\n\r\n")

    asyncio.run(scenario())
    assert not caplog.records


def test_a_stop_does_not_wait_for_an_answer_that_nobody_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "STOP_S", 0.1)

    async def scenario() -> None:
        async with served(large) as (port, state), asked(port, ASK):
            await until(lambda: bool(state.tasks))
            for one in list(state.connections):
                one.shutdown()
            await until(lambda: not state.connections and not state.tasks)

    asyncio.run(scenario())


def test_after_a_body_whose_length_is_said_twice_the_connection_is_closed() -> None:
    async def hello(_: Any, __: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    async def scenario() -> None:
        async with serving(hello) as port:
            twice = b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"
            answer = await read(await sent(port, ASK[:-2] + twice + ASK))
            assert answer.count(b"HTTP/1.1 200 ") == 1
            assert b"\r\nconnection: close\r\n" in answer

    asyncio.run(scenario())


@pytest.mark.parametrize(("descriptors", "held"), [(1 << 20, 4096), (1024, 512), (256, 96), (64, 1)])
def test_descriptors_are_left_for_all_else(monkeypatch: pytest.MonkeyPatch, descriptors: int, held: int) -> None:
    monkeypatch.setattr(connections.resource, "getrlimit", lambda _: (descriptors, 1 << 20))
    assert connections.most() == held
