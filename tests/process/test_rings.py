"""Rings between real processes: contents at arrival and at release, and `kill -9` of either side at any moment.

Run as a script, this file is the producer or a consumer: they talk over sockets that the test makes, and each prints a
dot every few records and, as its last line, what it saw.
"""

from __future__ import annotations

import json
import os
import queue
import random
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from omnizmq.shm.ledger import Ledger, Slot
from omnizmq.shm.memory import SharedMemoryError
from omnizmq.shm.ring import RingReader, RingWriter, Segment

RING = 1 << 20
QUOTA = RING // 2
DOT_EVERY = 20
DEADLINE_S = 60
TABLE = np.random.default_rng(1).integers(0, 256, 2 * RING, np.uint8)

pytestmark = pytest.mark.usefixtures("no_leaks")


def content(seq: int, nbytes: int) -> NDArray[np.uint8]:
    start = seq * 7919 % RING
    return TABLE[start : start + nbytes]


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


# --- The producer --------------------------------------------------------------------------------------------------


class Producer:
    """Writes `count` records of random sizes for random readers, and forgets a reader whose socket has ended."""

    def __init__(self, seed: int, count: int, sockets: list[socket.socket]) -> None:
        self.random = random.Random(seed)
        self.count = count
        self.readers = dict(enumerate(sockets))
        self.ledger = Ledger(RING)
        self.writer = RingWriter(RING)
        self.spills = 0
        for reader, peer in self.readers.items():
            self.ledger.admit(reader, QUOTA)
            send(peer, {"id": self.writer.id, "segment": asdict(self.writer.segment)})

    def run(self) -> dict[str, int]:
        written = 0
        while written < self.count and self.readers:
            self.hear(0)
            written += self.write()
            if written % DOT_EVERY == 0:
                say(".")
        for peer in self.readers.values():
            peer.shutdown(socket.SHUT_WR)
        while self.readers:
            self.hear(DEADLINE_S)
        self.writer.close()
        return {"written": written, "spills": self.spills, "used": self.ledger.used, "spilled": self.ledger.spilled}

    def write(self) -> bool:
        """One record, unless a reader has no room; then waits for a release."""
        nbytes = int(self.random.choice([0, 1, 1000, 20_000, 20_000, 100_000, 300_000, RING]) * self.random.random())
        readers = self.random.sample(list(self.readers), self.random.randint(1, len(self.readers)))
        slot = self.ledger.reserve(nbytes, readers)
        if slot is None:
            self.hear(DEADLINE_S)
            return False
        spill = self.writer.write(slot, lambda out: np.copyto(out, content(slot.seq, nbytes)))
        self.spills += spill is not None
        for reader in readers:
            try:
                send(self.readers[reader], {"slot": asdict_of(slot), "spill": spill and asdict(spill)})
            except OSError:
                self.forget(reader)
        return True

    def hear(self, timeout_s: float) -> None:
        for ready in select.select(list(self.readers.values()), [], [], timeout_s)[0]:
            reader = next(name for name, peer in self.readers.items() if peer is ready)
            message = receive(ready)
            if message is None:
                self.forget(reader)
                continue
            for seq in message:
                self.free(self.ledger.release(reader, seq))

    def forget(self, reader: int) -> None:
        if reader in self.readers:
            self.readers.pop(reader).close()
            for slot in self.ledger.drop(reader):
                self.free(slot)

    def free(self, slot: Slot | None) -> None:
        if slot is not None:
            self.writer.free(slot)


def asdict_of(slot: Slot) -> list[int | None]:
    return [slot.seq, slot.offset, slot.nbytes]


# --- The consumer --------------------------------------------------------------------------------------------------


class Consumer:
    """Keeps each array for a while; another thread looks at it again and drops it.

    A `hasty` one releases a record as soon as it has arrived, which is the mistake that the second look must find.
    """

    def __init__(self, seed: int, hasty: bool, peer: socket.socket) -> None:
        self.random = random.Random(seed)
        self.hasty = hasty
        self.peer = peer
        self.bell = os.eventfd(0)
        self.kept: list[tuple[int, NDArray[np.uint8]]] = []
        self.dropped: queue.SimpleQueue[tuple[int, NDArray[np.uint8]] | None] = queue.SimpleQueue()
        self.seen = {"taken": 0, "in_ring": 0, "corrupt_at_arrival": 0, "corrupt_at_release": 0, "gone": 0}
        hello = receive(peer)
        assert hello is not None
        self.reader = RingReader(
            hello["id"], Segment(**hello["segment"]), QUOTA, lambda: os.eventfd_write(self.bell, 1)
        )
        self.dropper = threading.Thread(target=self.drop_all)
        self.dropper.start()

    def run(self) -> dict[str, int]:
        while True:
            ready = select.select([self.peer, self.bell], [], [], DEADLINE_S)[0]
            if self.bell in ready:
                os.eventfd_read(self.bell)
            self.release(self.reader.take_freed())
            if self.peer in ready:
                message = receive(self.peer)
                if message is None:
                    break
                self.take(message)
        for item in self.kept:
            self.dropped.put(item)
        self.dropped.put(None)
        self.kept.clear()
        del item, message
        self.dropper.join()
        self.release(self.reader.take_freed())
        self.reader.close()
        os.close(self.bell)
        self.peer.close()
        return {**self.seen, "held": self.reader.held}

    def take(self, message: dict[str, Any]) -> None:
        seq, offset, nbytes = message["slot"]
        spill = Segment(**message["spill"]) if message["spill"] else None
        try:
            payload = self.reader.take(seq, offset, nbytes, spill)
        except SharedMemoryError:
            self.seen["gone"] += 1  # a spilled record of a producer that is gone meanwhile
            return
        self.seen["taken"] += 1
        self.seen["in_ring"] += np.shares_memory(payload, np.frombuffer(self.reader.memory, np.uint8))
        self.seen["corrupt_at_arrival"] += not np.array_equal(payload, content(seq, nbytes))
        if self.hasty:
            self.release([seq])
        self.kept.append((seq, payload[: nbytes // 2 + 1]))
        if len(self.kept) > 8:
            self.dropped.put(self.kept.pop(self.random.randrange(len(self.kept))))
        if self.seen["taken"] % DOT_EVERY == 0:
            say(".")

    def drop_all(self) -> None:
        while (item := self.dropped.get()) is not None:
            seq, part = item
            self.seen["corrupt_at_release"] += not np.array_equal(part, content(seq, len(part)))
            del item, part

    def release(self, seqs: list[int]) -> None:
        with suppress(OSError):  # of a producer that is gone
            if seqs:
                send(self.peer, seqs)


# --- Both ----------------------------------------------------------------------------------------------------------


def send(peer: socket.socket, message: object) -> None:
    peer.send(json.dumps(message).encode())


def receive(peer: socket.socket) -> Any:
    """A message, or None at the end."""
    try:
        packet = peer.recv(1 << 16)
    except ConnectionResetError:
        return None
    return json.loads(packet) if packet else None


def main(role: str, seed: str, option: str, *fds: str) -> None:
    sockets = [socket.socket(fileno=int(fd)) for fd in fds]
    before = descriptors() - len(sockets)
    if role == "produce":
        report = Producer(int(seed), int(option), sockets).run()
    else:
        report = Consumer(int(seed), option == "hasty", sockets[0]).run()
    say("\n" + json.dumps({**report, "descriptors_left": descriptors() - before}))


# --- The tests -----------------------------------------------------------------------------------------------------


class Child:
    def __init__(self, *arguments: object, sockets: list[socket.socket]) -> None:
        fds = [peer.fileno() for peer in sockets]
        self.process = subprocess.Popen(
            [sys.executable, __file__, *map(str, arguments), *map(str, fds)], stdout=subprocess.PIPE, pass_fds=fds
        )
        for peer in sockets:
            peer.close()

    def kill_after(self, dots: int) -> None:
        """At some moment after so many dots; it goes on meanwhile."""
        assert self.process.stdout is not None
        assert self.process.stdout.read(dots) == b"." * dots
        self.end()

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.communicate()

    def report(self) -> dict[str, int]:
        out, _ = self.process.communicate(timeout=DEADLINE_S)
        assert self.process.returncode == 0
        report: dict[str, int] = json.loads(out.splitlines()[-1])
        return report


@contextmanager
def running(seed: int, count: int, *consumers: str) -> Iterator[tuple[Child, list[Child]]]:
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in consumers]
    children = [Child("produce", seed, count, sockets=[ours for ours, _ in pairs])]
    try:
        for number, (kind, (_, theirs)) in enumerate(zip(consumers, pairs, strict=True)):
            children.append(Child("consume", seed + number, kind, sockets=[theirs]))
        yield children[0], children[1:]
    finally:
        for child in children:
            child.end()


def assert_clean(report: dict[str, int]) -> None:
    """Nothing was corrupt, and nothing is left."""
    names = ("corrupt_at_arrival", "corrupt_at_release", "held", "used", "spilled", "descriptors_left")
    assert {name: report[name] for name in names if report.get(name)} == {}


def test_w3_contents_are_right_at_arrival_and_at_release() -> None:
    with running(1, 1000, "careful", "careful", "careful") as (producer, consumers):
        reports = [producer.report(), *(consumer.report() for consumer in consumers)]
    for report in reports:
        assert_clean(report)
    written, *seen = reports
    assert written["written"] == 1000
    assert written["spills"] > 20
    for report in seen:
        assert report["gone"] == 0
        assert 50 < report["in_ring"] < report["taken"] - 50, "views as well as copies and spilled records"


def test_the_check_finds_a_record_that_is_released_before_its_view_has_died() -> None:
    """The control: were a release sent too early, the other tests of this file would see it."""
    with running(2, 400, "hasty") as (producer, consumers):
        producer.report()
        assert consumers[0].report()["corrupt_at_release"] > 0


@pytest.mark.parametrize("seed", range(3))
def test_f6_a_consumer_killed_at_any_moment_leaves_its_producer_and_the_others_whole(seed: int) -> None:
    with running(seed, 600, "careful", "careful") as (producer, consumers):
        consumers[0].kill_after(dots=1 + 3 * seed)
        reports = [producer.report(), consumers[1].report()]
    for report in reports:
        assert_clean(report)
    assert reports[0]["written"] == 600


@pytest.mark.parametrize("seed", range(3))
def test_f6_a_producer_killed_at_any_moment_leaves_its_consumers_what_they_hold(seed: int) -> None:
    with running(seed, 1_000_000, "careful", "careful") as (producer, consumers):
        producer.kill_after(dots=2 + 5 * seed)
        reports = [consumer.report() for consumer in consumers]
    for report in reports:
        assert_clean(report)
        assert report["taken"]


if __name__ == "__main__":
    main(*sys.argv[1:])
