"""The bare opponent of the router's hop: producer → relay → consumer over ipc, three processes of plain pyzmq.

    python tools/bench/relay.py relay|produce …      (started by `Relay`; not for people)

The relay forwards frames as they are: no codec, no table, no clock. `blocking` receives one and sends it on; `drained`
polls and takes up to 64 a wake-up. The consumer is whoever holds a `Relay`.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import zmq

STAMP_DIGITS = 20
BATCH = 64
HIGH_WATER_MARK = 4096
WAIT_MS = 10_000


class Relay:
    """The relay and the producer, running; this process is the consumer. `pid` is the relay's."""

    def __init__(self, directory: Path, loop: str, frame: bytes, at: int) -> None:
        """`frame` is what is sent, its stamp at byte `at`."""
        ends = [f"ipc://{directory}/{loop}-{end}.sock" for end in ("in", "out")]
        self._at = at
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._relay = _start("relay", *ends, loop)
        self._producer = _start("produce", ends[0], str(at), frame.hex())
        self.pid = self._relay.pid
        self._socket = _socket(self._context, zmq.DEALER)
        self._socket.setsockopt(zmq.RCVTIMEO, WAIT_MS)
        self._socket.connect(ends[1])
        self._socket.send(b"here")
        self.receive(1, 1, 0.0, 0.0)

    def receive(self, rounds: int, burst: int, interval_ms: float, gap_us: float) -> list[int]:
        """Have `burst` frames sent each `interval_ms`, `rounds` times, no two of them within `gap_us`.

        Returns the nanoseconds that each was on its way.
        """
        assert self._producer.stdin is not None
        self._producer.stdin.write(f"{rounds} {burst} {interval_ms} {gap_us}\n")
        self._producer.stdin.flush()
        stamp = slice(self._at, self._at + STAMP_DIGITS)
        took = []
        for _ in range(rounds * burst):
            data = self._socket.recv()
            took.append(time.monotonic_ns() - int(data[stamp]))
        return took

    def close(self) -> None:
        for process in (self._producer, self._relay):
            process.kill()
            process.wait()
            if process.stdin is not None:
                process.stdin.close()
        self._socket.close(0)
        self._context.term()


@contextmanager
def relay(directory: Path, loop: str, frame: bytes, at: int) -> Iterator[Relay]:
    running = Relay(directory, loop, frame, at)
    try:
        yield running
    finally:
        running.close()


def _start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, __file__, *arguments], stdin=subprocess.PIPE, text=True)


def _socket(context: zmq.Context[zmq.Socket[bytes]], kind: int) -> zmq.Socket[bytes]:
    socket = context.socket(kind)
    socket.setsockopt(zmq.SNDHWM, HIGH_WATER_MARK)
    socket.setsockopt(zmq.RCVHWM, HIGH_WATER_MARK)
    return socket


def _forward(inward: str, outward: str, loop: str) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    source, sink = _socket(context, zmq.ROUTER), _socket(context, zmq.ROUTER)
    source.bind(inward)
    sink.bind(outward)
    consumer, _ = sink.recv_multipart()
    if loop == "blocking":
        while True:
            _, data = source.recv_multipart()
            sink.send_multipart([consumer, data])
    while source.poll():
        try:
            for _ in range(BATCH):
                _, data = source.recv_multipart(zmq.NOBLOCK)
                sink.send_multipart([consumer, data], zmq.NOBLOCK)
        except zmq.Again:
            continue


def _produce(endpoint: str, at: int, frame: bytes) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = _socket(context, zmq.DEALER)
    socket.connect(endpoint)
    head, tail = frame[:at], frame[at + STAMP_DIGITS :]
    for line in sys.stdin:
        rounds, burst, interval_ms, gap_us = line.split()
        interval_s, gap_ns = float(interval_ms) / 1000, int(float(gap_us) * 1000)
        for _ in range(int(rounds)):
            if interval_s:
                now = time.monotonic()
                time.sleep((now // interval_s + 1) * interval_s - now)
            stamp = 0
            for _ in range(int(burst)):
                due = stamp + gap_ns
                while (stamp := time.monotonic_ns()) < due:  # a sleep takes longer than any gap
                    pass
                socket.send(b"%b%0*d%b" % (head, STAMP_DIGITS, stamp, tail))


def main() -> None:
    role, *rest = sys.argv[1:]
    if role == "relay":
        _forward(*rest)
    else:
        _produce(rest[0], int(rest[1]), bytes.fromhex(rest[2]))


if __name__ == "__main__":
    main()
