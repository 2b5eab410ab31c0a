"""S1, R1, R2, R3, R5 and P5 at the workers: whole pipelines of real gates, runners and engines, over many schedules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import pytest
from support.engines import Copier, Deaf, Troubled, context
from support.line import Edge, Line

from omnizmq import protocol as wire
from omnizmq.workers.engine import Engine
from omnizmq.workers.engines.synthetic import create

SEEDS = range(15)
CHAIN = [Edge("thinker", "talker"), Edge("talker", "code2wav")]
SHAPES = {
    "chain": CHAIN,
    "payload": [Edge("thinker", "talker", "payload"), Edge("talker", "code2wav")],
    "relay": [Edge("thinker", "talker", "relay"), Edge("talker", "code2wav")],
    "relay last": [Edge("thinker", "talker"), Edge("talker", "code2wav", "relay")],
    "diamond": [*CHAIN, Edge("thinker", "code2wav")],
    "diamond with a payload": [*CHAIN, Edge("thinker", "code2wav", "payload")],
    "diamond by the router": [
        Edge("thinker", "talker", "relay"),
        Edge("talker", "code2wav"),
        Edge("thinker", "code2wav"),
    ],
    "fan out": [Edge("thinker", "talker"), Edge("thinker", "code2wav", window=1)],
}
STAGES = ("thinker", "talker", "code2wav")


def engine(stage: str, edges: Sequence[Edge], **options: object) -> Engine:
    """A synthetic stage of that graph: it verifies each chunk that it is fed."""
    return create(
        context(
            stage,
            sources=[edge.source for edge in edges if edge.target == stage],
            targets=[edge.target for edge in edges if edge.source == stage],
            final_output="text" if stage == "code2wav" else None,
            chunk_bytes=16,
            **options,
        )
    )


def line(edges: Sequence[Edge], seed: int, *, chunks: int = 8, ready: str = "all", **others: Engine) -> Line:
    engines = {stage: others.get(stage) or engine(stage, edges, chunks=chunks) for stage in STAGES}
    return Line(engines, edges, final=["code2wav"], ready=ready, seed=seed)


def ended_well(pipeline: Line) -> None:
    assert pipeline.each_reported_once()
    assert pipeline.is_empty()


@pytest.mark.parametrize("edges", SHAPES.values(), ids=SHAPES.keys())
class TestEveryGraph:
    def test_p5_every_request_of_every_graph_ends_whole_in_every_order(self, edges: Sequence[Edge]) -> None:
        for seed in SEEDS:
            pipeline = line(edges, seed)
            requests = [pipeline.ask(f"demo{number}") for number in range(3)]
            pipeline.settle()
            ended_well(pipeline)
            for request in requests:
                for stage in STAGES:
                    report = pipeline.report(request, stage)
                    assert (report.finish_reason, report.error) == ("stop", None)
                into = [edge.source for edge in edges if edge.target == "code2wav"]
                assert pipeline.report(request, "code2wav").usage["completion_tokens"] == 8 * len(into)
                contents = [output.content for output in pipeline.outputs[request] if output.content is not None]
                assert len(contents) == 8 * len(into)
                assert [output.last for output in pipeline.outputs[request]].count(True) == 1
                assert pipeline.outputs[request][-1].last

    def test_r2_duplicates_on_the_wire_change_nothing(self, edges: Sequence[Edge]) -> None:
        for seed in SEEDS:
            plain, doubled = line(edges, seed), line(edges, seed)
            doubled.duplicate = 0.5
            texts = []
            for pipeline in (plain, doubled):
                request = pipeline.ask("demo")
                pipeline.settle()
                ended_well(pipeline)
                assert pipeline.report(request, "code2wav").error is None
                texts.append(sorted(pipeline.text(request)))
            assert texts[0] == texts[1]

    def test_a1_an_abort_at_any_moment_ends_every_stage_once(self, edges: Sequence[Edge]) -> None:
        for seed in SEEDS:
            pipeline = line(edges, seed)
            aborted, other = pipeline.ask("demo"), pipeline.ask("other")
            for _ in range(pipeline.chance.randrange(120)):
                pipeline.step()
            pipeline.abort(aborted)
            pipeline.settle()
            ended_well(pipeline)
            assert pipeline.report(other, "code2wav").finish_reason == "stop"

    @pytest.mark.parametrize("stage", STAGES)
    def test_f1_r3_a_failure_anywhere_ends_its_own_request_once_and_no_other(
        self, edges: Sequence[Edge], stage: str
    ) -> None:
        for seed in SEEDS:
            broken = engine(stage, edges, chunks=8, fail_at=1 + seed % 7, fault_only="bad")
            pipeline = line(edges, seed, **{stage: broken})
            bad, good = pipeline.ask("bad"), pipeline.ask("good")
            pipeline.settle()
            ended_well(pipeline)
            assert pipeline.report(good, "code2wav").finish_reason == "stop"
            error = pipeline.report(bad, stage).error
            assert error is not None
            assert (error.code, error.stage, error.replica) == ("stage_error", stage, f"{stage}/0")

    def test_r5_a_consumer_that_ends_early_closes_its_edges_and_nobody_is_harmed(self, edges: Sequence[Edge]) -> None:
        for seed in SEEDS:
            pipeline = line(edges, seed, chunks=30)
            request = pipeline.ask("demo", code2wav={"max_tokens": 2})
            pipeline.settle()
            ended_well(pipeline)
            reports = [pipeline.report(request, stage) for stage in STAGES]
            assert [report.error for report in reports] == [None] * 3
            assert reports[-1].finish_reason == "length"

    def test_b1_no_edge_ever_has_more_than_its_window_under_way(self, edges: Sequence[Edge]) -> None:
        for seed in SEEDS:
            pipeline = line(edges, seed, chunks=40)
            pipeline.ask("demo")
            pipeline.settle()
            ended_well(pipeline)
            for edge in edges:
                assert pipeline.most_unread[(edge.source, edge.target)] <= edge.window


class TestS1:
    """The receiver exists before the sender can produce."""

    def test_s1_the_consumer_has_registered_before_its_producer_is_submitted(self) -> None:
        for seed in SEEDS:
            pipeline = line(CHAIN, seed)
            request = pipeline.ask("demo")
            pipeline.settle()
            order = [pipeline.facts.index((request, stage, "registered")) for stage in STAGES]
            assert order == sorted(order, reverse=True)
            ended_well(pipeline)

    def test_s1_no_chunk_comes_too_early_and_none_is_lost(self) -> None:
        """The consumer's worker is as slow as it can be: it hears of its submission last of all."""
        for seed in SEEDS:
            pipeline = line(CHAIN, seed, chunks=20)
            request = pipeline.ask("demo")
            pipeline.settle()
            assert [edge.chunks for edge in _counts(pipeline, request)] == [20, 20]
            assert pipeline.report(request, "code2wav").usage["completion_tokens"] == 20


def _counts(pipeline: Line, request: str) -> list[wire.EdgeCount]:
    return [count for stage in STAGES for count in pipeline.report(request, stage).edges]


class TestR1:
    """A placeholder is never computed on."""

    @pytest.mark.parametrize("mode", ["chunk", "payload", "relay"])
    def test_r1_an_engine_that_would_start_at_once_is_kept_waiting(self, mode: str) -> None:
        class Waiting(Copier):
            begun = 0

            def has_work(self, request_id: str) -> bool:
                self.begun += 1
                return super().has_work(request_id)

        edges = [Edge("thinker", "talker", mode)]
        talker = Waiting()
        pipeline = Line(
            {"thinker": engine("thinker", edges, chunks=3, silent_at=1), "talker": talker}, edges, final=["talker"]
        )
        request = pipeline.ask("demo")
        pipeline.settle()
        assert talker.begun == 0
        state = pipeline.workers["talker"].gate.state_of(request, 1)
        expected = {"chunk": "WAITING_FOR_CHUNK", "payload": "WAITING_FOR_INPUT", "relay": None}[mode]
        assert (None if state is None else state.value) == expected
        pipeline.abort(request)
        pipeline.settle()
        ended_well(pipeline)

    def test_r1_input_ready_is_told_before_the_first_step_and_never_without_input(self) -> None:
        for seed in SEEDS:
            pipeline = line(CHAIN, seed)
            request = pipeline.ask("demo")
            pipeline.settle()
            for stage in STAGES:
                facts = [fact for rid, at, fact in pipeline.facts if (rid, at) == (request, stage)]
                steps = [fact for fact in facts if fact != "parked"]
                assert steps == ["registered", "input_ready", "running", "first_output"]


class TestR2:
    @pytest.mark.parametrize("lost", [1, 3, 8])
    def test_r2_a_lost_chunk_fails_the_stage_that_misses_it(self, lost: int) -> None:
        for seed in SEEDS:
            pipeline = line(CHAIN, seed)
            _lose(
                pipeline, "talker", "code2wav", lambda frame: isinstance(frame, wire.ChunkFrame) and frame.seq == lost
            )
            request = pipeline.ask("demo")
            pipeline.settle()
            ended_well(pipeline)
            error = pipeline.report(request, "code2wav").error
            assert error is not None
            assert (error.code, error.stage, error.replica) == ("incomplete_input", "talker", "talker/0")

    def test_r2_a_truncated_result_is_never_a_success(self) -> None:
        """Whatever is lost: all the words came, or an error did, or, with the end itself lost, nothing has ended."""
        ends: Counter[str] = Counter()
        for seed in range(60):
            pipeline = line(CHAIN, seed)
            _lose(pipeline, "talker", "code2wav", lambda _, chance=pipeline.chance: chance.random() < 0.1)
            request = pipeline.ask("demo")
            pipeline.settle()
            reports = pipeline.reports[(request, "code2wav")]
            if not reports:
                ends["none"] += 1
            elif reports[0].error is not None:
                ends[reports[0].error.code] += 1
            else:
                ends["success"] += 1
                assert (reports[0].finish_reason, reports[0].usage["completion_tokens"]) == ("stop", 8)
        assert set(ends) == {"success", "incomplete_input", "none"}, "each of the three was met"


def _lose(pipeline: Line, source: str, target: str, what: Callable[[object], bool]) -> None:
    """Some frames of that edge never arrive."""
    way = pipeline._forward[(source, target)]
    put = way.put
    way.put = lambda frame: None if what(frame) else put(frame)  # type: ignore[method-assign]


class TestR3:
    def test_r3_whichever_report_is_first_it_bears_the_producers_own_error(self) -> None:
        for seed in range(60):
            broken = engine("thinker", CHAIN, chunks=8, fail_at=4)
            pipeline = line(CHAIN, seed, thinker=broken)
            request = pipeline.ask("demo")
            pipeline.settle()
            ended_well(pipeline)
            reports = [pipeline.report(request, stage) for stage in STAGES]
            errors = {report.error for report in reports if report.error is not None and report.finish_reason is None}
            assert {(error.stage, error.message) for error in errors} == {
                ("thinker", "told to fail at output 4 (fail_at)")
            }

    def test_r3_consumers_end_at_once_and_not_at_a_deadline(self) -> None:
        """There is no clock here at all: what ends, ends because it was told."""
        broken = engine("thinker", CHAIN, chunks=8, fail_at=1)
        pipeline = line(CHAIN, 3, thinker=broken)
        request = pipeline.ask("demo")
        pipeline.abort = lambda request_id: None  # type: ignore[method-assign]  # noqa: ARG005
        pipeline.settle()
        assert all(pipeline.report(request, stage).error is not None for stage in STAGES)
        assert pipeline.is_empty()


class TestR4:
    """A stage whose input stops arriving fails after the edge's input deadline."""

    @pytest.mark.parametrize("edges", SHAPES.values(), ids=SHAPES.keys())
    @pytest.mark.parametrize("stage", ["thinker", "talker"])
    def test_r4_a_silent_stage_ends_its_request_alone_with_one_error_that_names_it(
        self, edges: Sequence[Edge], stage: str
    ) -> None:
        if not any(edge.source == stage for edge in edges):
            return  # nobody waits for it
        for seed in SEEDS:
            silent = engine(stage, edges, chunks=8, silent_at=4, fault_only="bad")
            pipeline = line(edges, seed, **{stage: silent})
            bad, good = pipeline.ask("bad"), pipeline.ask("good")
            pipeline.settle()
            pipeline.tick(59)
            pipeline.settle()
            assert not any(pipeline.reports[(bad, stage)])
            pipeline.tick(1)
            pipeline.settle()
            ended_well(pipeline)
            assert pipeline.report(good, "code2wav").finish_reason == "stop"
            error = pipeline.report(bad, stage).error
            assert error is not None
            assert (error.code, error.stage, error.replica, error.retriable) == (
                "input_timeout",
                stage,
                f"{stage}/0",
                True,
            )
            edge = next(edge for edge in edges if edge.source == stage)
            text = f"edge {stage}->{edge.target}: {stage}/0 sent nothing for 60 s after chunk 3 (edge.input_timeout_s)"
            assert error.message == text
            ends = [pipeline.report(bad, each) for each in STAGES if pipeline.reports[(bad, each)]]
            assert {end.error for end in ends if end.error is not None} == {error}

    def test_r4_of_several_silent_stages_the_most_upstream_one_is_named(self) -> None:
        for seed in SEEDS:
            mute = {stage: engine(stage, CHAIN, chunks=8, silent_at=3) for stage in ("thinker", "talker")}
            pipeline = line(CHAIN, seed, **mute)
            request = pipeline.ask("demo")
            pipeline.settle()
            for _ in range(4):
                pipeline.tick(30)
                pipeline.settle()
            ended_well(pipeline)
            errors = [pipeline.report(request, stage).error for stage in STAGES]
            assert {error.replica for error in errors if error is not None} == {"thinker/0"}

    @pytest.mark.parametrize("stage", STAGES)
    def test_r4_healthy_requests_behind_a_busy_stage_outlive_every_deadline(self, stage: str) -> None:
        """Its step takes ten minutes, with eight of them queued there or in one of its neighbours."""
        for seed in SEEDS:
            pipeline = line(CHAIN, seed, chunks=20)
            requests = [pipeline.ask(f"demo{number}") for number in range(8)]
            for _ in range(pipeline.chance.randrange(300)):
                pipeline.step()
            pipeline.frozen.add(stage)
            for _ in range(10):
                pipeline.tick(60)
                pipeline.settle()
            pipeline.frozen.clear()
            pipeline.settle()
            ended_well(pipeline)
            for request in requests:
                assert [pipeline.report(request, each).finish_reason for each in STAGES] == ["stop"] * 3

    def test_r4_requests_that_wait_for_a_slot_outlive_every_deadline(self) -> None:
        """The one that has it waits for a credit that never comes, or is in a step, or is the silent one."""
        for seed in SEEDS:
            silent = engine("talker", CHAIN, chunks=8, silent_at=2, fault_only="bad")
            engines = {stage: engine(stage, CHAIN, chunks=8) for stage in STAGES} | {"talker": silent}
            pipeline = Line(engines, CHAIN, final=["code2wav"], seed=seed, slots=1)
            bad = pipeline.ask("bad")
            pipeline.settle()
            others = [pipeline.ask(f"demo{number}") for number in range(8)]
            for _ in range(6):
                pipeline.tick(30)
                pipeline.settle()
            ended_well(pipeline)
            error = pipeline.report(bad, "talker").error
            assert error is not None
            assert error.code == "input_timeout"
            for request in others:
                assert [pipeline.report(request, each).finish_reason for each in STAGES] == ["stop"] * 3

    def test_r4_a_caller_that_does_not_read_makes_nobody_silent(self) -> None:
        for seed in SEEDS:
            pipeline = Line(
                {stage: engine(stage, CHAIN, chunks=40) for stage in STAGES},
                CHAIN,
                final=["code2wav"],
                seed=seed,
                window=2,
            )
            pipeline.workers["code2wav"].gate._deadlines._reader_grace_ns = 10**15
            slow = pipeline.ask("slow")
            pipeline.not_reading.add(slow)
            pipeline.settle()
            for _ in range(5):
                pipeline.tick(50)
                pipeline.settle()
            pipeline.read(slow)
            pipeline.settle()
            ended_well(pipeline)
            assert [pipeline.report(slow, each).finish_reason for each in STAGES] == ["stop"] * 3


class TestStuckEngines:
    def test_r5_a_consumer_that_never_uses_its_input_takes_it_and_can_be_aborted(self) -> None:
        for seed in SEEDS:
            pipeline = line(CHAIN, seed, talker=Deaf())
            request = pipeline.ask("demo")
            pipeline.settle()
            assert pipeline.report(request, "thinker").finish_reason == "stop"
            assert not pipeline.reports[(request, "talker")]
            pipeline.abort(request)
            pipeline.settle()
            ended_well(pipeline)

    @pytest.mark.parametrize("method", ["add", "feed", "end_of_input", "has_work", "step", "abort"])
    def test_f1_an_engine_that_raises_anywhere_ends_its_requests_once(self, method: str) -> None:
        for seed in SEEDS:
            calls = iter(range(10**6))

            def trouble(name: str, _: str, calls: object = calls, seed: int = seed) -> None:
                if name == method and next(calls) >= seed % 5:  # type: ignore[call-overload]
                    raise RuntimeError(name)

            pipeline = line(CHAIN, seed, talker=Troubled(trouble))
            requests = [pipeline.ask("demo"), pipeline.ask("other")]
            for _ in range(40):
                pipeline.step()
            pipeline.abort(requests[1])
            pipeline.settle()
            for request in requests:
                pipeline.abort(request)
            pipeline.settle()
            ended_well(pipeline)
