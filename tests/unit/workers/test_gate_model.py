"""The gate against a model that predicts every command for each destination, in order, over random histories."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.gate_model import GateModel, by_destination, record
from support.gate_play import INCARNATION, REPLICA, STAGE, source, target

from omnizmq import protocol as wire
from omnizmq.errors import InvalidRequestError, OmnizmqError, StageError
from omnizmq.shm.ledger import Slot
from omnizmq.shm.memory import SegmentGoneError, SharedMemoryError
from omnizmq.shm.ring import RingError
from omnizmq.workers import messages as m
from omnizmq.workers.core import Gate
from omnizmq.workers.engine import Chunk, StageOutput
from omnizmq.workers.ring import Share
from omnizmq.workers.work import WorkState

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
quotas = st.sampled_from([160_000, 136_000, 240_000, 72_000, 400_000])
sizes = st.lists(
    st.sampled_from([65_537, 68_000, 79_600, 65_536, None, 96_000, 132_000, 240_000]), min_size=1, max_size=3
)
by_ring = st.sampled_from(["chunk", "payload"])  # an edge has one mode: no reader of a ring is relayed to
pairs = st.sampled_from([(True, True)] * 4 + [(True, False), (False, True)])
found = st.sampled_from(["slot"] * 6 + ["other record", "no memory", "gone", "nothing"])
submissions = st.fixed_dictionaries(
    {
        "modes_in": st.lists(modes, max_size=2),
        "modes_out": st.lists(modes, max_size=2),
        "window": st.integers(1, 3),
        "final": st.booleans(),
        "reader": st.sampled_from([(1000, 1), (1, 1000), (1000, 6), (2, 1000), (1000, 1000), (3, 11)]),
        "unread": st.sampled_from([0, 0, 0, 2]),
        "priority": st.sampled_from([0, 0, 1, -2]),
    }
)
plain = {"reader": (1000, 1000), "unread": 0, "priority": 0, "final": False}
slot_counts = st.sampled_from([64, 64, 1, 2])


class GateMachine(RuleBasedStateMachine):
    """Every rule feeds one event to both."""

    @initialize(ready=st.sampled_from(["all", "any"]), slots=slot_counts, first=submissions, second=submissions)
    def make(self, ready: str, slots: int, first: dict[str, Any], second: dict[str, Any]) -> None:
        self.start(ready, {}, slots)
        self.submit(KEYS[0], first)
        self.submit(KEYS[2], second)

    def start(self, ready: str, rings: dict[str, Share], slots: int) -> None:
        self.gate = Gate(STAGE, REPLICA, INCARNATION, ready, TARGETS, rings, slots=slots)
        self.model = GateModel(STAGE, REPLICA, INCARNATION, ready, TARGETS, rings, slots=slots)
        self.slots = slots
        self.written: list[tuple[str, Slot]] = []
        self.now = 1_000
        self.made = 0
        self.reports: dict[tuple[str, int], int] = {}
        self.submitted: dict[tuple[str, int], int] = {}

    def feed(self, event: m.GateEvent) -> None:
        self.now += 7
        expected = self.model.predict(event, self.now)
        commands = self.gate.handle(event, self.now)
        assert by_destination(commands) == {name: sent for name, sent in expected.items() if sent}, event
        for command in commands:
            if isinstance(command, m.ToRouter) and isinstance(command.frame, wire.StageFinished):
                key = (command.frame.request_id, command.frame.attempt)
                self.reports[key] = self.reports.get(key, 0) + 1
            if isinstance(command, m.WriteSlot):
                self.written.append((command.engine_id, command.slot))

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
            priority=fields["priority"],
            final=fields["final"],
            window=fields["reader"][0],
            window_bytes=fields["reader"][1],
            unread=fields["unread"],
            sources=[source(stage, mode) for stage, mode in zip(SOURCES, fields["modes_in"], strict=False)],
            targets=[
                target(stage, mode, fields["window"]) for stage, mode in zip(TARGETS, fields["modes_out"], strict=False)
            ],
            traceparent="",
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

    @rule(key=keys, consumed=st.sampled_from([1, 1, 2, 3, 0, -1, 1000]), older=rarely)
    def caller_read(self, key: tuple[str, int], consumed: int, older: bool) -> None:
        request = self.model.requests.get(key)
        read = 0 if request is None or request.reader is None or older else request.reader.read
        self.feed(m.RouterSent(wire.OutputCredit(*key, read + consumed, 0)))

    @rule(seconds=st.sampled_from([0, 9, 29, 31, 59, 61]))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds * 10**9
        self.feed(m.Ticked())

    # --- Peers -----------------------------------------------------------------------------------------------------

    def by(self, stage: str, off: int, frame: wire.OnEdge | wire.ConsumerToProducer) -> None:
        self.feed(m.PeerSent(f"{stage}/0", PEERS[stage] + off, frame))

    def arrived(self, key: tuple[str, int], stage: str) -> int:
        request = self.model.requests.get(key)
        return 0 if request is None or stage not in request.inflows else len(request.inflows[stage].came)

    @rule(key=keys, stage=producers, step=st.sampled_from([1, 1, 1, 1, 1, 0, -1, 2]), off=incarnation_off)
    def chunk(self, key: tuple[str, int], stage: str, step: int, off: int) -> None:
        seq = self.arrived(key, stage) + step
        self.by(stage, off, wire.ChunkFrame(*key, PEERS[stage], stage, seq, {"n": seq}, []))

    @rule(key=keys, stage=producers, step=st.sampled_from([1, 1, 1, 1, 1, 0, -1, 2]), off=incarnation_off, what=found)
    def ring_chunk(self, key: tuple[str, int], stage: str, step: int, off: int, what: str) -> None:
        self.ring_chunk_of(key, stage, self.arrived(key, stage) + step, off, what)

    def ring_chunk_of(self, key: tuple[str, int], stage: str, seq: int, off: int, what: str) -> None:
        data = np.full(20, seq % 256, np.uint8)
        data.flags.writeable = False
        shapes = [wire.ArrayShape("rows", "|u1", [20])]
        frame = wire.RingChunk(*key, PEERS[stage], stage, seq, {"n": seq}, shapes, 1, 64, 20, None)
        slots: dict[str, Any] = {
            "slot": data,
            "other record": RingError("other"),
            "no memory": SharedMemoryError("none"),
            "gone": SegmentGoneError("gone"),
        }
        self.feed(m.PeerSent(f"{stage}/0", PEERS[stage] + off, frame, slots.get(what)))

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

    @rule(key=keys, ago=st.sampled_from([0, 10, 50, 70]), off=st.sampled_from([0] * 5 + [-1]))
    def engine_idle(self, key: tuple[str, int], ago: int, off: int) -> None:
        request = self.model.requests.get(key)
        fed = 0 if request is None else request.fed
        self.feed(m.EngineIdle(self.engine_id(key), self.now - ago * 10**9, fed + off))

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
        made = {stage: self.some([None] * count) for stage, count in chunks.items()}
        usage = {"completion_tokens": self.made}
        note = "a note" if reason == "length" else None
        output = StageOutput(self.engine_id(key), content, made, ended, reason, usage, note=note)  # type: ignore[arg-type]
        self.feed(m.EngineMade(output, self.now))

    def some(self, nbytes: list[int | None]) -> list[Chunk]:
        return [
            Chunk({"n": 100 * self.made + number}, {} if size is None else {"rows": np.zeros(size, np.uint8)})
            for number, size in enumerate(nbytes)
        ]

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
    def late_events_are_counted_and_so_is_what_was_discarded(self) -> None:
        if hasattr(self, "gate"):
            assert (self.gate.late, self.gate.discarded) == (self.model.late, self.model.discarded)

    @invariant()
    def no_more_run_than_there_are_slots_and_none_waits_beside_a_free_one(self) -> None:
        if hasattr(self, "gate"):
            states = [self.gate.state_of(*key) for key in self.model.requests]
            running = sum(work.running for work in self.gate._work.values())
            assert running <= self.slots
            assert running == self.slots or WorkState.QUEUED not in states

    @invariant()
    def no_caller_is_over_its_window(self) -> None:
        if hasattr(self, "gate"):
            for request in self.model.requests.values():
                reader = request.reader
                assert reader is None or reader.out - reader.read <= max(reader.window, request.submit.unread)

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

    @invariant()
    def readers_hold_what_the_gate_says(self) -> None:
        """B1: no more than its quota, and one chunk that is over half of it."""
        if hasattr(self, "gate"):
            ring = self.model.ring
            assert self.gate.rings() == ring.uses()
            for peer in ring.readers:
                held = sorted(record(slot.nbytes) for slot in ring.holds[peer].values())
                quota = ring.quota(peer)
                assert sum(held) <= quota or (held[-1] > quota / 2 and sum(held[:-1]) <= quota)

    def teardown(self) -> None:
        """B3: whatever state they are in, an abort and its confirmation empty the tables."""
        if not hasattr(self, "gate"):
            return
        for key in list(self.model.requests):
            self.abort(key)
            self.feed(m.EngineAborted(self.engine_id(key), []))
        assert self.gate.live == 0
        assert not self.gate._by_engine_id
        ring = self.model.ring
        for peer, held in list(ring.holds.items()):
            if held:
                self.feed(m.PeerSent(*peer, wire.SlotsFreed(sorted(held, reverse=True))))
        assert not any(use.used for use in self.gate.rings())
        ledger = self.gate._ring._ledger
        assert (ledger.used, ledger.spilled, ledger._records) == (0, 0, {})
        assert not any(self.gate._ring._lines.values())
        running = self.gate._running
        slots = running._slots
        tables = [
            running._works,
            running._unasked,
            slots._holders,
            slots._places,
            slots._line,
            slots._by_number,
            self.gate._ring._owner,
        ]
        assert not any(tables)


class RingMachine(GateMachine):
    """First stages with two consumers, whose chunks are large and whose quotas are small."""

    @initialize(
        quota=st.tuples(quotas, quotas),
        late=st.sampled_from([(), (), (), TARGETS, TARGETS[:1]]),
        windows=st.tuples(st.integers(2, 6), st.integers(2, 6), st.integers(1, 6)),
        slots=slot_counts,
    )
    def make(self, quota: tuple[int, int], late: tuple[str, ...], windows: tuple[int, ...], slots: int) -> None:
        self.start("all", {stage: Share(each, each) for stage, each in zip(TARGETS, quota, strict=True)}, slots)
        for key, window in zip((KEYS[0], KEYS[1], KEYS[2]), windows, strict=True):
            self.submit(key, {**plain, "modes_in": [], "modes_out": ["chunk", "chunk"], "window": window})
        for stage in TARGETS:
            if stage not in late:
                self.by(stage, 0, wire.RingAnswer(None))

    @rule(key=st.sampled_from(KEYS), modes=st.tuples(by_ring, by_ring), window=st.integers(1, 6))
    def submits(self, key: tuple[str, int], modes: tuple[str, str], window: int) -> None:
        self.submit(key, {**plain, "modes_in": [], "modes_out": list(modes), "window": window})

    @rule(
        key=st.sampled_from(KEYS[:3]), to=pairs, nbytes=sizes, shared=st.sampled_from([True, True, False]), last=rarely
    )
    def pours(
        self, key: tuple[str, int], to: tuple[bool, bool], nbytes: list[int | None], shared: bool, last: bool
    ) -> None:
        if key not in self.model.requests:
            self.submit(key, {**plain, "modes_in": [], "modes_out": ["chunk", "chunk"], "window": 4})
        self.made += 1
        chunks = self.some(nbytes)
        made = {
            stage: chunks if shared else [Chunk(chunk.meta, chunk.arrays) for chunk in chunks]
            for stage, wanted in zip(TARGETS, to, strict=True)
            if wanted
        }
        reason = "stop" if last and self.made % 3 == 0 else None
        output = StageOutput(self.engine_id(key), chunks=made, finish_reason=reason)  # type: ignore[arg-type]
        self.feed(m.EngineMade(output, self.now))

    @rule(stage=consumers, off=incarnation_off, refused=rarely)
    def ring_answer(self, stage: str, off: int, refused: bool) -> None:
        self.by(stage, off, wire.RingAnswer("not here" if refused else None))

    @rule(stage=consumers, off=incarnation_off, picks=st.lists(st.integers(0, 5), max_size=3), other=st.integers(-1, 9))
    def slots_freed(self, stage: str, off: int, picks: list[int], other: int) -> None:
        """Of what it holds, in any order, and now and then what it does not."""
        held = sorted(self.model.ring.holds[(f"{stage}/0", PEERS[stage] + off)])
        slots = [held[pick % len(held)] for pick in picks if held]
        self.by(stage, off, wire.SlotsFreed(slots + [other] * (other < 2)))

    @precondition(lambda self: self.written)
    @rule(last=st.integers(1, 3), now=st.sampled_from([False, True]))
    def slot_unwritten(self, last: int, now: bool) -> None:
        if now:
            engine_id, slot = self.written[-min(last, len(self.written))]
            self.feed(m.SlotUnwritten(engine_id, slot, StageError("boom")))

    @rule(key=st.sampled_from(KEYS[:3]), stage=st.sampled_from(TARGETS), more=st.integers(1, 3))
    def takes(self, key: tuple[str, int], stage: str, more: int) -> None:
        """Credit for what was sent."""
        request = self.model.requests.get(key)
        if request is not None and stage in request.outflows:
            consumed = min(request.outflows[stage].out, request.outflows[stage].taken + more)
            self.by(stage, 0, wire.EdgeCredit(*key, PEERS[stage], stage, consumed))

    @precondition(lambda self: any(self.model.ring.lines.values()))
    @rule(stage=st.sampled_from(TARGETS), place=st.integers(0, 2), close=st.booleans(), now=rarely)
    def leaves(self, stage: str, place: int, close: bool, now: bool) -> None:
        """Whoever stands in a line, at its head or not, ends its edge or its request."""
        line = self.model.ring.lines.get((f"{stage}/0", PEERS[stage]))
        if now and line:
            key = line[min(place, len(line) - 1)]
            if close:
                self.by(stage, 0, wire.EdgeClosed(*key, PEERS[stage], stage))
            else:
                self.abort(key)

    def engine_made(self) -> None:
        """No rules of this machine: what comes in."""

    chunk = ring_chunk = relay = edge_end = edge_failed = engine_took = engine_ran = edge_credit = engine_made


class JoinMachine(GateMachine):
    """Stages that two edges join in, whose input mostly comes as it should."""

    @initialize(ready=st.sampled_from(["all", "all", "any"]), slots=slot_counts)
    def make(self, ready: str, slots: int) -> None:
        self.start(ready, {}, slots)

    @rule(
        key=st.sampled_from(KEYS[:3]),
        modes=st.tuples(st.sampled_from(["chunk", "chunk", "payload"]), st.sampled_from(["chunk", "payload"])),
        stage=st.sampled_from(SOURCES),
        ways=st.lists(st.booleans(), min_size=1, max_size=3),
        ends=rarely,
    )
    def arrives(self, key: tuple[str, int], modes: tuple[str, str], stage: str, ways: list[bool], ends: bool) -> None:
        """The next chunks of an edge, inline or by a ring, and now and then its end."""
        if key not in self.model.requests:
            self.submit(key, {**plain, "modes_in": list(modes), "modes_out": [], "window": 2})
        for by_ring in ways:
            if by_ring:
                self.ring_chunk_of(key, stage, self.arrived(key, stage) + 1, 0, "slot")
            else:
                seq = self.arrived(key, stage) + 1
                self.by(stage, 0, wire.ChunkFrame(*key, PEERS[stage], stage, seq, {"n": seq}, []))
        if ends:
            self.by(stage, 0, wire.EdgeEnd(*key, PEERS[stage], stage, self.arrived(key, stage)))

    def chunk(self) -> None:
        """No rules of this machine: what goes out."""

    relay = submits = edge_credit = edge_closed = engine_made = peer_unreachable = chunk


class SlotMachine(GateMachine):
    """More requests than slots; mostly their engines say truly that they have used what they were fed."""

    @initialize(slots=st.sampled_from([1, 1, 2]))
    def make(self, slots: int) -> None:
        self.start("all", {}, slots)
        for key in KEYS[:3]:
            self.arrives(key, 0, 2)

    @rule(key=st.sampled_from(KEYS), priority=st.sampled_from([0, 0, 1, -1]), outputs=st.integers(1, 3))
    def arrives(self, key: tuple[str, int], priority: int, outputs: int) -> None:
        """The next chunk of a request that may be new."""
        if key not in self.model.requests:
            fields = {"modes_in": ["chunk"], "modes_out": ["chunk"], "window": 2, "final": True}
            self.submit(key, {**plain, **fields, "priority": priority, "reader": (outputs, 1000)})
        seq = self.arrived(key, "thinker") + 1
        self.by("thinker", 0, wire.ChunkFrame(*key, PEERS["thinker"], "thinker", seq, {"n": seq}, []))

    @rule(key=st.sampled_from(KEYS), whole=st.booleans())
    def is_idle(self, key: tuple[str, int], whole: bool) -> None:
        request = self.model.requests.get(key)
        if request is not None and request.engine_runs:
            self.feed(m.EngineIdle(self.engine_id(key), self.now, request.fed - (not whole)))

    @rule(key=st.sampled_from(KEYS), more=st.integers(1, 2))
    def takes(self, key: tuple[str, int], more: int) -> None:
        """Both who read it do."""
        request = self.model.requests.get(key)
        if request is not None and request.reader is not None:
            taken = request.outflows["code2wav"].taken + more
            self.by("code2wav", 0, wire.EdgeCredit(*key, PEERS["code2wav"], "code2wav", taken))
            self.caller_reads(key, request.reader.read + more)

    def caller_reads(self, key: tuple[str, int], outputs: int) -> None:
        self.feed(m.RouterSent(wire.OutputCredit(*key, outputs, 0)))

    def chunk(self) -> None:
        """No rules of this machine: other ways in."""

    submits = relay = ring_chunk = edge_failed = peer_lost = peer_unreachable = engine_failed = engine_ran = chunk


GateMachine.TestCase.settings = settings(
    max_examples=300,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=True,
)
for machine in (RingMachine, JoinMachine, SlotMachine):
    machine.TestCase.settings = GateMachine.TestCase.settings
TestGateAgainstItsModel = GateMachine.TestCase
TestGateWithARingAgainstItsModel = RingMachine.TestCase
TestGateThatJoinsAgainstItsModel = JoinMachine.TestCase
TestGateWithFewSlotsAgainstItsModel = SlotMachine.TestCase
