"""The engine thread: starts and stops, sleeps without spinning, and misses no wake-up."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from support.engines import Copier, Troubled, context
from support.running import eventually

from omnizmq.errors import ConfigError, LaunchError
from omnizmq.protocol import Prompt
from omnizmq.workers.engine import Chunk, Engine, EngineBrokenError, EngineRequest, StageOutput
from omnizmq.workers.engines.synthetic import create
from omnizmq.workers.messages import (
    AbortEngine,
    AddToEngine,
    EndEngineInput,
    EngineAborted,
    EngineEvent,
    EngineMade,
    FeedEngine,
    RunEngine,
)
from omnizmq.workers.thread import AHEAD, EngineThread


class Desk:
    """What the thread says, and whoever waits for it."""

    def __init__(self, load: Callable[[Callable[[], None]], Engine]) -> None:
        self.loaded: list[Exception | None] = []
        self.events: list[EngineEvent] = []
        self.batches = 0
        self.hears = True
        self.broke: list[EngineBrokenError] = []
        self.thread = EngineThread(load, loaded=self.loaded.append, said=self.said, broke=self.broke.append)

    def said(self, events: list[EngineEvent]) -> None:
        self.events += events
        self.batches += 1
        if self.hears:
            self.thread.heard()

    def request(self, id_: str = "a") -> None:
        self.thread.put(AddToEngine(EngineRequest(id_, None, {}, external_id=id_)))
        self.thread.put(RunEngine(id_))

    def feed(self, id_: str, *numbers: int, end: bool = False) -> None:
        for number in numbers:
            self.thread.put(FeedEngine(id_, "thinker", Chunk({"n": number})))
        if end:
            self.thread.put(EndEngineInput(id_, "thinker"))

    def made(self) -> list[StageOutput]:
        return [event.output for event in list(self.events) if isinstance(event, EngineMade)]

    def text(self) -> str:
        return "".join(str(output.content or "") for output in self.made())


@contextmanager
def running(load: Callable[[Callable[[], None]], Engine]) -> Iterator[Desk]:
    desk = Desk(load)
    desk.thread.start()
    try:
        yield desk
    finally:
        assert desk.thread.stop(5)


class Bell(Copier):
    """An engine with a thread of its own: it has work when `rings` is ahead of what it has answered."""

    def __init__(self) -> None:
        super().__init__()
        self.rings = 0
        self.answered = 0
        self.looked = 0

    def has_work(self, request_id: str) -> bool:  # noqa: ARG002
        self.looked += 1
        return self.answered < self.rings

    def step(self, ready: Sequence[str]) -> list[StageOutput]:
        self.answered = self.rings
        return [StageOutput(request_id, f"{self.answered} ") for request_id in ready]


def _raise(error: Exception) -> None:
    raise error


class TestLife:
    def test_it_loads_runs_and_closes_its_engine_once(self) -> None:
        copier = Copier()
        with running(lambda wake: copier) as desk:  # noqa: ARG005
            desk.request()
            desk.feed("a", 1, 2, end=True)
            assert eventually(lambda: len(desk.made()) == 3)
            assert desk.loaded == [None]
        assert (desk.text(), copier.closed) == ("1 2 ", 1)

    def test_f2_an_engine_that_breaks_is_told_of_and_closed_and_the_thread_ends(self) -> None:
        error = EngineBrokenError("the GPU is lost")
        troubled = Troubled(lambda method, _: _raise(error) if method == "step" else None)
        with running(lambda wake: troubled) as desk:  # noqa: ARG005
            desk.request()
            desk.feed("a", 1)
            assert eventually(lambda: troubled.closed == 1)
            assert desk.broke == [error]
            assert desk.made() == []
            assert desk.thread.stop(5)

    def test_state_is_loading_until_the_engine_is_there(self) -> None:
        go = threading.Event()

        def load(wake: Callable[[], None]) -> Engine:  # noqa: ARG001
            assert go.wait(5)
            return Copier()

        with running(load) as desk:
            assert desk.thread.state[0] == "loading"
            assert desk.loaded == []
            go.set()
            assert eventually(lambda: desk.thread.state[0] == "idle")

    def test_commands_that_came_while_it_loaded_are_obeyed(self) -> None:
        go = threading.Event()

        def load(wake: Callable[[], None]) -> Engine:  # noqa: ARG001
            assert go.wait(5)
            return Copier()

        with running(load) as desk:
            desk.request()
            desk.feed("a", 1)
            go.set()
            assert eventually(lambda: desk.text() == "1 ")

    @pytest.mark.parametrize("error", [ValueError("no"), ConfigError("no"), SystemExit(4)], ids=repr)
    def test_f5_an_engine_that_does_not_load_is_told_once_and_ends_the_thread(self, error: BaseException) -> None:
        def load(wake: Callable[[], None]) -> Engine:  # noqa: ARG001
            raise error

        with running(load) as desk:
            assert eventually(lambda: bool(desk.loaded))
            (told,) = desk.loaded
            assert told is error if isinstance(error, Exception) else isinstance(told, LaunchError)
            assert eventually(lambda: not desk.thread._thread.is_alive())

    def test_stop_while_the_engine_loads_says_that_it_is_not_closed(self) -> None:
        go = threading.Event()
        copier = Copier()

        def load(wake: Callable[[], None]) -> Engine:  # noqa: ARG001
            assert go.wait(5)
            return copier

        desk = Desk(load)
        desk.thread.start()
        assert not desk.thread.stop(0.05)
        go.set()
        assert desk.thread.stop(5)
        assert copier.closed == 1

    def test_stop_while_a_step_hangs_returns_in_time(self) -> None:
        go = threading.Event()
        slow = Troubled(lambda method, _: go.wait(10) if method == "step" else None)
        desk = Desk(lambda wake: slow)  # noqa: ARG005
        desk.thread.start()
        desk.request()
        desk.feed("a", 1)
        assert eventually(lambda: desk.thread.state[0] == "stepping")
        started = time.monotonic()
        assert not desk.thread.stop(0.1)
        assert time.monotonic() - started < 2
        go.set()
        assert desk.thread.stop(5)

    def test_stop_may_be_called_again(self) -> None:
        with running(lambda wake: Copier()) as desk:  # noqa: ARG005
            assert desk.thread.stop(5)

    def test_an_engine_that_fails_to_close_still_ends_the_thread(self) -> None:
        def trouble(method: str, request_id: str) -> None:  # noqa: ARG001
            if method == "close":
                raise RuntimeError("boom")

        with running(lambda wake: Troubled(trouble)) as desk:  # noqa: ARG005
            assert eventually(lambda: desk.loaded == [None])
        assert not desk.thread._thread.is_alive()

    def test_a6_an_abort_is_confirmed_while_nothing_else_happens(self) -> None:
        with running(lambda wake: Copier()) as desk:  # noqa: ARG005
            desk.request()
            desk.thread.put(AbortEngine("a"))
            assert eventually(lambda: EngineAborted("a", []) in desk.events)

    def test_f1_the_thread_outlives_an_engine_that_raises_everywhere(self) -> None:
        def trouble(method: str, request_id: str) -> None:
            if "bad" in request_id:
                raise RuntimeError(method)

        with running(lambda wake: Troubled(trouble)) as desk:  # noqa: ARG005
            desk.request("bad")
            desk.thread.put(AbortEngine("bad"))
            desk.request("good")
            desk.feed("good", 1)
            assert eventually(lambda: desk.text() == "1 ")


class TestWakeUps:
    def test_a_wake_is_seen(self) -> None:
        bell = Bell()
        with running(lambda wake: bell) as desk:  # noqa: ARG005
            desk.request()
            assert eventually(lambda: bell.looked > 0)
            bell.rings = 1
            desk.thread.wake()
            assert eventually(lambda: desk.text() == "1 ", 2)

    def test_a_wake_between_taking_commands_and_forgetting_wakes_is_not_lost(self) -> None:
        """The narrow place: one wake is taken off the queue, and the next one comes before it counts as taken."""
        bell = Bell()
        with running(lambda wake: bell) as desk:  # noqa: ARG005
            flag = _Meddling(desk.thread)
            desk.thread._woken = flag
            desk.request()
            assert eventually(lambda: bell.looked > 0)
            for number in range(1, 50):
                bell.rings = number
                desk.thread.wake()
                assert eventually(lambda number=number: bell.answered == number, 2), f"wake {number} was lost"
        assert flag.meddled

    def test_wakes_from_many_threads_are_never_lost(self) -> None:
        bell = Bell()
        with running(lambda wake: bell) as desk:  # noqa: ARG005
            desk.request()
            lock = threading.Lock()

            def ring() -> None:
                for _ in range(500):
                    with lock:
                        bell.rings += 1
                    desk.thread.wake()

            threads = [threading.Thread(target=ring) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert eventually(lambda: bell.answered == 2000, 5)

    def test_wakes_that_nobody_could_serve_yet_do_not_pile_up(self) -> None:
        go = threading.Event()
        bell = Bell()
        original = bell.step

        def step(ready: Sequence[str]) -> list[StageOutput]:
            assert go.wait(5)
            return original(ready)

        bell.step = step  # type: ignore[method-assign]
        with running(lambda wake: bell) as desk:  # noqa: ARG005
            desk.request()
            bell.rings = 1
            desk.thread.wake()
            assert eventually(lambda: desk.thread.state[0] == "stepping")
            for _ in range(10_000):
                desk.thread.wake()
            assert desk.thread._queue.qsize() <= 1
            go.set()


class _Meddling(threading.Event):
    """As it is cleared, an engine's thread wakes once more."""

    def __init__(self, thread: EngineThread) -> None:
        super().__init__()
        self.meddled = 0
        self._to_wake: Any = thread

    def clear(self) -> None:
        super().clear()
        self.meddled += 1
        if self.meddled % 2:
            self._to_wake.wake()


class TestAhead:
    def test_b1_the_engine_waits_until_what_it_said_has_been_heard(self) -> None:
        engine = Copier()
        with running(lambda wake: engine) as desk:  # noqa: ARG005
            desk.hears = False
            desk.request()
            desk.feed("a", *range(100))
            for heard in range(5):  # the first batch was that it begins, and the last one is unsaid
                assert eventually(lambda heard=heard: len(engine.stepped) == AHEAD + heard)
                assert desk.batches == AHEAD + heard
                desk.thread.heard()

    def test_f6_an_engine_that_waits_for_nobody_to_hear_it_is_stopped(self) -> None:
        engine = Copier()
        with running(lambda wake: engine) as desk:  # noqa: ARG005
            desk.hears = False
            desk.request()
            desk.feed("a", *range(100))
            assert eventually(lambda: len(engine.stepped) == AHEAD)
        assert engine.closed == 1


class TestNoSpinning:
    """Coarse bounds on the processor's time: a loop that spins takes all of it."""

    def test_an_idle_thread_takes_no_time(self) -> None:
        with running(lambda wake: Copier()) as desk:  # noqa: ARG005
            desk.request("waits")
            assert eventually(lambda: desk.loaded == [None])
            assert _busy(0.4) < 0.1

    def test_requests_that_wait_for_time_take_no_time(self) -> None:
        with running(lambda wake: create(context(wake=wake, chunks=4, interval_ms=100))) as desk:
            desk.thread.put(AddToEngine(EngineRequest("a", Prompt("hello", None, None), {}, external_id="a")))
            desk.thread.put(RunEngine("a"))
            assert eventually(lambda: len(desk.made()) == 1)
            assert _busy(0.25) < 0.1
            assert eventually(lambda: len(desk.made()) == 4)

    def test_a_request_without_input_in_an_engine_that_has_work_takes_no_time(self) -> None:
        bell = Bell()
        bell.rings = 1
        with running(lambda wake: bell) as desk:  # noqa: ARG005
            desk.thread.put(AddToEngine(EngineRequest("a", None, {})))
            assert eventually(lambda: desk.loaded == [None])
            assert _busy(0.3) < 0.1
        assert bell.looked == 0


def _busy(seconds: float) -> float:
    """The processor's time that this whole process takes within so many seconds, of which this thread sleeps all."""
    before = time.process_time()
    time.sleep(seconds)
    return time.process_time() - before
