"""Rings' memory in the engine thread: each is pinned once, and unpinned before it goes or the engine is closed (W3)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from support.engines import Copier
from support.running import eventually

from omnizmq.shm.ring import RingReader, RingWriter
from omnizmq.workers.engine import EngineBrokenError
from omnizmq.workers.mappings import Mapped, Unmapping
from omnizmq.workers.thread import EngineThread

SIZE = 1 << 16


class Pinning(Copier):
    """What it was given and has to give back, and in which thread. `refuses` what is called so."""

    def __init__(self, refuses: dict[str, Exception] | None = None) -> None:
        super().__init__()
        self.ring_memory = self
        self.seen: list[tuple[str, int, bool]] = []
        self.threads: set[str] = set()
        self._refuses = refuses or {}

    def pin(self, memory: memoryview) -> None:
        self._saw("pin", memory)

    def unpin(self, memory: memoryview) -> None:
        assert self.closed == 0
        self._saw("unpin", memory)

    def _saw(self, what: str, memory: memoryview) -> None:
        assert bytes(memory[:4]) == b"ring"
        self.seen.append((what, memory.nbytes, memory.readonly))
        self.threads.add(threading.current_thread().name)
        if what in self._refuses:
            raise self._refuses[what]


@contextmanager
def running(engine: Copier) -> Iterator[tuple[EngineThread, list[EngineBrokenError]]]:
    broke: list[EngineBrokenError] = []
    thread = EngineThread(lambda _: engine, loaded=lambda _: None, said=lambda _: None, broke=broke.append)
    thread.start()
    yield thread, broke
    assert thread.stop(5)


@pytest.fixture
def writer() -> Iterator[RingWriter]:
    made = RingWriter(SIZE)
    made.memory[:4] = b"ring"
    yield made
    made.close()


def reader(writer: RingWriter) -> RingReader:
    return RingReader(writer.id, writer.segment, SIZE, lambda: None)


def test_w3_each_is_pinned_in_the_engine_thread_and_unpinned_before_the_engine_is_closed(writer: RingWriter) -> None:
    engine = Pinning()
    read = reader(writer)
    with running(engine) as (thread, _):
        thread.put(Mapped(writer.memory))
        thread.put(Mapped(read.memory))
        thread.put(Unmapping(read.memory))
        read.close()  # at once: it is mapped until the engine has let it go
        assert eventually(lambda: len(engine.seen) == 3)
    assert engine.seen == [("pin", SIZE, False), ("pin", SIZE, True), ("unpin", SIZE, True), ("unpin", SIZE, False)]
    assert engine.threads == {"engine"}


@pytest.mark.parametrize("error", [RuntimeError("cudaHostRegister: operation not supported"), ValueError("no")])
def test_w3_what_cannot_be_pinned_is_used_as_it_is(writer: RingWriter, error: Exception) -> None:
    engine = Pinning({"pin": error})
    with running(engine) as (thread, broke):
        thread.put(Mapped(writer.memory))
        thread.put(Unmapping(writer.memory))
        thread.put(Mapped(writer.memory))
        assert eventually(lambda: len(engine.seen) == 2)
    assert engine.seen == [("pin", SIZE, False)] * 2
    assert (broke, engine.closed) == ([], 1)


def test_f2_an_engine_may_find_itself_broken_by_it(writer: RingWriter) -> None:
    error = EngineBrokenError("lost")
    engine = Pinning({"pin": error})
    with running(engine) as (thread, broke):
        thread.put(Mapped(writer.memory))
        assert eventually(lambda: broke == [error])
    assert engine.closed == 1


def test_an_engine_that_fails_to_unpin_is_closed_all_the_same(writer: RingWriter) -> None:
    engine = Pinning({"unpin": RuntimeError("no")})
    with running(engine) as (thread, _):
        thread.put(Mapped(writer.memory))
    assert (engine.closed, len(engine.seen)) == (1, 2)


def test_an_engine_without_a_device_is_asked_nothing(writer: RingWriter) -> None:
    engine = Copier()
    with running(engine) as (thread, _):
        thread.put(Mapped(writer.memory))
    assert engine.calls == []
