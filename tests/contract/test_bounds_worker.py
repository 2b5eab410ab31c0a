"""B1, B4 and W3 at the workers: what bounds memory between two stages, and that the bounds cannot lock each other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from support.engines import Copier, context
from support.line import Edge, Line

from omnizmq import protocol as wire
from omnizmq.workers.chunks import unpack_chunk
from omnizmq.workers.engine import Chunk, Engine, StageOutput
from omnizmq.workers.engines.synthetic import create

CHAIN = [Edge("thinker", "talker", window=4), Edge("talker", "code2wav", window=2)]


def synthetic(stage: str, edges: Sequence[Edge], **options: object) -> Engine:
    return create(
        context(
            stage,
            sources=[edge.source for edge in edges if edge.target == stage],
            targets=[edge.target for edge in edges if edge.source == stage],
            final_output="text" if stage == "code2wav" else None,
            **options,
        )
    )


def chain(edges: Sequence[Edge], seed: int, **options: object) -> Line:
    stages = ("thinker", "talker", "code2wav")
    return Line({stage: synthetic(stage, edges, **options) for stage in stages}, edges, final=["code2wav"], seed=seed)


def withhold_credits(pipeline: Line, request_id: str, source: str, target: str) -> None:
    """That consumer takes what it gets for this request and never says so."""
    way = pipeline._back[(source, target)]
    put = way.put

    def some(frame: wire.EdgeCredit | wire.EdgeClosed) -> None:
        if frame.request_id != request_id or isinstance(frame, wire.EdgeClosed):
            put(frame)

    way.put = some  # type: ignore[assignment, method-assign]


def held(pipeline: Line) -> int:
    """Chunks that wait anywhere: in gates for a credit, in engine threads for their engine, on the way."""
    gates = [work for worker in pipeline.workers.values() for work in worker.gate._work.values()]
    waiting = sum(len(edge.waiting) for work in gates for edge in work.targets.values())
    inboxes = sum(len(held.inbox) for worker in pipeline.workers.values() for held in worker.runner._requests.values())
    return waiting + inboxes + sum(len(way.messages) for way in pipeline._forward.values())


class TestB1:
    def test_b1_what_waits_between_stages_does_not_grow_with_the_length_of_a_request(self) -> None:
        most = {}
        for chunks in (50, 1000):
            pipeline = chain(CHAIN, 1, chunks=chunks, chunk_bytes=8)
            request = pipeline.ask("demo")
            most[chunks] = 0
            while pipeline.step():
                most[chunks] = max(most[chunks], held(pipeline))
            assert pipeline.report(request, "code2wav").usage["completion_tokens"] == chunks
            assert pipeline.is_empty()
        windows = sum(edge.window for edge in CHAIN)
        assert most[1000] <= most[50] + windows
        assert most[1000] <= 4 * windows

    @pytest.mark.parametrize("seed", range(10))
    def test_b1_a_consumer_that_gives_no_credit_parks_that_request_alone(self, seed: int) -> None:
        pipeline = chain(CHAIN, seed, chunks=30)
        slow, other = pipeline.ask("slow"), pipeline.ask("other")
        withhold_credits(pipeline, slow, "talker", "code2wav")
        pipeline.settle()
        assert pipeline.report(other, "code2wav").finish_reason == "stop"
        for stage in ("thinker", "talker"):
            assert not pipeline.reports[(slow, stage)]
            state = pipeline.workers[stage].gate.state_of(slow, 1)
            assert state is not None
            assert state.value == "PARKED"
        assert pipeline.most_unread[("talker", "code2wav")] <= 2
        assert held(pipeline) <= 12
        pipeline.abort(slow)
        pipeline.settle()
        assert pipeline.is_empty()
        assert pipeline.each_reported_once()

    @pytest.mark.parametrize("seed", range(10))
    def test_b1_a_parked_request_is_in_no_step_of_its_engine(self, seed: int) -> None:
        edges = [Edge("thinker", "talker"), Edge("talker", "code2wav", window=1)]
        talker = Copier()
        engines = {
            "thinker": synthetic("thinker", edges, chunks=20, chunk_bytes=8),
            "talker": talker,
            "code2wav": Copier(["talker"], None),
        }
        pipeline = Line(engines, edges, final=["code2wav"], seed=seed)
        slow = pipeline.ask("slow")
        withhold_credits(pipeline, slow, "talker", "code2wav")
        pipeline.settle()
        stepped = len(talker.stepped)
        other = pipeline.ask("other")
        pipeline.settle()
        assert pipeline.report(other, "talker").finish_reason == "stop"
        name = wire.make_engine_id(slow, 1, "talker")
        assert not any(name in ready for ready in talker.stepped[stepped:])

    def test_b1_an_abort_of_a_parked_request_needs_no_credit(self) -> None:
        pipeline = chain(CHAIN, 5, chunks=30)
        slow = pipeline.ask("slow")
        withhold_credits(pipeline, slow, "talker", "code2wav")
        pipeline.settle()
        pipeline.abort(slow)
        pipeline.settle()
        assert [pipeline.report(slow, stage).finish_reason for stage in pipeline.workers] == ["abort"] * 3


class TestB4:
    """Edges that join in one stage cannot lock each other."""

    @pytest.mark.parametrize("mode", ["relay", "payload"])
    @pytest.mark.parametrize("seed", range(10))
    def test_b4_a_stage_that_waits_for_a_second_edge_does_not_park_the_producer_of_the_first(
        self, mode: str, seed: int
    ) -> None:
        """The second edge begins when the thinker has ended, which makes far more than the first one takes."""
        edges = [Edge("thinker", "talker", mode), Edge("talker", "code2wav"), Edge("thinker", "code2wav", window=2)]
        pipeline = chain(edges, seed, chunks=50, chunk_bytes=8)
        requests = [pipeline.ask(f"demo{number}") for number in range(3)]
        pipeline.settle()
        for request in requests:
            assert pipeline.report(request, "code2wav").usage["completion_tokens"] == 100
        assert pipeline.is_empty()

    def test_b4_every_credit_comes_back_once(self) -> None:
        edges = [Edge("thinker", "talker"), Edge("talker", "code2wav"), Edge("thinker", "code2wav", window=2)]
        for seed in range(10):
            pipeline = chain(edges, seed, chunks=40, chunk_bytes=8)
            credits: dict[tuple[str, str], list[int]] = {}
            for key, way in pipeline._back.items():
                _note_credits(way, credits.setdefault(key, []))
            pipeline.ask("demo")
            pipeline.settle()
            assert pipeline.is_empty()
            for given in credits.values():
                assert given == sorted(set(given))
                assert given[-1] == 40


def _note_credits(way: object, given: list[int]) -> None:
    put = way.put  # type: ignore[attr-defined]

    def noting(frame: object) -> None:
        if isinstance(frame, wire.EdgeCredit):
            given.append(frame.consumed)
        put(frame)

    way.put = noting  # type: ignore[attr-defined]


class _Big(Copier):
    """A first stage: three chunks, each larger than a frame may be."""

    rows = np.arange(3 << 18, dtype=np.float32)

    def __init__(self) -> None:
        super().__init__(())
        self.made = 0

    def step(self, ready: Sequence[str]) -> list[StageOutput]:
        self.made += 1
        if self.made > 3:
            return [StageOutput(ready[0], finish_reason="stop")]
        return [StageOutput(ready[0], chunks={"talker": [Chunk({"n": self.made}, {"rows": self.rows * self.made})]})]


class TestW3:
    def test_w3_chunks_above_a_frame_go_in_parts_and_arrive_whole_and_in_order(self) -> None:
        edges = [Edge("thinker", "talker", window=1)]
        got: list[Chunk] = []

        class Keeping(Copier):
            def feed(self, request_id: str, edge: str, chunk: Chunk) -> None:
                got.append(chunk)
                super().feed(request_id, edge, chunk)

        for seed in range(5):
            got.clear()
            pipeline = Line({"thinker": _Big(), "talker": Keeping(target=None)}, edges, final=[], seed=seed)
            request = pipeline.ask("demo")
            pipeline.settle()
            assert pipeline.is_empty()
            assert [chunk.meta["n"] for chunk in got] == [1, 2, 3]
            for number, chunk in enumerate(got, 1):
                assert np.array_equal(chunk.arrays["rows"], _Big.rows * number)
            assert pipeline.report(request, "thinker").edges[0].bytes == 3 * _Big.rows.nbytes

    def test_w3_no_frame_of_the_router_can_carry_an_intermediate_chunk(self) -> None:
        for union in (wire.ClientToRouter, wire.RouterToClient, wire.RouterToWorker, wire.WorkerToRouter):
            assert wire.ChunkFrame not in union.__args__  # type: ignore[attr-defined]
        content = wire.decode_relay(wire.encode_relay([wire.ChunkFrame("demo", 1, 1, "thinker", 1, {"n": 1}, [])]))
        assert unpack_chunk(content[0]).meta == {"n": 1}
