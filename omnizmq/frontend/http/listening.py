"""The listening socket."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from omnizmq.errors import ConfigError, LaunchError
from omnizmq.frontend.http.settings import Settings

BACKLOG = 128
"""Connections that wait to be accepted."""

ACCEPTS = 16
"""How many of these the event loop takes in one turn."""


@contextmanager
def listening(settings: Settings) -> Iterator[socket.socket]:
    """Raises `ConfigError` for an address that is none of this machine's, `LaunchError` for a port that is taken."""
    try:
        found = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise _elsewhere(settings.host, error) from error
    family, kind, protocol, _, address = found[0]
    # Only where a socket's protocol is said to be TCP, asyncio sets TCP_NODELAY: else an answer's body waits until its
    # head is acknowledged, for which a caller's kernel takes 40 ms.
    with socket.socket(family, kind, protocol) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
            listener.listen(BACKLOG)
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                raise _elsewhere(settings.host, error) from error
            host = f"[{settings.host}]" if ":" in settings.host else settings.host
            raise LaunchError(f"http cannot listen at {host}:{settings.port}: {error.strerror}") from error
        yield listener


def _elsewhere(host: str, error: OSError) -> ConfigError:
    return ConfigError(f'plugins.http.host: "{host}": no address of this machine: {error.strerror}')
