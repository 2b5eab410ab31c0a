"""What the kernel knows of a connection (`struct tcp_info` of linux/tcp.h), and how it forgets one."""

from __future__ import annotations

import asyncio
import socket
import struct

_CLOSED = frozenset({7, 8})  # TCP_CLOSE, TCP_CLOSE_WAIT
_ACKNOWLEDGED = struct.Struct("@120xQ")  # tcpi_bytes_acked


def is_closed(transport: asyncio.Transport) -> bool:
    """Whether the other side has closed it, or its own half of it: known also where nothing is read from it."""
    return _info(transport, 1)[0] in _CLOSED


def acknowledged(transport: asyncio.Transport) -> int:
    """How many bytes the other side's kernel has taken, all in all."""
    taken: int = _ACKNOWLEDGED.unpack(_info(transport, _ACKNOWLEDGED.size))[0]
    return taken


def reset(transport: asyncio.Transport) -> None:
    """Closes it at once: what is not sent is thrown away by the kernel, too."""
    linger = struct.pack("ii", 1, 0)  # socket(7), SO_LINGER: on, for no time
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    transport.abort()


def _info(transport: asyncio.Transport, size: int) -> bytes:
    info: bytes = transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, size)
    return info
