"""B1, B4 and W3 at the workers: what bounds memory between two stages, and that the bounds cannot lock each other."""

from __future__ import annotations

import gc
import itertools
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from support.engines import Copier, context
from support.line import Edge, Line

from omnizmq import protocol as wire
from omnizmq.workers.chunks import INLINE_BYTES, unpack_chunk
from omnizmq.workers.engine import Chunk, Engine, EngineRequest, StageOutput
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


def chain(edges: Sequence[Edge], seed: int, limits: Mapping[str, int] | None = None, **options: object) -> Line:
    engines = {stage: synthetic(stage, edges, **options) for stage in ("thinker", "talker", "code2wav")}
    return Line(engines, edges, final=["code2wav"], seed=seed, **(limits or {}))


def withhold_credits(pipeline: Line, request_id: str, source: str, target: str) -> None:
    """That consumer takes what it gets for this request and never says so."""
    way = pipeline._back[(source, target)]
    put = way.put

    def some(frame: wire.EdgeCredit | wire.EdgeClosed) -> None:
        if frame.request_id != request_id or isinstance(frame, wire.EdgeClosed):
            put(frame)

    way.put = some  # type: ignore[assignment, method-assign]


def held(pipeline: Line) -> int:
    """Chunks and outputs that wait anywhere: in gates for a credit, in engine threads for their engine, on the way."""
    gates = [work for worker in pipeline.workers.values() for work in worker.gate._work.values()]
    waiting = sum(len(edge.waiting) for work in gates for edge in work.targets.values())
    waiting += sum(len(work.caller.waiting) for work in gates if work.caller is not None)
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


class TestB1Callers:
    """A caller has a window of unread output a request; beyond it that request alone pauses."""

    @pytest.mark.parametrize("seed", range(10))
    def test_b1_a_caller_that_does_not_read_pauses_its_request_alone(self, seed: int) -> None:
        pipeline = chain(CHAIN, seed, {"window": 4}, chunks=60, chunk_bytes=8)
        slow, other = pipeline.ask("slow"), pipeline.ask("other")
        pipeline.not_reading.add(slow)
        pipeline.settle()
        assert pipeline.report(other, "code2wav").usage["completion_tokens"] == 60
        assert len(pipeline.outputs[slow]) == 4
        assert held(pipeline) <= 4 * sum(edge.window for edge in CHAIN)
        states = [worker.gate.state_of(slow, 1) for worker in pipeline.workers.values()]
        assert [state and state.value for state in states] == ["PARKED", "PARKED", "PAUSED"]
        assert pipeline.paused[slow] == [True]
        pipeline.read(slow)
        pipeline.settle()
        assert pipeline.report(slow, "code2wav").usage["completion_tokens"] == 60
        assert len(pipeline.outputs[slow]) == 60 + (pipeline.outputs[slow][-1].content is None)
        assert pipeline.paused[slow][-1] is False
        assert pipeline.is_empty()

    @pytest.mark.parametrize("window", [1, 2, 7, 8, 9, 16, 100])
    def test_b1_no_caller_ever_has_more_than_its_window_to_read(self, window: int) -> None:
        for seed in range(6):
            pipeline = chain(CHAIN, seed, {"window": window}, chunks=50, chunk_bytes=8)
            requests = [pipeline.ask(f"demo{number}") for number in range(3)]
            most = 0
            while pipeline.step():
                most = max(most, *(pipeline.unread(request) for request in requests))
            assert most <= window
            for request in requests:
                assert pipeline.report(request, "code2wav").usage["completion_tokens"] == 50
            assert pipeline.is_empty()

    def test_b1_what_a_caller_leaves_unread_does_not_grow_with_the_length_of_its_request(self) -> None:
        most = []
        for chunks in (50, 1000):
            pipeline = chain(CHAIN, 1, {"window": 4}, chunks=chunks, chunk_bytes=8)
            pipeline.not_reading.add(pipeline.ask("slow"))
            pipeline.settle()
            most.append(held(pipeline))
        assert most[0] == most[1]

    @pytest.mark.parametrize("seed", range(5))
    def test_b1_a_slow_reader_ends_alone_after_the_grace_and_everywhere(self, seed: int) -> None:
        pipeline = chain(CHAIN, seed, {"window": 4}, chunks=60, chunk_bytes=8)
        slow = pipeline.ask("slow")
        pipeline.not_reading.add(slow)
        pipeline.settle()
        pipeline.tick(29)
        pipeline.settle()
        assert not pipeline.reports[(slow, "code2wav")]
        other = pipeline.ask("other")
        pipeline.tick(1)
        pipeline.settle()
        error = pipeline.report(slow, "code2wav").error
        assert error is not None
        assert (error.code, error.stage, error.retriable) == ("slow_reader", "code2wav", False)
        assert pipeline.report(other, "code2wav").finish_reason == "stop"
        assert pipeline.is_empty()
        assert pipeline.each_reported_once()

    @pytest.mark.parametrize("seed", range(5))
    def test_a3_an_abort_of_a_paused_request_needs_no_credit_and_counts_what_it_discards(self, seed: int) -> None:
        pipeline = chain(CHAIN, seed, {"window": 1}, chunks=60, chunk_bytes=8)
        slow = pipeline.ask("slow")
        pipeline.not_reading.add(slow)
        pipeline.settle()
        gate = pipeline.workers["code2wav"].gate
        (work,) = gate._work.values()
        assert work.caller is not None
        waiting = len(work.caller.waiting)
        pipeline.abort(slow)
        pipeline.settle()
        assert [pipeline.report(slow, stage).finish_reason for stage in pipeline.workers] == ["abort"] * 3
        assert (len(pipeline.outputs[slow]), gate.discarded) == (1, waiting)
        assert pipeline.is_empty()


class Forker(Copier):
    """Copies to all of its targets."""

    def __init__(self, sources: Sequence[str], targets: Sequence[str]) -> None:
        super().__init__(sources, None)
        self._targets = targets

    def _output(self, request_id: str, chunk: Chunk) -> StageOutput:
        return StageOutput(request_id, f"{chunk.meta.get('n')} ", {target: [chunk] for target in self._targets})


class TestB1Slots:
    """Paused and registered requests do not take the places of running ones."""

    @pytest.mark.parametrize("slots", [1, 2, 3])
    def test_b1_no_step_has_more_requests_than_there_are_slots(self, slots: int) -> None:
        edges = [Edge("s", "a", window=2)]
        for seed in range(10):
            engines = {"s": Maker(["a"], [10] * 12), "a": Copier(["s"], None)}
            pipeline = Line(engines, edges, final=[], seed=seed, slots=slots)
            requests = [pipeline.ask(f"demo{number}") for number in range(8)]
            pipeline.settle()
            for engine in engines.values():
                assert max(map(len, engine.stepped)) == slots
            assert all(pipeline.report(request, "a").finish_reason == "stop" for request in requests)
            assert pipeline.is_empty()

    @pytest.mark.parametrize("seed", range(20))
    def test_b1_slots_do_not_lock_a_graph_that_forks(self, seed: int) -> None:
        """The consumers may each run another request, whose chunks wait for the other consumer."""
        edges = [Edge("s", "a", window=1), Edge("s", "b", window=1), Edge("a", "j", window=1), Edge("b", "j", window=2)]
        engines: dict[str, Engine] = {
            "s": Maker(["a", "b"], [10] * 9),
            "a": Forker(["s"], ["j"]),
            "b": Forker(["s"], ["j"]),
            "j": Copier(["a", "b"], None),
        }
        pipeline = Line(engines, edges, final=[], ready=("all", "any")[seed % 2], seed=seed, slots=1 + seed % 2)
        requests = [pipeline.ask(f"demo{number}") for number in range(6)]
        pipeline.settle()
        for request in requests:
            for stage in engines:
                assert pipeline.reports[(request, stage)], f"{request} is stuck in {stage}: {stuck(pipeline)}"
        assert pipeline.is_empty()

    @pytest.mark.parametrize("seed", range(60))
    def test_b1_slots_do_not_lock_graphs_of_any_shape(self, seed: int) -> None:
        chance = random.Random(seed)
        ways = [("s", "a"), ("s", "b"), ("a", "b"), ("a", "j"), ("b", "j"), ("s", "j")]
        kept = [way for way in ways if chance.random() < 0.8] + [("s", "a"), ("a", "j")]
        edges = [
            Edge(*way, chance.choice(["chunk", "chunk", "payload", "relay"]), chance.randrange(1, 4))
            for way in dict.fromkeys(kept)
        ]
        if not any(edge.target == "b" for edge in edges):
            edges = [edge for edge in edges if edge.source != "b"]
        names = [stage for stage in "sabj" if any(stage in (edge.source, edge.target) for edge in edges)]
        engines: dict[str, Engine] = {}
        for stage in names:
            sources = [edge.source for edge in edges if edge.target == stage]
            targets = [edge.target for edge in edges if edge.source == stage]
            engines[stage] = Forker(sources, targets) if sources else Maker(targets, [10] * chance.randrange(1, 12))
        ready = chance.choice(["all", "any"])
        pipeline = Line(engines, edges, final=["j"], ready=ready, seed=seed, slots=chance.randrange(1, 3), window=3)
        requests = [pipeline.ask(f"demo{number}") for number in range(6)]
        pipeline.settle()
        for request in requests:
            for stage in engines:
                assert pipeline.reports[(request, stage)], f"{request} is stuck in {stage}: {stuck(pipeline)}"
                assert pipeline.report(request, stage).finish_reason == "stop", pipeline.report(request, stage).error
        assert pipeline.is_empty()

    def test_b1_paused_requests_take_no_places(self) -> None:
        pipeline = chain(CHAIN, 3, {"window": 2, "slots": 1}, chunks=40, chunk_bytes=8)
        slow = [pipeline.ask(f"slow{number}") for number in range(4)]
        pipeline.not_reading.update(slow)
        pipeline.settle()
        other = pipeline.ask("other")
        pipeline.settle()
        assert pipeline.report(other, "code2wav").finish_reason == "stop"
        assert not any(pipeline.reports[(request, "code2wav")] for request in slow)
        for request in slow:
            pipeline.read(request)
        pipeline.settle()
        assert pipeline.is_empty()


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


# --- B4 with rings -------------------------------------------------------------------------------------------------

QUOTA = 256 << 10
HALF = QUOTA // 2 - 64  # with its header: just what may still lie in the ring
UP_TO_HALF = [10, INLINE_BYTES, INLINE_BYTES + 1, 80_000, 100_000, HALF]
OVER_HALF = [HALF + 1, 160_000, QUOTA - 64, QUOTA - 63, QUOTA, 3 * QUOTA]


def rows(number: int, size: int) -> np.ndarray:
    return np.resize(np.arange(number, number + 251, dtype=np.uint32).astype(np.uint8), size)


class Maker(Copier):
    """A first stage: chunks of these sizes, the same for all its consumers or one for each."""

    def __init__(self, targets: Sequence[str], sizes: Sequence[int], *, shared: bool = True) -> None:
        super().__init__(())
        self._targets = targets
        self._sizes = sizes
        self._shared = shared
        self._made: dict[str, int] = defaultdict(int)

    def step(self, ready: Sequence[str]) -> list[StageOutput]:
        self.stepped.append(list(ready))
        return [self._next(request_id) for request_id in ready]

    def _next(self, request_id: str) -> StageOutput:
        if self._made[request_id] == len(self._sizes):
            return StageOutput(request_id, finish_reason="stop")
        size = self._sizes[self._made[request_id]]
        self._made[request_id] += 1
        number = self._made[request_id]
        chunk = Chunk({"n": number}, {"rows": rows(number, size)})
        made = {target: [chunk if self._shared else Chunk(chunk.meta, chunk.arrays)] for target in self._targets}
        return StageOutput(request_id, chunks=made)


class Hoarder(Copier):
    """Keeps what it is fed, views and all, until all its input has ended. Then it looks at it, and hands it on."""

    def __init__(self, sources: Sequence[str], sizes: Sequence[int], target: str | None = None) -> None:
        super().__init__(sources, target)
        self._sizes = sizes
        self._hoard: dict[str, dict[str, list[Chunk]]] = {}

    def add(self, request: EngineRequest) -> None:
        super().add(request)
        self._hoard[request.request_id] = {source: [] for source in self._sources}

    def feed(self, request_id: str, edge: str, chunk: Chunk) -> None:
        self._hoard[request_id][edge].append(chunk)

    def end_of_input(self, request_id: str, edge: str) -> None:
        super().end_of_input(request_id, edge)
        if self._open[request_id]:
            return
        for chunks in self._hoard.pop(request_id).values():
            assert [chunk.meta["n"] for chunk in chunks] == list(range(1, len(self._sizes) + 1))
            for number, (chunk, size) in enumerate(zip(chunks, self._sizes, strict=True), 1):
                assert np.array_equal(chunk.arrays["rows"], rows(number, size))
            self._held[request_id] += chunks

    def abort(self, request_id: str) -> list[StageOutput]:
        self._hoard.pop(request_id, None)
        return super().abort(request_id)


@pytest.fixture
def nothing_left() -> Iterator[None]:
    yield
    gc.collect()
    maps = Path("/proc/self/maps").read_text().splitlines()
    assert not [line for line in maps if "memfd:omnizmq" in line]
    links = [Path(f"/proc/self/fd/{fd}") for fd in Path("/proc/self/fd").iterdir()]
    assert not [link for link in links if link.is_symlink() and "memfd:omnizmq" in str(link.readlink())]


ORDERS = (("direct", "around"), ("around", "direct"))
MODES = list(itertools.product(("chunk", "payload"), repeat=2))


def fork_join(
    order: Sequence[str], modes: Sequence[str], sizes: Sequence[int], seed: int, *, between: str = "copies"
) -> Line:
    """S -> J, and S -> A -> J; J hoards. `modes` are those of the edges into J."""
    direct = [Edge("s", "j", modes[0], ring=QUOTA)]
    around = [Edge("s", "a", ring=QUOTA), Edge("a", "j", modes[1], ring=QUOTA)]
    edges = [edge for way in order for edge in (direct if way == "direct" else around)]
    engines = {
        "s": Maker(["j", "a"], sizes, shared=seed % 3 > 0),
        "a": Copier(["s"], "j") if between == "copies" else Hoarder(["s"], sizes, "j"),
        "j": Hoarder(["s", "a"] if order[0] == "direct" else ["a", "s"], sizes),
    }
    return Line(engines, edges, final=[], ready=("all", "any")[seed % 2], seed=seed)


def pushed_through(pipeline: Line, requests: int) -> None:
    """All of it comes to its end, with nothing left."""
    asked = [pipeline.ask(f"demo{number}") for number in range(requests)]
    pipeline.settle()
    for request in asked:
        for stage in pipeline.workers:
            assert pipeline.reports[(request, stage)], f"{request} is stuck in {stage}: {stuck(pipeline)}"
            assert pipeline.report(request, stage).finish_reason == "stop", pipeline.report(request, stage).error
    gc.collect()
    pipeline.settle()
    assert pipeline.is_empty()


def stuck(pipeline: Line) -> list[str]:
    return [
        f"{stage}: {[work.state.value for work in worker.gate._work.values()]}, holds {worker.gate.rings()}"
        for stage, worker in pipeline.workers.items()
    ]


@pytest.mark.usefixtures("nothing_left")
class TestB4Rings:
    """Whatever its consumers keep, a ring goes on turning over."""

    @pytest.mark.parametrize("seed", range(6))
    @pytest.mark.parametrize("modes", MODES, ids="-".join)
    @pytest.mark.parametrize("order", ORDERS, ids="-".join)
    def test_b4_two_edges_that_join_do_not_lock_small_rings(
        self, order: Sequence[str], modes: Sequence[str], seed: int
    ) -> None:
        with closing(fork_join(order, modes, _some(seed, UP_TO_HALF), seed)) as pipeline:
            pushed_through(pipeline, 1 + seed % 3)

    @pytest.mark.parametrize("seed", range(6))
    @pytest.mark.parametrize("order", ORDERS, ids="-".join)
    def test_b4_a_stage_between_that_keeps_all_does_not_lock_small_rings(self, order: Sequence[str], seed: int) -> None:
        """J has the direct edge whole before the other begins."""
        sizes = _some(seed, UP_TO_HALF)
        for modes in MODES:
            with closing(fork_join(order, modes, sizes, seed, between="hoards")) as pipeline:
                pushed_through(pipeline, 1 + seed % 2)

    @pytest.mark.parametrize("seed", range(6))
    @pytest.mark.parametrize("order", ORDERS, ids="-".join)
    def test_b4_two_edges_that_join_do_not_lock_when_chunks_are_larger_than_half_a_quota(
        self, order: Sequence[str], seed: int
    ) -> None:
        sizes = _some(seed, [*UP_TO_HALF, *OVER_HALF])
        for modes in MODES:
            with closing(fork_join(order, modes, sizes, seed)) as pipeline:
                pushed_through(pipeline, 1 + seed % 2)

    @pytest.mark.parametrize("large", OVER_HALF)
    def test_b4_a_chunk_over_half_the_quota_gets_past_a_consumer_that_keeps_its_views(self, large: int) -> None:
        sizes = [80_000, 80_000, large, 80_000, large]
        edges = [Edge("s", "j", ring=QUOTA)]
        engines = {"s": Maker(["j"], sizes), "j": Hoarder(["s"], sizes)}
        with closing(Line(engines, edges, final=[], seed=1)) as pipeline:
            pushed_through(pipeline, 1)

    @pytest.mark.parametrize("seed", range(6))
    def test_b4_requests_that_keep_views_do_not_lock_each_other(self, seed: int) -> None:
        """All of one ring, two consumers; J keeps."""
        sizes = _some(seed, UP_TO_HALF)
        edges = [Edge("s", "j", window=8, ring=QUOTA), Edge("s", "k", window=8, ring=QUOTA)]
        engines = {"s": Maker(["j", "k"], sizes), "j": Hoarder(["s"], sizes), "k": Copier(["s"], None)}
        with closing(Line(engines, edges, final=[], seed=seed)) as pipeline:
            pushed_through(pipeline, 6)

    @pytest.mark.parametrize("seed", range(30))
    def test_b4_three_ways_into_one_stage_do_not_lock_whatever_their_shapes(self, seed: int) -> None:
        """Quotas, windows, modes, the order of edges and what each stage keeps: all by chance."""
        chance = random.Random(seed)
        quota = chance.choice([68_000, 80_000, 132_000, 160_000, QUOTA, 400_000])
        near = [10, INLINE_BYTES, INLINE_BYTES + 1, quota // 2 - 64, quota // 2 - 63, quota - 64, quota, 2 * quota]
        sizes = [chance.choice(near) for _ in range(chance.randrange(3, 20))]
        ways = [("s", "j"), ("s", "a"), ("a", "j"), ("s", "b"), ("b", "j")]
        edges = [
            Edge(source, target, chance.choice(["chunk", "payload"]), chance.randrange(1, 8), quota)
            for source, target in chance.sample(ways, len(ways))
        ]
        engines: dict[str, Engine] = {"s": Maker(["j", "a", "b"], sizes, shared=chance.random() < 0.5)}
        for stage in ("a", "b"):
            engines[stage] = Hoarder(["s"], sizes, "j") if chance.random() < 0.5 else Copier(["s"], "j")
        engines["j"] = Hoarder(["s", "a", "b"], sizes)
        with closing(Line(engines, edges, final=[], ready=chance.choice(["all", "any"]), seed=seed)) as pipeline:
            pushed_through(pipeline, chance.randrange(1, 4))

    @pytest.mark.parametrize("seed", range(12))
    def test_b3_after_aborts_at_any_moment_no_ring_holds_a_byte(self, seed: int) -> None:
        sizes = _some(seed, [*UP_TO_HALF, *OVER_HALF])
        with closing(fork_join(ORDERS[seed % 2], MODES[seed % 4], sizes, seed)) as pipeline:
            asked = [pipeline.ask(f"demo{number}") for number in range(3)]
            for request in asked:
                for _ in range(pipeline.chance.randrange(120)):
                    pipeline.step()
                pipeline.abort(request)
            pipeline.settle()
            gc.collect()
            pipeline.settle()
            assert pipeline.each_reported_once()
            assert pipeline.is_empty()

    @pytest.mark.parametrize("seed", range(12))
    def test_r2_chunks_that_come_twice_leave_rings_whole(self, seed: int) -> None:
        with closing(fork_join(ORDERS[seed % 2], MODES[seed % 4], _some(seed, UP_TO_HALF), seed)) as pipeline:
            pipeline.duplicate = 0.3
            pushed_through(pipeline, 2)


def _some(seed: int, sizes: Sequence[int]) -> list[int]:
    return [int(size) for size in np.random.default_rng(seed).choice(sizes, 24)]


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
