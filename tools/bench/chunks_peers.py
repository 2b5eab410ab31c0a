"""Two bare processes that hand chunks over: the opponents' frame. One thread each, nothing around the transport.

The producer stamps each chunk before it hands it over, the consumer when it can read it (CLOCK_MONOTONIC is one clock
for both); the stamps stay where they were made and are subtracted here, so a chunk carries nothing but its bytes. The
consumer acknowledges each chunk through a pipe when it is done with it.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from chunks_job import UNDER_WAY, Job, Sample, sample
from numpy.typing import NDArray
from omnizmq_bench_chunks import checksum, pattern, waits

Bytes = NDArray[np.uint8]

TIMEOUT_S = 20.0
RECEIVE_TIMEOUT_MS = 10_000
"""An opponent's `receive` raises after this long: its peer has died."""


class Sender(Protocol):
    def send(self, array: Bytes) -> None: ...

    def freed(self, chunks: int) -> None:
        """The consumer is done with that many of the oldest chunks."""

    def close(self) -> None: ...


class Receiver(Protocol):
    def receive(self) -> Bytes:
        """The next chunk, readable until `release`. Blocks."""

    def release(self) -> None:
        """The array that `receive` gave is not used any more."""

    def close(self) -> None: ...


class Pair:
    """An `Opponent` of two processes.

    `sender` and `receiver` are picklable; both get a folder for their sockets, and the sender the largest size.
    `most_under_way` limits, by size, how many chunks may be.
    """

    def __init__(
        self,
        name: str,
        copies: str,
        folder: Path,
        largest: int,
        sender: Callable[[Path, int], Sender],
        receiver: Callable[[Path], Receiver],
        most_under_way: Callable[[int], int] = lambda _: UNDER_WAY,
    ) -> None:
        self.name = name
        self.copies = copies
        self._most_under_way = most_under_way
        folder.mkdir(mode=0o700)
        spawn = multiprocessing.get_context("spawn")
        acks_in, acks_out = spawn.Pipe(duplex=False)
        self._producer, theirs = spawn.Pipe()
        self._consumer, others = spawn.Pipe()
        self._processes = [
            spawn.Process(target=_consume, args=(others, acks_out, receiver, folder), daemon=True),
            spawn.Process(target=_produce, args=(theirs, acks_in, sender, folder, largest), daemon=True),
        ]
        for process in self._processes:
            process.start()
        for connection in (acks_in, acks_out, theirs, others):
            connection.close()  # so that the end of one process is the end of its pipes
        self._started = False

    def takes(self, job: Job) -> bool:
        return not job.busy

    def pids(self) -> list[int]:
        return [process.pid for process in self._processes if process.pid is not None]

    def measure(self, job: Job) -> Sample:
        if not self._started:
            self._started = all(self._hear(connection) for connection in (self._consumer, self._producer))
        job = replace(job, under_way=min(job.under_way, self._most_under_way(job.size)))
        self._consumer.send(job)
        self._producer.send(job)
        stamps, produced = self._hear(self._producer)
        arrivals, consumed = self._hear(self._consumer)
        latencies = [arrival - stamp for stamp, arrival in zip(stamps, arrivals, strict=True)]
        return sample(latencies[job.warm :], arrivals[job.warm :], (produced / job.chunks, consumed / job.chunks))

    def _hear(self, connection: Connection) -> Any:
        try:
            if connection.poll(TIMEOUT_S):
                return connection.recv()
        except EOFError:
            pass
        raise SystemExit(f"{self.name}: its process ended or hung (its own error is above)")

    def close(self) -> None:
        for connection in (self._producer, self._consumer):
            with suppress(BrokenPipeError):
                connection.send(None)
        for process in self._processes:
            process.join(2)
            if process.is_alive():
                process.kill()
                process.join()
        self._producer.close()
        self._consumer.close()


@lru_cache(maxsize=1)
def _source(size: int) -> tuple[Bytes, int]:
    """What is sent, in warm memory, and its checksum."""
    array = pattern(size)
    return array, checksum(array)


def _produce(
    jobs: Connection, acks: Connection, make: Callable[[Path, int], Sender], folder: Path, largest: int
) -> None:
    sender = make(folder, largest)
    jobs.send(True)
    while (job := _next(jobs)) is not None:
        jobs.send(_run_producer(job, sender, acks.fileno()))
    sender.close()


def _run_producer(job: Job, sender: Sender, acks: int) -> tuple[list[int], int]:
    array, _ = _source(job.size)
    stamps: list[int] = []
    acked = before = 0
    while acked < job.total:
        if len(stamps) == job.warm:
            before = before or waits()
        if len(stamps) < job.total and len(stamps) - acked < job.under_way:
            if stamps and job.gap_us and job.under_way == 1:
                time.sleep(job.gap_us / 1e6)
            stamps.append(time.monotonic_ns())
            sender.send(array)
            continue
        got = len(os.read(acks, job.under_way))
        if not got:
            raise SystemExit("the consumer has ended")
        acked += got
        sender.freed(got)
    return stamps, waits() - before


def _consume(jobs: Connection, acks: Connection, make: Callable[[Path], Receiver], folder: Path) -> None:
    receiver = make(folder)
    jobs.send(True)
    while (job := _next(jobs)) is not None:
        jobs.send(_run_consumer(job, receiver, acks.fileno()))
    receiver.close()


def _run_consumer(job: Job, receiver: Receiver, acks: int) -> tuple[list[int], int]:
    _, expected = _source(job.size)
    arrivals: list[int] = []
    before = 0
    while len(arrivals) < job.total:
        array = receiver.receive()
        now = time.monotonic_ns()
        if array.nbytes != job.size:
            raise SystemExit(f"{array.nbytes} bytes came, {job.size} were sent")
        if job.summed:
            if checksum(array) != expected:
                raise SystemExit("the bytes that came are not those that were sent")
            now = time.monotonic_ns()
        arrivals.append(now)
        del array
        receiver.release()
        if len(arrivals) == job.warm:
            before = waits()
        os.write(acks, b".")
    return arrivals, waits() - before


def _next(jobs: Connection) -> Job | None:
    try:
        job: Job | None = jobs.recv()
    except EOFError:  # whoever measures has died
        return None
    return job
