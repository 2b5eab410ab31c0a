"""The chunk's bytes through a ZeroMQ socket over ipc, blocking: what a direct use of pyzmq gives.

Variants: PUSH to PULL or DEALER to ROUTER; the array as the only frame, or after a small header in a frame of its own;
`copy`, or not on either side (pyzmq copies below 64 KB anyway).
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import zmq
from chunks_job import UNDER_WAY
from chunks_peers import RECEIVE_TIMEOUT_MS, Bytes, Pair

HEADER = bytes(32)


class Variant(NamedTuple):
    """Which sockets, and how they are used."""

    dealer: bool
    header: bool
    copy: bool

    @property
    def name(self) -> str:
        sockets = "dealer" if self.dealer else "push"
        return f"zmq {sockets}{' header' if self.header else ''} {'copy' if self.copy else 'nocopy'}"


VARIANTS = (
    Variant(dealer=False, header=False, copy=True),
    Variant(dealer=False, header=False, copy=False),
    Variant(dealer=False, header=True, copy=True),
    Variant(dealer=False, header=True, copy=False),
    Variant(dealer=True, header=False, copy=True),
    Variant(dealer=True, header=False, copy=False),
)


def make(variant: Variant, folder: Path, largest: int) -> Pair:
    copies = "4" if variant.copy else "2"
    return Pair(variant.name, copies, folder, largest, partial(Sending, variant), partial(Receiving, variant))


def _socket(kind: int, context: zmq.Context[zmq.Socket[bytes]]) -> zmq.Socket[bytes]:
    socket = context.socket(kind)
    socket.setsockopt(zmq.SNDHWM, 2 * UNDER_WAY)
    socket.setsockopt(zmq.RCVHWM, 2 * UNDER_WAY)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.RCVTIMEO, RECEIVE_TIMEOUT_MS)
    socket.setsockopt(zmq.SNDTIMEO, RECEIVE_TIMEOUT_MS)
    return socket


class Sending:
    """A `Sender`."""

    def __init__(self, variant: Variant, folder: Path, largest: int) -> None:  # noqa: ARG002 (the interface's)
        self._variant = variant
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = _socket(zmq.DEALER if variant.dealer else zmq.PUSH, self._context)
        self._socket.connect(f"ipc://{folder}/data")

    def send(self, array: Bytes) -> None:
        if self._variant.header:
            self._socket.send(HEADER, zmq.SNDMORE)
        self._socket.send(array, copy=self._variant.copy)

    def freed(self, chunks: int) -> None:
        """ZeroMQ lets go of the array by itself."""

    def close(self) -> None:
        self._socket.close()
        self._context.term()


class Receiving:
    """A `Receiver`."""

    def __init__(self, variant: Variant, folder: Path) -> None:
        self._frames_before = int(variant.header) + int(variant.dealer)
        self._copy = variant.copy
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = _socket(zmq.ROUTER if variant.dealer else zmq.PULL, self._context)
        self._socket.bind(f"ipc://{folder}/data")

    def receive(self) -> Bytes:
        for _ in range(self._frames_before):
            self._socket.recv()
        if self._copy:
            return np.frombuffer(self._socket.recv(), np.uint8)
        return np.frombuffer(self._socket.recv(copy=False).buffer, np.uint8)

    def release(self) -> None:
        """The array's end is the message's."""

    def close(self) -> None:
        self._socket.close()
        self._context.term()
