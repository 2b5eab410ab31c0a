"""A `multiprocessing.shared_memory` object for each chunk: made and filled by the producer, its name sent over a ZeroMQ
socket, unlinked by the consumer."""

from __future__ import annotations

from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import numpy as np
import zmq
from chunks_peers import RECEIVE_TIMEOUT_MS, Bytes, Pair


def make(folder: Path, largest: int) -> Pair:
    return Pair("SharedMemory a chunk", "1 (into fresh pages)", folder, largest, Sending, Receiving)


def _socket(context: zmq.Context[zmq.Socket[bytes]]) -> zmq.Socket[bytes]:
    socket = context.socket(zmq.PAIR)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.RCVTIMEO, RECEIVE_TIMEOUT_MS)
    return socket


class Sending:
    """A `Sender`. A chunk that its consumer never unlinks is removed by the resource tracker of both."""

    def __init__(self, folder: Path, largest: int) -> None:  # noqa: ARG002 (the interface's)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = _socket(self._context)
        self._socket.connect(f"ipc://{folder}/names")

    def send(self, array: Bytes) -> None:
        memory = SharedMemory(create=True, size=array.nbytes)
        np.copyto(np.frombuffer(memory.buf, np.uint8, array.nbytes), array)
        self._socket.send_string(f"{memory.name} {array.nbytes}")
        memory.close()

    def freed(self, chunks: int) -> None:
        """The consumer has unlinked them."""

    def close(self) -> None:
        self._socket.close()
        self._context.term()


class Receiving:
    """A `Receiver`."""

    def __init__(self, folder: Path) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = _socket(self._context)
        self._socket.bind(f"ipc://{folder}/names")
        self._memory: SharedMemory | None = None

    def receive(self) -> Bytes:
        name, size = self._socket.recv_string().split()
        self._memory = SharedMemory(name)
        return np.frombuffer(self._memory.buf, np.uint8, int(size))

    def release(self) -> None:
        assert self._memory is not None
        self._memory.close()
        self._memory.unlink()

    def close(self) -> None:
        self._socket.close()
        self._context.term()
