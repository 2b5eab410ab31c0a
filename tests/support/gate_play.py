"""Transcripts of a worker's gate: `play >> chunk(1) << fed(1) << fact("input_ready") << run()`.

The worker is `talker/0`, incarnation 7, between `thinker/0` (3) and `code2wav/0` (5). The request is `demo`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from omnizmq import protocol as wire
from omnizmq.errors import OmnizmqError, StageError
from omnizmq.shm.ledger import Slot
from omnizmq.shm.memory import SharedMemoryError
from omnizmq.workers.chunks import describe_arrays, pack_arrays, slot_bytes
from omnizmq.workers.core import Gate
from omnizmq.workers.engine import Audio, Chunk, EngineRequest, StageOutput
from omnizmq.workers.messages import (
    AbortEngine,
    AddToEngine,
    EndEngineInput,
    EngineAborted,
    EngineFailed,
    EngineIdle,
    EngineMade,
    EngineRan,
    EngineTook,
    FeedEngine,
    FreeSlot,
    GateCommand,
    GateEvent,
    HoldEngine,
    MeetConsumer,
    PeerSent,
    PeerUnreachable,
    ProbeEngine,
    RouterSent,
    RunEngine,
    SlotUnwritten,
    Ticked,
    ToConsumer,
    ToProducer,
    ToRouter,
    WriteSlot,
)
from omnizmq.workers.ring import Share
from support.playbook import Playbook

STAGE, REPLICA, INCARNATION = "talker", "talker/0", 7
RID, EXTERNAL = "demo-0123456789abcdef", "demo"
NOW = 1_000
TIMES = ("input_wait_s", "first_output_s", "stage_s")

_INCARNATIONS = {"thinker": 3, "hearer": 4, "code2wav": 5, "captions": 6}


def source(stage: str = "thinker", mode: str = "chunk") -> wire.Source:
    return wire.Source(stage, f"{stage}/0", _INCARNATIONS[stage], mode)


def target(stage: str = "code2wav", mode: str = "chunk", window: int = 2) -> wire.Target:
    return wire.Target(stage, f"{stage}/0", _INCARNATIONS[stage], f"ipc:///run/{stage}", mode, window, 60.0)


THINKER, CODE2WAV = source(), target()


class GatePlay(Playbook[GateEvent, GateCommand]):
    """A gate without a request. `now` may be set; times of facts are it.

    That a request is parked shows in what it is not told to do; the facts about it are kept in `parked`.
    """

    def __init__(
        self,
        *,
        ready: str = "all",
        targets: Sequence[str] = ("code2wav", "captions"),
        shares: Mapping[str, Share] | None = None,
        **limits: Any,
    ) -> None:
        self.now = NOW
        self.gate = Gate(STAGE, REPLICA, INCARNATION, ready, targets, shares, **limits)
        self.parked: list[wire.StageFact] = []
        super().__init__(self._handle)

    def _handle(self, event: GateEvent) -> list[GateCommand]:
        commands = self.gate.handle(event, self.now)
        parked = [command for command in commands if _is_parked(command)]
        self.parked += [command.frame for command in parked]
        return [command for command in commands if command not in parked]

    def drops(self, event: GateEvent) -> None:
        """It is counted as late, and brings nothing about."""
        late, live = self.gate.late, self.gate.live
        assert self.gate.handle(event, self.now) == []
        assert (self.gate.late, self.gate.live) == (late + 1, live)

    def closes_again(self, event: PeerSent) -> None:
        """It is a chunk for nobody: late, and its producer hears that nobody reads there (R5)."""
        late, live = self.gate.late, self.gate.live
        frame = event.frame
        assert isinstance(frame, wire.ChunkFrame | wire.RingChunk)
        to = wire.Source(frame.source, event.replica, event.incarnation, "chunk")
        answer = ToProducer(to, wire.EdgeClosed(frame.request_id, frame.attempt, INCARNATION, STAGE))
        assert self.gate.handle(event, self.now) == [answer]
        assert (self.gate.late, self.gate.live) == (late + 1, live)

    def later(self, seconds: float) -> Ticked:
        """So much later, a heartbeat."""
        self.now += round(seconds * 1e9)
        return Ticked()

    def state(self, rid: str = RID, attempt: int = 1) -> str | None:
        state = self.gate.state_of(rid, attempt)
        return None if state is None else state.value

    def registers(self, frame: wire.SubmitStage) -> None:
        """A submission, with what it always brings about; what else it does is left to be named."""
        _ = self >> RouterSent(frame) << fact("registered", frame, self.now) << AddToEngine(engine_request(frame))


def _is_parked(command: GateCommand) -> bool:
    return isinstance(command, ToRouter) and getattr(command.frame, "fact", None) == "parked"


# --- Frames of the router ------------------------------------------------------------------------------------------


def submit(
    *sources: wire.Source,
    targets: Sequence[wire.Target] = (CODE2WAV,),
    final: bool = False,
    rid: str = RID,
    attempt: int = 1,
    prompt: str | None = None,
    priority: int = 0,
    window: int = 1024,
    window_bytes: int = 8 << 20,
    unread: int = 0,
) -> wire.SubmitStage:
    return wire.SubmitStage(
        request_id=rid,
        external_id=EXTERNAL,
        attempt=attempt,
        engine_id=engine_id(rid, attempt),
        prompt=None if prompt is None else wire.Prompt(prompt, None, None),
        original_prompt=None,
        params={"max_tokens": 8},
        priority=priority,
        final=final,
        window=window,
        window_bytes=window_bytes,
        unread=unread,
        sources=list(sources),
        targets=list(targets),
        traceparent=f"00-{'1' * 32}-{'2' * 16}-01",
    )


def engine_id(rid: str = RID, attempt: int = 1) -> str:
    return wire.make_engine_id(rid, attempt, STAGE)


def engine_request(frame: wire.SubmitStage) -> EngineRequest:
    return EngineRequest(
        request_id=frame.engine_id,
        prompt=frame.prompt,
        params=frame.params,
        original_prompt=frame.original_prompt,
        external_id=frame.external_id,
        priority=frame.priority,
        traceparent=frame.traceparent,
    )


def asks_abort(rid: str = RID, attempt: int = 1) -> RouterSent:
    return RouterSent(wire.AbortStage(rid, attempt))


def reads(consumed: int, rid: str = RID, attempt: int = 1, skipped: int = 0) -> RouterSent:
    """The caller has read so many outputs; the first `skipped` it had already."""
    return RouterSent(wire.OutputCredit(rid, attempt, consumed, skipped))


def relayed(*chunks: Chunk, stage: str = "thinker", rid: str = RID) -> RouterSent:
    frames = [chunk_frame(n, chunk, stage) for n, chunk in enumerate(chunks, 1)]
    return RouterSent(wire.FeedStage(rid, 1, stage, wire.encode_relay(frames)))


def lost(stage: str) -> RouterSent:
    return RouterSent(wire.PeerLost(f"{stage}/0", _INCARNATIONS[stage]))


def unreachable(stage: str, why: str = "it does not read") -> PeerUnreachable:
    return PeerUnreachable(f"{stage}/0", _INCARNATIONS[stage], why)


# --- Frames of producers and consumers -----------------------------------------------------------------------------


def small(number: int) -> Chunk:
    """A chunk that compares."""
    return Chunk({"n": number})


def chunk_frame(seq: int, chunk: Chunk, stage: str, rid: str = RID, attempt: int = 1) -> wire.ChunkFrame:
    return wire.ChunkFrame(rid, attempt, _INCARNATIONS[stage], stage, seq, dict(chunk.meta), [])


def by(stage: str, frame: wire.OnEdge | wire.ConsumerToProducer, incarnation: int | None = None) -> PeerSent:
    return PeerSent(f"{stage}/0", _INCARNATIONS[stage] if incarnation is None else incarnation, frame)


def chunk(seq: int, stage: str = "thinker", rid: str = RID, attempt: int = 1) -> PeerSent:
    return by(stage, chunk_frame(seq, small(seq), stage, rid, attempt))


def edge_end(total: int, stage: str = "thinker") -> PeerSent:
    return by(stage, wire.EdgeEnd(RID, 1, _INCARNATIONS[stage], stage, total))


def edge_failed(error: wire.ErrorInfo, stage: str = "thinker") -> PeerSent:
    return by(stage, wire.EdgeFailed(RID, 1, _INCARNATIONS[stage], stage, error))


def gives_credit(consumed: int, stage: str = "code2wav", rid: str = RID) -> PeerSent:
    return by(stage, wire.EdgeCredit(rid, 1, _INCARNATIONS[stage], stage, consumed))


def closes(stage: str = "code2wav", rid: str = RID) -> PeerSent:
    return by(stage, wire.EdgeClosed(rid, 1, _INCARNATIONS[stage], stage))


# --- Rings ---------------------------------------------------------------------------------------------------------


def rows(nbytes: int, number: int = 1) -> Chunk:
    """A chunk with so many bytes in one array. It compares with itself alone."""
    return Chunk({"n": number}, {"rows": np.full(nbytes, number, np.uint8)})


def answers(stage: str = "code2wav", refused: str | None = None) -> PeerSent:
    return by(stage, wire.RingAnswer(refused))


def frees(*slots: int, stage: str = "code2wav", incarnation: int | None = None) -> PeerSent:
    return by(stage, wire.SlotsFreed(list(slots)), incarnation)


def unwritten(slot: Slot, why: str = "boom", rid: str = RID) -> SlotUnwritten:
    return SlotUnwritten(engine_id(rid), slot, StageError(why))


def ring_chunk(
    seq: int,
    chunk: Chunk,
    stage: str = "thinker",
    slot: int = 1,
    data: NDArray[np.uint8] | SharedMemoryError | None = None,
) -> PeerSent:
    """From a producer, with what its reader found there."""
    frame = wire.RingChunk(
        request_id=RID,
        attempt=1,
        incarnation=_INCARNATIONS[stage],
        source=stage,
        seq=seq,
        meta=dict(chunk.meta),
        arrays=describe_arrays(chunk),
        slot=slot,
        offset=64,
        nbytes=slot_bytes(chunk),
        spill=None,
    )
    return PeerSent(f"{stage}/0", _INCARNATIONS[stage], frame, data)


def meets(to: wire.Target = CODE2WAV, quota: int = 0) -> MeetConsumer:
    return MeetConsumer(to, quota)


def writes(chunk: Chunk, slot: int, offset: int | None, *sends: tuple[int, wire.Target], rid: str = RID) -> WriteSlot:
    """The chunk into slot number `slot`, then its frame, with each edge's own number, to each consumer."""
    place = Slot(slot, offset, slot_bytes(chunk))
    frames = [
        wire.RingChunk(
            request_id=rid,
            attempt=1,
            incarnation=INCARNATION,
            source=STAGE,
            seq=seq,
            meta=dict(chunk.meta),
            arrays=describe_arrays(chunk),
            slot=slot,
            offset=offset,
            nbytes=place.nbytes,
            spill=None,
        )
        for seq, _ in sends
    ]
    targets = [to for _, to in sends]
    return WriteSlot(engine_id(rid), place, chunk, list(zip(targets, frames, strict=True)))


def frees_slot(slot: int, offset: int | None, nbytes: int) -> FreeSlot:
    return FreeSlot(Slot(slot, offset, nbytes))


def sent_inline(seq: int, chunk: Chunk, to: wire.Target = CODE2WAV, rid: str = RID) -> ToConsumer:
    frame = wire.ChunkFrame(rid, 1, INCARNATION, STAGE, seq, dict(chunk.meta), pack_arrays(chunk))
    return ToConsumer(to, frame)


# --- What the engine says ------------------------------------------------------------------------------------------


def took(chunks: int, stage: str = "thinker") -> EngineTook:
    return EngineTook(engine_id(), stage, chunks)


def idle(since_ns: int = 0, fed: int = 0, rid: str = RID) -> EngineIdle:
    """The answer to `probe`."""
    return EngineIdle(engine_id(rid), since_ns, fed)


def ran(at_ns: int = NOW) -> EngineRan:
    return EngineRan(engine_id(), at_ns)


def made(
    content: str | Audio | None = None,
    *,
    to: dict[str, Sequence[Chunk]] | None = None,
    at_ns: int = NOW,
    rid: str = RID,
    **fields: Any,
) -> EngineMade:
    return EngineMade(StageOutput(engine_id(rid), content, to or {}, **fields), at_ns)


def engine_failed(error: OmnizmqError, rid: str = RID) -> EngineFailed:
    return EngineFailed(engine_id(rid), error)


def aborted(*contents: str, rid: str = RID, **fields: Any) -> EngineAborted:
    """With the contents that existed; `fields` are those of a last output without content."""
    outputs = [StageOutput(engine_id(rid), content) for content in contents]
    return EngineAborted(engine_id(rid), outputs + ([StageOutput(engine_id(rid), **fields)] if fields else []))


# --- What the gate orders ------------------------------------------------------------------------------------------


def fact(name: str, frame: wire.SubmitStage | None = None, at_ns: int = NOW) -> ToRouter:
    rid, attempt = (RID, 1) if frame is None else (frame.request_id, frame.attempt)
    return ToRouter(wire.StageFact(rid, attempt, INCARNATION, name, at_ns, {}))


def fed(number: int, stage: str = "thinker") -> FeedEngine:
    return FeedEngine(engine_id(), stage, small(number))


def input_ended(stage: str = "thinker") -> EndEngineInput:
    return EndEngineInput(engine_id(), stage)


def run(rid: str = RID) -> RunEngine:
    return RunEngine(engine_id(rid))


def hold(rid: str = RID) -> HoldEngine:
    return HoldEngine(engine_id(rid))


def probe(rid: str = RID) -> ProbeEngine:
    return ProbeEngine(engine_id(rid))


def forget(rid: str = RID) -> AbortEngine:
    return AbortEngine(engine_id(rid))


def credit(consumed: int, to: wire.Source = THINKER) -> ToProducer:
    return ToProducer(to, wire.EdgeCredit(RID, 1, INCARNATION, STAGE, consumed))


def closed(to: wire.Source = THINKER) -> ToProducer:
    return ToProducer(to, wire.EdgeClosed(RID, 1, INCARNATION, STAGE))


def sent(seq: int, number: int | None = None, to: wire.Target = CODE2WAV) -> ToConsumer:
    meta: dict[str, wire.Value] = {"n": seq if number is None else number}
    return ToConsumer(to, wire.ChunkFrame(RID, 1, INCARNATION, STAGE, seq, meta, []))


def ended(total: int, to: wire.Target = CODE2WAV, rid: str = RID) -> ToConsumer:
    return ToConsumer(to, wire.EdgeEnd(rid, 1, INCARNATION, STAGE, total))


def failed_on_edge(error: wire.ErrorInfo, to: wire.Target = CODE2WAV, rid: str = RID) -> ToConsumer:
    return ToConsumer(to, wire.EdgeFailed(rid, 1, INCARNATION, STAGE, error))


def output(seq: int, content: str | wire.Content | None, *, last: bool = False, at_ns: int = NOW) -> ToRouter:
    body = wire.Text(content) if isinstance(content, str) else content
    return ToRouter(wire.Output(RID, 1, INCARNATION, seq, body, last, at_ns))


def counted(stage: str = "code2wav", chunks: int = 0, size: int = 0) -> wire.EdgeCount:
    at_ns = NOW if chunks else 0
    return wire.EdgeCount(stage, chunks, size, at_ns, at_ns, 0)


def finished(
    reason: str | None = "stop",
    *,
    error: wire.ErrorInfo | None = None,
    outputs: int = 0,
    edges: Sequence[wire.EdgeCount] = (),
    usage: dict[str, int | float] | None = None,
    note: str | None = None,
    rid: str = RID,
    at_ns: int = NOW,
) -> Report:
    return Report(
        wire.StageFinished(rid, 1, INCARNATION, reason, error, usage or {}, note, outputs, list(edges), at_ns)
    )


def paused(paused: bool = True, at_ns: int = NOW, rid: str = RID) -> ToRouter:
    return ToRouter(wire.StagePaused(rid, 1, INCARNATION, paused, at_ns))


@dataclass(frozen=True, eq=False)
class Report:
    """Equals the order to send this report, whatever its times are: those have tests of their own."""

    frame: wire.StageFinished

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ToRouter) or not isinstance(other.frame, wire.StageFinished):
            return False
        usage = {name: count for name, count in other.frame.usage.items() if name not in TIMES}
        return msgspec.structs.replace(other.frame, usage=usage) == self.frame

    __hash__ = None  # type: ignore[assignment]


def problem(code: str, message: str, stage: str = STAGE, replica: str = REPLICA, *, retriable: bool) -> wire.ErrorInfo:
    return wire.ErrorInfo(code, message, stage, replica, retriable)
