"""The listening socket."""

from __future__ import annotations

import asyncio
import socket

import pytest

from omnizmq.frontend.http.listening import listening
from omnizmq.frontend.http.settings import Settings

pytestmark = pytest.mark.http


def test_a_body_does_not_wait_until_its_head_is_acknowledged() -> None:
    async def scenario() -> int:
        accepted: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def connected(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            accepted.set_result(
                writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY),
            )
            writer.close()

        with listening(Settings.of({"port": 0})) as listener:
            async with await asyncio.start_server(connected, sock=listener):
                _, writer = await asyncio.open_connection(*listener.getsockname())
                told = await asyncio.wait_for(accepted, 20)
                writer.close()
        return told

    assert asyncio.run(scenario()) == 1
