"""What the engine thread does with an engine: feeding, stepping, and what comes of exceptions (R1, B1, F1, A6)."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.engines import Copier, Deaf, Troubled, context

from omnizmq.errors import InvalidRequestError, OmnizmqError, StageError
from omnizmq.protocol import Prompt
from omnizmq.workers.engine import Chunk, Engine, EngineBrokenError, EngineRequest, StageOutput
from omnizmq.workers.engines.synthetic import create
from omnizmq.workers.messages import (
    AbortEngine,
    AddToEngine,
    EndEngineInput,
    EngineAborted,
    EngineCommand,
    EngineEvent,
    EngineFailed,
    EngineIdle,
    EngineMade,
    EngineRan,
    EngineTook,
    FeedEngine,
    HoldEngine,
    ProbeEngine,
    RunEngine,
)
from omnizmq.workers.runner import EngineRunner


class Bench:
    """An engine in its runner, and all that it said. Time is the number of calls of the clock."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.events: list[EngineEvent] = []
        self._now = 0
        self.runner = EngineRunner(engine, self._clock)

    def _clock(self) -> int:
        self._now += 1
        return self._now

    def obey(self, *commands: EngineCommand) -> None:
        for command in commands:
            self.events += self.runner.obey(command)

    def add(self, *ids: str, run: bool = True) -> None:
        for id_ in ids:
            self.obey(AddToEngine(EngineRequest(id_, Prompt("one two", None, None), {}, external_id=id_)))
            if run:
                self.obey(RunEngine(id_))

    def feed(self, id_: str, *numbers: int, end: bool = False, source: str = "thinker") -> None:
        self.obey(*(FeedEngine(id_, source, Chunk({"n": number})) for number in numbers))
        if end:
            self.obey(EndEngineInput(id_, source))

    def rounds(self, most: int = 1000) -> int:
        """Until there is nothing to do; how many there were."""
        for number in range(most):
            events = self.runner.round()
            if events is None:
                return number
            self.events += events
        raise AssertionError(f"still busy after {most} rounds")

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def text(self, id_: str) -> str:
        made = (event.output for event in self.of(EngineMade))
        return "".join(output.content or "" for output in made if output.request_id == id_)

    def failures(self) -> dict[str, str]:
        return {event.engine_id: event.error.message for event in self.of(EngineFailed)}


def raising(where: str, who: str, what: BaseException) -> Callable[[str, str], None]:
    """Trouble in that method for that request; `who` empty: for whoever."""

    def trouble(method: str, request_id: str) -> None:
        if method == where and who in request_id:
            raise what

    return trouble


class TestWork:
    def test_input_goes_in_and_output_comes_out_in_order(self) -> None:
        bench = Bench(Copier())
        bench.add("a")
        bench.feed("a", 1, 2, 3, end=True)
        bench.rounds()
        assert bench.text("a") == "1 2 3 "
        assert bench.of(EngineMade)[-1].output.finish_reason == "stop"
        assert bench.rounds() == 0

    def test_requests_share_a_step(self) -> None:
        copier = Copier()
        bench = Bench(copier)
        bench.add("a", "b")
        bench.feed("a", 1, end=True)
        bench.feed("b", 2, end=True)
        bench.rounds()
        assert copier.stepped == [["a", "b"], ["a", "b"]]

    def test_s2_the_first_step_of_a_request_is_told_once_with_its_time(self) -> None:
        bench = Bench(Copier())
        bench.add("a")
        bench.feed("a", 1, 2, end=True)
        bench.rounds()
        (ran,) = bench.of(EngineRan)
        first = bench.of(EngineMade)[0]
        assert bench.events.index(ran) < bench.events.index(first)
        assert ran.at_ns < first.at_ns

    def test_s2_a_first_step_that_may_never_end_is_told_before_it_begins(self) -> None:
        copier = Copier()
        bench = Bench(copier)
        bench.add("a")
        bench.feed("a", 1, end=True)
        assert [type(event) for event in bench.runner.round() or ()] == [EngineTook, EngineRan]
        assert copier.stepped == []

    def test_the_synthetic_engine_runs_from_its_prompt_to_its_end(self) -> None:
        bench = Bench(create(context(echo=True)))
        bench.add("a")
        bench.rounds()
        assert bench.text("a") == "one two"
        assert bench.of(EngineMade)[-1].output.usage["completion_tokens"] == 2

    def test_state_says_what_the_engine_does(self) -> None:
        seen: list[str] = []
        engine = Troubled(lambda method, _: seen.append(bench.runner.state[0]) if method == "step" else None)
        bench = Bench(engine)
        bench.add("a")
        bench.feed("a", 1)
        bench.rounds()
        assert seen == ["stepping"]
        assert bench.runner.state[0] == "idle"

    def test_f2_the_engine_is_stepping_in_whichever_method_it_has_the_thread(self) -> None:
        """One that never returns from it is found, like one that never returns from `step`."""
        seen: list[tuple[str, str]] = []

        class Watched(Copier):
            def _called(self, method: str, request_id: str) -> None:
                seen.append((method, bench.runner.state[0]))
                super()._called(method, request_id)

        bench = Bench(Watched())
        bench.add("a", "b")
        bench.feed("a", 1, end=True)
        bench.rounds()
        bench.obey(AbortEngine("b"))
        assert {method for method, _ in seen} >= {"add", "feed", "end_of_input", "has_work", "abort"}
        assert {state for _, state in seen} == {"stepping"}
        assert bench.runner.state[0] == "idle"


class TestR1:
    def test_r1_a_request_that_may_not_run_is_neither_fed_nor_stepped(self) -> None:
        copier = Copier()
        bench = Bench(copier)
        bench.add("a", run=False)
        bench.feed("a", 1, 2, end=True)
        assert bench.rounds() == 0
        assert copier.stepped == []
        assert bench.events == []
        bench.obey(RunEngine("a"))
        bench.rounds()
        assert bench.text("a") == "1 2 "

    def test_b1_a_parked_request_is_in_no_step_and_others_are(self) -> None:
        copier = Copier()
        bench = Bench(copier)
        bench.add("a", "b")
        bench.feed("a", 1, 2, 3)
        bench.feed("b", 4, 5, 6)
        bench.obey(HoldEngine("a"))
        bench.rounds()
        assert copier.stepped == [["b"]] * 3
        bench.obey(RunEngine("a"))
        bench.rounds()
        assert bench.text("a") == "1 2 3 "

    def test_r1_the_engine_is_asked_for_the_requests_that_have_work_alone(self) -> None:
        copier = Copier()
        bench = Bench(copier)
        bench.add("a", "b")
        bench.feed("b", 1)
        bench.rounds()
        assert copier.stepped == [["b"]]


class TestCredits:
    """B1: a chunk's credit is due when the engine takes it, and it takes it when it has nothing else to do."""

    def test_b1_the_engine_holds_one_chunk_at_a_time(self) -> None:
        copier = Copier()
        bench = Bench(copier)
        bench.add("a")
        bench.feed("a", *range(1, 11))
        assert [type(event) for event in bench.runner.round() or ()] == [EngineTook, EngineRan]
        for number in range(1, 11):
            assert bench.runner.round()
            assert copier.holds("a") == 0
            assert copier.calls.count(("feed", "a")) == number

    def test_b1_credits_are_exactly_the_chunks_that_the_engine_was_fed(self) -> None:
        bench = Bench(Copier(("thinker", "hearer")))
        bench.add("a")
        bench.feed("a", 1, 2)
        bench.feed("a", 3, source="hearer")
        bench.rounds()
        took: Counter[str] = Counter()
        for event in bench.of(EngineTook):
            took[event.source] += event.chunks
        assert took == {"thinker": 2, "hearer": 1}

    def test_b1_the_end_of_an_edge_is_no_chunk(self) -> None:
        bench = Bench(Copier())
        bench.add("a")
        bench.feed("a", end=True)
        bench.rounds()
        assert bench.of(EngineTook) == []
        assert bench.of(EngineMade)[-1].output.finish_reason == "stop"

    def test_an_engine_that_never_uses_its_input_makes_nothing_and_nobody_spins(self) -> None:
        deaf = Deaf()
        bench = Bench(deaf)
        bench.add("a")
        bench.feed("a", 1, 2, 3)
        assert bench.rounds() == 1
        assert bench.of(EngineTook) == [EngineTook("a", "thinker", 3)]
        assert bench.rounds() == 0
        assert deaf.stepped == []

    def test_b1_input_of_an_aborted_request_is_forgotten(self) -> None:
        bench = Bench(Copier())
        bench.add("a")
        bench.feed("a", 1, 2)
        bench.obey(AbortEngine("a"))
        bench.feed("a", 3)
        assert bench.rounds() == 0
        assert bench.of(EngineTook) == []

    def test_work_that_goes_away_unseen_does_not_strand_input(self) -> None:
        """An engine with threads of its own: it had work when it was asked, and it is asked once a round."""
        answers = iter([True, False, False])

        class Fickle(Copier):
            def has_work(self, request_id: str) -> bool:
                return next(answers, super().has_work(request_id))

        bench = Bench(Fickle())
        bench.add("a")
        bench.feed("a", 1, end=True)
        bench.rounds()
        assert bench.text("a") == "1 "


class Pooled(Copier):
    """Has a pool of its own, where `inside` are queued or computed."""

    def __init__(self) -> None:
        super().__init__()
        self.inside: set[str] = set()

    def busy_with(self, request_id: str) -> bool:
        self._called("busy_with", request_id)
        return request_id in self.inside


class TestProbe:
    """R4: the engine has nothing to do for the request, since when, and how much of its input it has."""

    def idle(self, bench: Bench) -> list[tuple[str, int]]:
        return [(event.engine_id, event.fed) for event in bench.of(EngineIdle)]

    def test_r4_a_request_that_waits_for_input_is_idle_since_it_was_let_run(self) -> None:
        bench = Bench(Copier())
        bench.add("a", run=False)
        bench.obey(RunEngine("a"))
        since = bench._now
        bench.rounds()
        bench.obey(ProbeEngine("a"))
        bench.rounds()
        assert bench.of(EngineIdle) == [EngineIdle("a", since, 0)]

    def test_r4_a_request_is_idle_since_its_last_step_and_has_all_that_it_was_fed(self) -> None:
        class Late(Copier):
            """Keeps its end to itself."""

            def has_work(self, request_id: str) -> bool:
                return bool(self._held.get(request_id))

        bench = Bench(Late())
        bench.add("a", "b")
        bench.feed("a", 1, 2, end=True)
        bench.obey(ProbeEngine("a"))
        bench.rounds()
        (event,) = bench.of(EngineIdle)
        assert event.fed == 3
        assert event.since_ns > bench.of(EngineMade)[-1].at_ns, "the end of its edge was the last that it was fed"
        bench.feed("b", 1)
        bench.obey(ProbeEngine("b"))
        bench.rounds()
        assert bench.of(EngineIdle)[-1] == EngineIdle("b", bench.of(EngineMade)[-1].at_ns, 1)

    def test_r4_no_answer_while_there_is_work_and_one_when_there_is_none(self) -> None:
        bench = Bench(Copier())
        bench.add("a")
        bench.feed("a", 1, 2)
        bench.obey(ProbeEngine("a"))
        bench.events += bench.runner.round() or []
        bench.events += bench.runner.round() or []
        assert self.idle(bench) == []
        bench.rounds()
        assert self.idle(bench) == [("a", 2)]
        bench.feed("a", 3)
        bench.rounds()
        assert self.idle(bench) == [("a", 2)], "one answer for each question"

    def test_r4_the_answer_follows_what_the_engine_took_and_made(self) -> None:
        bench = Bench(Copier())
        bench.add("a")
        bench.feed("a", 1)
        bench.obey(ProbeEngine("a"), ProbeEngine("a"))
        bench.rounds()
        assert [type(event) for event in bench.events] == [EngineTook, EngineRan, EngineMade, EngineIdle]

    def test_r4_a_request_that_may_not_run_is_not_answered_for_nor_later_without_a_new_question(self) -> None:
        bench = Bench(Copier())
        bench.add("a", run=False)
        bench.obey(ProbeEngine("a"))
        bench.rounds()
        bench.obey(HoldEngine("a"), RunEngine("a"))
        bench.rounds()
        assert self.idle(bench) == []
        bench.obey(ProbeEngine("a"))
        bench.rounds()
        assert self.idle(bench) == [("a", 0)]

    def test_r4_an_engine_that_computes_inside_is_busy_until_it_says_otherwise(self) -> None:
        engine = Pooled()
        bench = Bench(engine)
        bench.add("a", "b")
        engine.inside.add("a")
        bench.obey(ProbeEngine("a"), ProbeEngine("b"))
        bench.rounds()
        assert self.idle(bench) == [("b", 0)]
        engine.inside.clear()
        bench.rounds()  # it wakes the thread
        assert self.idle(bench) == [("b", 0), ("a", 0)]

    def test_r4_an_engine_is_asked_what_it_computes_inside_only_when_that_matters(self) -> None:
        engine = Pooled()
        bench = Bench(engine)
        bench.add("a")
        bench.feed("a", 1)
        bench.rounds()
        assert "busy_with" not in {method for method, _ in engine.calls}

    def test_t1_an_engine_that_computes_in_threads_of_its_own_is_not_idle(self) -> None:
        engine = Pooled()
        bench = Bench(engine)
        bench.add("a")
        bench.rounds()
        assert bench.runner.state[0] == "idle"
        engine.inside.add("a")
        state, since = bench.runner.state
        assert state == "computing"
        assert bench.of(EngineRan) == []
        bench.rounds()  # something has woken the thread
        assert [event.engine_id for event in bench.of(EngineRan)] == ["a"], "the engine has begun, without a step"
        assert bench.runner.state[1] > since
        engine.inside.clear()
        assert bench.runner.state[0] == "idle"

        assert bench.runner.at_work_on == set()

    def test_t1_r4_an_engine_at_work_whose_silence_counts_is_shown_at_work_and_answered_for(self) -> None:
        class Generating(Pooled):
            """Expected to make something all the time."""

            def at_work_on(self, request_id: str) -> bool:
                return request_id == "b"

        bench = Bench(Generating())
        bench.add("a", "b")
        bench.rounds()
        assert bench.runner.state[0] == "computing"
        assert bench.runner.at_work_on == {"b"}
        bench.obey(ProbeEngine("b"))
        bench.rounds()
        assert self.idle(bench) == [("b", 0)], "it hangs, as far as its clock is concerned"

    def test_t1_for_whom_it_computes_inside(self) -> None:
        engine = Pooled()
        bench = Bench(engine)
        bench.add("a", "b")
        bench.rounds()
        engine.inside.add("b")
        assert bench.runner.at_work_on == {"b"}

    def test_t1_for_whom_it_is_in_a_method(self) -> None:
        class Asked(Pooled):
            """Whoever looks meanwhile, sees that."""

            def add(self, request: EngineRequest) -> None:
                seen.append(("add", bench.runner.at_work_on))
                super().add(request)

            def feed(self, request_id: str, edge: str, chunk: Chunk) -> None:
                seen.append(("feed", bench.runner.at_work_on))
                super().feed(request_id, edge, chunk)

            def step(self, ready: Sequence[str]) -> list[StageOutput]:
                seen.append(("step", bench.runner.at_work_on))
                return super().step(ready)

            def abort(self, request_id: str) -> list[StageOutput]:
                seen.append(("abort", bench.runner.at_work_on))
                return super().abort(request_id)

        seen: list[tuple[str, frozenset[str]]] = []
        bench = Bench(Asked())
        bench.add("a", "b", "c")
        bench.feed("a", 1)
        bench.feed("b", 1)
        bench.rounds()
        bench.obey(AbortEngine("b"))
        assert seen == [
            *(("add", {one}) for one in "abc"),
            *(("feed", {one}) for one in "ab"),
            ("step", {"a", "b"}),
            ("abort", {"b"}),
        ]

    def test_t1_an_engine_that_cannot_say_what_it_computes_is_idle(self) -> None:
        class Broken(Pooled):
            def busy_with(self, request_id: str) -> bool:
                raise KeyError(request_id)

        bench = Bench(Broken())
        bench.add("a")
        bench.rounds()
        assert bench.runner.state[0] == "idle"
        assert not bench.failures()

    def test_r4_a_request_that_is_not_there_is_not_answered_for(self) -> None:
        bench = Bench(Copier())
        bench.obey(ProbeEngine("a"))
        assert bench.rounds() == 0
        assert bench.events == []

    @pytest.mark.parametrize("error", [RuntimeError("boom"), SystemExit(3), StageError("no")], ids=repr)
    def test_f1_an_exception_about_what_it_computes_inside_fails_that_request_alone(self, error: BaseException) -> None:
        class Broken(Pooled):
            def busy_with(self, request_id: str) -> bool:  # noqa: ARG002
                raise error

        bench = Bench(Broken())
        bench.add("a", "b")
        bench.obey(ProbeEngine("a"))
        bench.rounds()
        assert list(bench.failures()) == ["a"]
        assert bench.of(EngineIdle) == []
        bench.feed("b", 1, end=True)
        bench.rounds()
        assert bench.text("b") == "1 "


class TestAbort:
    def test_a3_what_exists_comes_with_the_confirmation(self) -> None:
        copier = Copier()
        bench = Bench(copier)
        bench.add("a")
        copier.feed("a", "thinker", Chunk({"n": 7}))
        bench.obey(AbortEngine("a"))
        (aborted,) = bench.of(EngineAborted)
        assert [output.content for output in aborted.outputs] == ["7 "]

    def test_a5_an_unknown_request_is_confirmed_too(self) -> None:
        bench = Bench(Copier())
        bench.obey(AbortEngine("nobody"))
        assert bench.of(EngineAborted) == [EngineAborted("nobody", [])]

    @pytest.mark.parametrize("error", [RuntimeError("boom"), SystemExit(3), InvalidRequestError("no")], ids=repr)
    def test_a6_an_abort_is_confirmed_although_the_engine_raises(self, error: BaseException) -> None:
        bench = Bench(Troubled(raising("abort", "a", error)))
        bench.add("a", "b")
        bench.obey(AbortEngine("a"))
        assert bench.of(EngineAborted) == [EngineAborted("a", [])]
        bench.feed("b", 1, end=True)
        bench.rounds()
        assert bench.text("b") == "1 "

    @pytest.mark.parametrize("returned", [None, "text", [1], ({},)], ids=repr)
    def test_a6_an_abort_is_confirmed_whatever_the_engine_returns(self, returned: Any) -> None:
        copier = Copier()
        copier.abort = lambda request_id: returned  # type: ignore[assignment, method-assign]  # noqa: ARG005
        bench = Bench(copier)
        bench.add("a")
        bench.obey(AbortEngine("a"))
        assert bench.of(EngineAborted) == [EngineAborted("a", [])]


ERRORS = [
    RuntimeError("boom"),
    MemoryError(),
    SystemExit("bye"),
    StageError("out of memory"),
    KeyError("k"),
    asyncio.CancelledError("stop"),
]


class TestF1:
    """An engine's exception ends the request it was about, and no other."""

    @pytest.mark.parametrize("error", ERRORS, ids=repr)
    @pytest.mark.parametrize("method", ["add", "feed", "end_of_input", "has_work"])
    def test_f1_an_exception_about_one_request_fails_it_alone(self, method: str, error: BaseException) -> None:
        bench = Bench(Troubled(raising(method, "bad", error)))
        bench.add("good", "bad", "fine")
        for id_ in ("good", "bad", "fine"):
            bench.feed(id_, 1, end=True)
        bench.rounds()
        assert list(bench.failures()) == ["bad"]
        assert bench.text("good") == bench.text("fine") == "1 "
        assert bench.text("bad") == ("1 " if method == "end_of_input" else "")
        assert bench.rounds() == 0

    @pytest.mark.parametrize("error", ERRORS, ids=repr)
    def test_f1_a_step_that_raises_fails_those_that_were_in_it(self, error: BaseException) -> None:
        bench = Bench(Troubled(raising("step", "bad", error)))
        bench.add("waits", "bad", "with")
        bench.feed("bad", 1)
        bench.feed("with", 2)
        bench.rounds()
        assert set(bench.failures()) == {"bad", "with"}
        bench.feed("waits", 3, end=True)
        bench.rounds()
        assert bench.text("waits") == "3 "
        assert bench.runner.state[0] == "idle"

    @pytest.mark.parametrize("method", ["add", "feed", "end_of_input", "has_work", "step", "abort"])
    def test_f2_an_engine_that_is_broken_is_about_no_request(self, method: str) -> None:
        bench = Bench(Troubled(raising(method, "a", EngineBrokenError("lost"))))

        def use() -> None:
            bench.add("a")
            bench.feed("a", 1, end=True)
            bench.rounds()
            bench.obey(AbortEngine("a"))

        with pytest.raises(EngineBrokenError, match="lost"):
            use()
        assert bench.of(EngineFailed) == bench.of(EngineAborted) == []

    def test_f1_an_error_of_the_tree_keeps_its_kind_and_others_are_stage_errors(self) -> None:
        for error, kind, message in (
            (InvalidRequestError("too long"), InvalidRequestError, "too long"),
            (ValueError("bad shape"), StageError, "ValueError: bad shape"),
        ):
            bench = Bench(Troubled(raising("add", "a", error)))
            bench.add("a")
            (failed,) = bench.of(EngineFailed)
            assert type(failed.error) is kind
            assert failed.error.message == message

    def test_b3_an_error_keeps_nothing_of_what_the_engine_was_fed(self) -> None:
        """Nor does it wait for a garbage collection."""

        class Picky(Copier):
            def feed(self, request_id: str, edge: str, chunk: Chunk) -> None:
                raise StageError(f"{request_id} got a bad chunk from {edge}: {chunk}")

        array = np.zeros(10)
        ended = weakref.ref(array)
        gc.disable()
        try:
            runner = EngineRunner(Picky(), lambda: 1)
            runner.obey(AddToEngine(EngineRequest("a", None, {})))
            runner.obey(FeedEngine("a", "thinker", Chunk({}, {"rows": array})))
            runner.obey(RunEngine("a"))
            del array
            events = runner.round()
            assert events is not None
            assert isinstance(events[-1], EngineFailed)
            assert ended() is None
        finally:
            gc.enable()

    def test_f1_chunks_taken_before_a_failure_are_still_credited(self) -> None:
        bench = Bench(Troubled(raising("end_of_input", "a", RuntimeError("boom"))))
        bench.add("a")
        bench.obey(FeedEngine("a", "thinker", Chunk({"n": 1})), EndEngineInput("a", "thinker"))
        bench.rounds()
        assert EngineTook("a", "thinker", 1) in bench.events

    @pytest.mark.parametrize(
        "returned", [None, "text", {}, (), [None], [StageOutput(None)], [StageOutput([])], 5], ids=repr
    )
    def test_f1_a_step_that_returns_no_outputs_fails_those_that_were_in_it(self, returned: Any) -> None:
        copier = Copier()
        copier.step = lambda ready: returned  # type: ignore[assignment, method-assign]  # noqa: ARG005
        bench = Bench(copier)
        bench.add("a")
        bench.feed("a", 1)
        bench.rounds()
        (message,) = bench.failures().values()
        assert "was expected" in message or "without the id" in message

    def test_f1_an_output_with_an_error_ends_the_request_here(self) -> None:
        copier = Copier()
        copier.step = lambda ready: [StageOutput(ready[0], error=StageError("no"))]  # type: ignore[method-assign]
        bench = Bench(copier)
        bench.add("a")
        bench.feed("a", 1, 2)
        assert bench.rounds() == 2
        assert [type(event) for event in bench.events] == [EngineTook, EngineRan, EngineMade]

    def test_f1_synthetic_faults_come_out_as_errors_of_one_request(self) -> None:
        bench = Bench(create(context(chunks=3, fail_at=2, fault_only="bad")))
        bench.add("bad", "good")
        bench.rounds()
        ends = {event.output.request_id: event.output for event in bench.of(EngineMade)}
        assert ends["bad"].error is not None
        assert ends["good"].finish_reason == "stop"

    @settings(max_examples=200, derandomize=True)
    @given(data=st.data())
    def test_f1_nothing_leaves_the_runner_as_an_exception(self, data: st.DataObject) -> None:
        """Any method may raise at any call. Every request that is added and then aborted is confirmed."""
        draws = st.sampled_from([None] * 6 + ERRORS)

        def trouble(method: str, request_id: str) -> None:
            error = data.draw(draws, label=f"{method} {request_id}")
            if error is not None:
                raise error

        bench = Bench(Troubled(trouble))
        ids = ["a", "b"]
        for _ in range(data.draw(st.integers(1, 12))):
            id_ = data.draw(st.sampled_from(ids))
            match data.draw(st.integers(0, 5)):
                case 0:
                    bench.add(id_, run=False)
                case 1:
                    bench.feed(id_, 1)
                case 2:
                    bench.feed(id_, end=True)
                case 3:
                    bench.obey(RunEngine(id_))
                case 4:
                    bench.obey(HoldEngine(id_))
                case _:
                    bench.events += bench.runner.round() or []
        for id_ in ids:
            bench.obey(AbortEngine(id_))
        assert [event.engine_id for event in bench.of(EngineAborted)] == ids
        assert not bench.runner._requests
        assert all(isinstance(event.error, OmnizmqError) for event in bench.of(EngineFailed))
