"""Connections that ask for nothing are closed, and no more are held than there may be; on real sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

pytest.importorskip("uvicorn", reason="not installed: the extra `http`")

import uvicorn
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


@asynccontextmanager
async def serving() -> AsyncIterator[int]:
    config = uvicorn.Config(app, lifespan="off", log_config=None, http=connections.Connection, timeout_keep_alive=60)
    config.load()
    state = ServerState()
    made = lambda: connections.Connection(config=config, server_state=state, app_state={})  # noqa: E731
    async with await asyncio.get_running_loop().create_server(made, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]
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
