"""The gate against a model that predicts every command for each destination, in order, over random histories."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.gate_model import GateModel, by_destination
from support.gate_play import INCARNATION, REPLICA, STAGE, small, source, target

from omnizmq import protocol as wire
from omnizmq.errors import InvalidRequestError, OmnizmqError, StageError
from omnizmq.workers import messages as m
from omnizmq.workers.core import Gate
from omnizmq.workers.engine import Chunk, StageOutput

SOURCES, TARGETS = ("thinker", "hearer"), ("code2wav", "captions")
KEYS = [(f"demo-{number:016x}", attempt) for number in range(2) for attempt in (1, 2)]
PEERS = {stage: source(stage).incarnation for stage in SOURCES} | {
    stage: target(stage).incarnation for stage in TARGETS
}

keys = st.sampled_from([KEYS[0]] * 8 + [KEYS[2]] * 3 + KEYS)
modes = st.sampled_from(["chunk", "chunk", "chunk", "payload", "relay"])
stages = st.sampled_from([*SOURCES, *TARGETS])
producers = st.sampled_from([*SOURCES * 4, *TARGETS])
consumers = st.sampled_from([*TARGETS * 4, *SOURCES])
rarely = st.integers(0, 4).map(lambda number: number == 4)  # hypothesis likes small numbers
incarnation_off = st.sampled_from([0] * 8 + [1])
errors = st.sampled_from([StageError("boom"), InvalidRequestError("too long")])
contents = st.sampled_from([None, "", "word "])
chunk_counts = st.dictionaries(st.sampled_from([*TARGETS, *TARGETS, "nobody"]), st.integers(0, 3), max_size=2)
reasons = st.sampled_from([None] * 8 + ["stop", "length"])
submissions = st.fixed_dictionaries(
    {
        "modes_in": st.lists(modes, max_size=2),
        "modes_out": st.lists(modes, max_size=2),
        "window": st.integers(1, 3),
        "final": st.booleans(),
    }
)


class GateMachine(RuleBasedStateMachine):
    """Every rule feeds one event to both."""

    @initialize(ready=st.sampled_from(["all", "any"]), first=submissions, second=submissions)
    def make(self, ready: str, first: dict[str, Any], second: dict[str, Any]) -> None:
        self.gate = Gate(STAGE, REPLICA, INCARNATION, ready, TARGETS)
        self.model = GateModel(STAGE, REPLICA, INCARNATION, ready, TARGETS)
        self.now = 1_000
        self.made = 0
        self.reports: dict[tuple[str, int], int] = {}
        self.submitted: dict[tuple[str, int], int] = {}
        self.submit(KEYS[0], first)
        self.submit(KEYS[2], second)

    def feed(self, event: m.GateEvent) -> None:
        self.now += 7
        expected = self.model.predict(event, self.now)
        commands = self.gate.handle(event, self.now)
        assert by_destination(commands) == {name: sent for name, sent in expected.items() if sent}, event
        for command in commands:
            if isinstance(command, m.ToRouter) and isinstance(command.frame, wire.StageFinished):
                key = (command.frame.request_id, command.frame.attempt)
                self.reports[key] = self.reports.get(key, 0) + 1

    # --- The router ------------------------------------------------------------------------------------------------

    @rule(key=keys, fields=submissions)
    def submits(self, key: tuple[str, int], fields: dict[str, Any]) -> None:
        self.submit(key, fields)

    def submit(self, key: tuple[str, int], fields: dict[str, Any]) -> None:
        request_id, attempt = key
        frame = wire.SubmitStage(
            request_id=request_id,
            external_id="demo",
            attempt=attempt,
            engine_id=wire.make_engine_id(request_id, attempt, STAGE),
            prompt=None,
            original_prompt=None,
            params={},
            priority=0,
            final=fields["final"],
            sources=[source(stage, mode) for stage, mode in zip(SOURCES, fields["modes_in"], strict=False)],
            targets=[
                target(stage, mode, fields["window"]) for stage, mode in zip(TARGETS, fields["modes_out"], strict=False)
            ],
        )
        if key not in self.model.requests:
            self.submitted[key] = self.submitted.get(key, 0) + 1
        self.feed(m.RouterSent(frame))

    @rule(key=keys, now=rarely)
    def aborts(self, key: tuple[str, int], now: bool) -> None:
        if now:
            self.abort(key)

    def abort(self, key: tuple[str, int]) -> None:
        self.feed(m.RouterSent(wire.AbortStage(*key)))

    @rule(key=keys, stage=producers, number=st.integers(0, 3))
    def relay(self, key: tuple[str, int], stage: str, number: int) -> None:
        frames = [wire.ChunkFrame(*key, PEERS[stage], stage, n, {"n": n}, []) for n in range(1, number + 1)]
        self.feed(m.RouterSent(wire.FeedStage(*key, stage, wire.encode_relay(frames))))

    # --- Peers -----------------------------------------------------------------------------------------------------

    def by(self, stage: str, off: int, frame: wire.ProducerToConsumer | wire.ConsumerToProducer) -> None:
        self.feed(m.PeerSent(f"{stage}/0", PEERS[stage] + off, frame))

    def arrived(self, key: tuple[str, int], stage: str) -> int:
        request = self.model.requests.get(key)
        return 0 if request is None or stage not in request.inflows else len(request.inflows[stage].came)

    @rule(key=keys, stage=producers, step=st.sampled_from([1, 1, 1, 1, 1, 0, -1, 2]), off=incarnation_off)
    def chunk(self, key: tuple[str, int], stage: str, step: int, off: int) -> None:
        seq = self.arrived(key, stage) + step
        self.by(stage, off, wire.ChunkFrame(*key, PEERS[stage], stage, seq, {"n": seq}, []))

    @rule(key=keys, stage=producers, step=st.sampled_from([0, 0, 0, 0, 1, -1]), off=incarnation_off)
    def edge_end(self, key: tuple[str, int], stage: str, step: int, off: int) -> None:
        self.by(stage, off, wire.EdgeEnd(*key, PEERS[stage], stage, self.arrived(key, stage) + step))

    @rule(key=keys, stage=producers, off=incarnation_off, now=rarely)
    def edge_failed(self, key: tuple[str, int], stage: str, off: int, now: bool) -> None:
        if not now:
            return
        error = wire.ErrorInfo("stage_error", "boom", stage, f"{stage}/0", False)
        self.by(stage, off, wire.EdgeFailed(*key, PEERS[stage], stage, error))

    @rule(key=keys, stage=consumers, consumed=st.integers(-1, 12), off=incarnation_off)
    def edge_credit(self, key: tuple[str, int], stage: str, consumed: int, off: int) -> None:
        self.by(stage, off, wire.EdgeCredit(*key, PEERS[stage], stage, consumed))

    @rule(key=keys, stage=consumers, off=incarnation_off, now=rarely)
    def edge_closed(self, key: tuple[str, int], stage: str, off: int, now: bool) -> None:
        if now:
            self.by(stage, off, wire.EdgeClosed(*key, PEERS[stage], stage))

    @rule(stage=stages, off=incarnation_off, now=rarely)
    def peer_lost(self, stage: str, off: int, now: bool) -> None:
        if now:
            self.feed(m.RouterSent(wire.PeerLost(f"{stage}/0", PEERS[stage] + off)))

    @rule(stage=stages, off=incarnation_off, now=rarely)
    def peer_unreachable(self, stage: str, off: int, now: bool) -> None:
        if now:
            self.feed(m.PeerUnreachable(f"{stage}/0", PEERS[stage] + off, "it does not read"))

    # --- The engine ------------------------------------------------------------------------------------------------

    @rule(key=keys, stage=st.sampled_from(SOURCES), most=st.integers(1, 3))
    def engine_took(self, key: tuple[str, int], stage: str, most: int) -> None:
        request = self.model.requests.get(key)
        if request is not None and stage in request.inflows:
            inflow = request.inflows[stage]
            chunks = min(most, inflow.fed - inflow.taken)
            if chunks:
                self.feed(m.EngineTook(self.engine_id(key), stage, chunks))

    @rule(key=keys)
    def engine_ran(self, key: tuple[str, int]) -> None:
        self.feed(m.EngineRan(self.engine_id(key), self.now))

    @rule(
        key=keys,
        content=contents,
        chunks=chunk_counts,
        ended=st.sampled_from([False] * 6 + [True]),
        reason=reasons,
    )
    def engine_made(
        self, key: tuple[str, int], content: str | None, chunks: dict[str, int], ended: bool, reason: str | None
    ) -> None:
        if chunks.pop("nobody", 0) > 2:
            chunks["nobody"] = 1
        self.made += 1
        made = {stage: self.some(count) for stage, count in chunks.items()}
        usage = {"completion_tokens": self.made}
        note = "a note" if reason == "length" else None
        output = StageOutput(self.engine_id(key), content, made, ended, reason, usage, note=note)  # type: ignore[arg-type]
        self.feed(m.EngineMade(output, self.now))

    def some(self, count: int) -> list[Chunk]:
        return [small(100 * self.made + number) for number in range(count)]

    @rule(key=keys, error=errors, by_output=st.booleans(), now=rarely)
    def engine_failed(self, key: tuple[str, int], error: OmnizmqError, by_output: bool, now: bool) -> None:
        if not now:
            return
        if by_output:
            self.feed(m.EngineMade(StageOutput(self.engine_id(key), error=error), self.now))
        else:
            self.feed(m.EngineFailed(self.engine_id(key), error))

    @precondition(lambda self: any(request.aborting for request in self.model.requests.values()))
    @rule(key=keys, texts=st.lists(contents, max_size=2))
    def engine_aborted(self, key: tuple[str, int], texts: list[str | None]) -> None:
        outputs = [StageOutput(self.engine_id(key), text, usage={"completion_tokens": 1}) for text in texts]
        self.feed(m.EngineAborted(self.engine_id(key), outputs))

    def engine_id(self, key: tuple[str, int]) -> str:
        return wire.make_engine_id(*key, STAGE)

    # --- What holds after every step -------------------------------------------------------------------------------

    @invariant()
    def late_events_are_counted(self) -> None:
        if hasattr(self, "gate"):
            assert self.gate.late == self.model.late

    @invariant()
    def the_table_holds_what_has_not_reported(self) -> None:
        """C2: every submission reports exactly once, and is in the table until then."""
        if hasattr(self, "gate"):
            assert self.gate.live == len(self.model.requests)
            for key, count in self.submitted.items():
                here = self.gate.state_of(*key) is not None
                assert self.reports.get(key, 0) == count - here

    @invariant()
    def no_edge_is_over_its_window(self) -> None:
        if hasattr(self, "gate"):
            for request in self.model.requests.values():
                for outflow in request.outflows.values():
                    assert outflow.relay or outflow.out - outflow.taken <= outflow.target.window

    def teardown(self) -> None:
        """B3: whatever state they are in, an abort and its confirmation empty the tables."""
        if not hasattr(self, "gate"):
            return
        for key in list(self.model.requests):
            self.abort(key)
            self.feed(m.EngineAborted(self.engine_id(key), []))
        assert self.gate.live == 0
        assert not self.gate._by_engine_id


GateMachine.TestCase.settings = settings(
    max_examples=300,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=True,
)
TestGateAgainstItsModel = GateMachine.TestCase
