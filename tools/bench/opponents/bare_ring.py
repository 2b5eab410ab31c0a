"""omnizmq's ring without its workers: two bare processes, the descriptor over a ZeroMQ socket.

It is as large as an edge's share is by default, and holds fewer chunks under way where they are large.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path

import msgspec
import numpy as np
import zmq
from chunks_job import MIB, UNDER_WAY
from chunks_peers import RECEIVE_TIMEOUT_MS, Bytes, Pair

from omnizmq.shm.layout import record_bytes
from omnizmq.shm.ledger import Ledger
from omnizmq.shm.ring import RingReader, RingWriter, Segment

RING_BYTES = 64 * MIB
READER = "consumer"

ENCODER = msgspec.msgpack.Encoder()
DECODER = msgspec.msgpack.Decoder(tuple[int, int | None, int, Segment | None])


def make(folder: Path, largest: int) -> Pair:
    return Pair("bare ring", "1", folder, largest, Sending, Receiving, most_under_way)


def most_under_way(size: int) -> int:
    return max(1, min(UNDER_WAY, RING_BYTES // record_bytes(size)))


def _socket(context: zmq.Context[zmq.Socket[bytes]]) -> zmq.Socket[bytes]:
    socket = context.socket(zmq.PAIR)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.RCVTIMEO, RECEIVE_TIMEOUT_MS)
    return socket


class Sending:
    """A `Sender`."""

    def __init__(self, folder: Path, largest: int) -> None:  # noqa: ARG002 (the interface's)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = _socket(self._context)
        self._socket.connect(f"ipc://{folder}/descriptors")
        self._writer = RingWriter(RING_BYTES)
        self._ledger = Ledger(RING_BYTES)
        self._ledger.admit(READER, RING_BYTES)
        self._sent: deque[int] = deque()
        self._socket.send(msgspec.msgpack.encode([self._writer.id, self._writer.segment]))

    def send(self, array: Bytes) -> None:
        slot = self._ledger.reserve(array.nbytes, (READER,))
        assert slot is not None, "the ring is full: more chunks are under way than it holds"
        spill = self._writer.write(slot, lambda out: np.copyto(out, array))
        assert spill is None or slot.offset is None
        self._socket.send(ENCODER.encode((slot.seq, slot.offset, slot.nbytes, spill)))
        self._sent.append(slot.seq)

    def freed(self, chunks: int) -> None:
        for _ in range(chunks):
            slot = self._ledger.release(READER, self._sent.popleft())
            assert slot is not None
            self._writer.free(slot)

    def close(self) -> None:
        self._writer.close()
        self._socket.close()
        self._context.term()


class Receiving:
    """A `Receiver`."""

    def __init__(self, folder: Path) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = _socket(self._context)
        self._socket.bind(f"ipc://{folder}/descriptors")
        ring_id, segment = msgspec.msgpack.decode(self._socket.recv(), type=tuple[int, Segment])
        self._reader = RingReader(ring_id, segment, RING_BYTES, lambda: None)

    def receive(self) -> Bytes:
        return self._reader.take(*DECODER.decode(self._socket.recv()))

    def release(self) -> None:
        self._reader.take_freed()

    def close(self) -> None:
        self._reader.close()
        self._socket.close()
        self._context.term()
