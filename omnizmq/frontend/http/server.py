"""uvicorn on the listening socket."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn

from omnizmq.frontend.client import AsyncClient
from omnizmq.frontend.http import app
from omnizmq.frontend.http.connections import Connection
from omnizmq.frontend.http.listening import ACCEPTS, BACKLOG, listening
from omnizmq.frontend.http.service import Service
from omnizmq.frontend.http.settings import Settings
from omnizmq.plugin import PluginContext

STOP_TIMEOUT_S = 3
"""How long answers that are under way have when the deployment stops; it has waited for its requests before. Less than
the 4 s after which the launcher kills a plugin, so that connections are closed in good order."""

STALL_MARGIN_S = 5.0
"""How much longer than a request a connection may be that nobody reads: whoever reads on is told why it ended."""


async def serve(context: PluginContext, settings: Settings) -> None:
    """Until the deployment stops. Raises `ConfigError`, `LaunchError` where it cannot listen."""
    with listening(settings) as listener:
        async with (
            AsyncClient.connect(context.connect) as client,
            AsyncClient.connect(context.connect, operator=True) as operator,
        ):
            config = uvicorn.Config(
                app.make(Service(client, operator, settings)),
                http=_connection(context.config.router.slow_reader_grace_s + STALL_MARGIN_S),
                ws="none",
                backlog=ACCEPTS,
                log_config=None,
                log_level="error",  # its warnings are about what callers send, and everybody can send it
                access_log=False,
                lifespan="off",
                server_header=False,
                timeout_graceful_shutdown=STOP_TIMEOUT_S,
            )
            server = _Server(config, lambda: context.listening(_url(listener)))
            serving = asyncio.ensure_future(server.serve([listener]))
            stopping = asyncio.ensure_future(context.stopping.wait())
            await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            server.should_exit = True
            await serving


def _connection(stall_s_: float) -> type[Connection]:
    class _Connection(Connection):
        stall_s = stall_s_

    return _Connection


class _Server(uvicorn.Server):
    """Signals are the plugin's process's business."""

    def __init__(self, config: uvicorn.Config, started: Callable[[], None]) -> None:
        super().__init__(config)
        self._started = started

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(BACKLOG)
        self._started()


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
