"""The listening socket, and what keeps the bridge from listening: said by the option that is at fault."""

from __future__ import annotations

import asyncio
import socket

import pytest

from omnizmq.errors import ConfigError, LaunchError
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


@pytest.mark.parametrize(
    "host",
    [
        "no.such.host.invalid",  # RFC 6761, 6.4: such a name is never found
        "192.0.2.1",  # RFC 5737: an address of documentation, nobody's
    ],
)
def test_a_host_that_is_not_this_machine_is_named_by_its_key(host: str) -> None:
    with (
        pytest.raises(ConfigError, match=rf'^plugins\.http\.host: "{host}": no address of this machine: [A-Z]'),
        listening(Settings(host=host, port=0)),
    ):
        pass


@pytest.mark.parametrize(("host", "shown"), [("127.0.0.1", "127.0.0.1"), ("::1", "[::1]")])
def test_a_port_that_is_taken_is_no_fault_of_the_options(host: str, shown: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(LaunchError) as caught, listening(Settings(host=host, port=port)):
            pass
    assert caught.value.message == f"http cannot listen at {shown}:{port}: Address already in use"
