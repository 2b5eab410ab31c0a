"""One worker process: its sockets on an asyncio loop, its engine in a thread, its gate between them.

This shell translates and nothing more: frames to events for the gate, commands to frames and to the engine's queue.
The loop never computes, so heartbeats, aborts and credits are answered whatever the engine does.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from importlib.metadata import entry_points, version
from pathlib import Path

import msgspec

from omnizmq import lifeline
from omnizmq import protocol as wire
from omnizmq.config import Config
from omnizmq.errors import ConfigError, OmnizmqError, ProtocolError, StageError
from omnizmq.shm.memory import SharedMemoryError
from omnizmq.shm.ring import RingWriter
from omnizmq.transport import Dealer, make_context
from omnizmq.workers.core import Gate
from omnizmq.workers.dataplane import DataPlane, FromPeer
from omnizmq.workers.engine import Engine, EngineBrokenError, EngineContext
from omnizmq.workers.mappings import Mapped
from omnizmq.workers.messages import (
    DropPeer,
    EngineEvent,
    EngineFailed,
    FreeSlot,
    GateCommand,
    GateEvent,
    MeetConsumer,
    PeerSent,
    PeerUnreachable,
    RouterSent,
    SlotData,
    StageAsked,
    Ticked,
    ToConsumer,
    ToProducer,
    ToRouter,
    WriteSlot,
    engine_id_of,
)
from omnizmq.workers.peers import Peers
from omnizmq.workers.ring import Peer, ring_shares
from omnizmq.workers.spec import WorkerSpec, decode
from omnizmq.workers.thread import EngineThread

log = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 2.0
SWITCH_INTERVAL_S = 0.0005
"""How long an engine that computes in Python keeps the interpreter while the socket thread wants it. Python's own 5 ms
are felt at every step of a chunk's way (docs/performance.md)."""
FAILED_LINGER_S = 5.0
SILENT_BEATS = 2
"""A router that has said nothing for so many heartbeats does not hand on anybody's credits either."""


class Worker:
    """`run` returns the exit status."""

    def __init__(self, spec: WorkerSpec) -> None:
        self._spec = spec
        self._targets = tuple(edge.target for edge in spec.config.edge if edge.source == spec.stage)
        self._shares = ring_shares(spec.config, spec.stage)
        self._gate = self._make_gate()
        self._loop = asyncio.get_running_loop()
        self._context = make_context()
        self._packer = wire.Packer()
        self._unpacker = wire.Unpacker(wire.router_to_worker)
        self._plane = DataPlane(
            self._context,
            spec.data_endpoint,
            replica=spec.replica,
            incarnation=spec.incarnation,
            nonce=spec.nonce,
            received=self._peer_sent,
            lost=self._peer_lost,
            mapping=lambda change: self._thread.put(change),
        )
        self._peers = Peers(self._plane, spec.stage, spec.replica, self._later)
        identity = f"{spec.replica}#{spec.incarnation}#{spec.nonce}".encode()
        # Without a limit: a router that does not read is given up after `heartbeat_timeout_s`, which bounds it.
        self._router = Dealer(self._context, spec.router_endpoint, self._router_sent, identity=identity, limit=None)
        self._thread = EngineThread(
            self._load,
            loaded=self._engine_loaded,
            said=self._engine_said,
            broke=lambda error: self._post(lambda: self._broken(error)),
        )
        self._progress = "loading"
        self._failure: tuple[int, str] | None = None  # exit status and reason of a failed start or a broken engine
        self._heard = time.monotonic()
        self._ended: asyncio.Future[int] = self._loop.create_future()

    async def run(self) -> int:
        self._plane.start()
        self._router.start()
        hello = wire.Hello(
            wire.VERSION,
            self._spec.nonce,
            "worker",
            pid=os.getpid(),
            replica=self._spec.replica,
            incarnation=self._spec.incarnation,
            endpoint=self._spec.data_endpoint,
        )
        self._router.send([wire.encode_hello(hello)])
        self._loop.add_signal_handler(signal.SIGTERM, self._terminated)
        self._loop.add_signal_handler(signal.SIGHUP, self._orphaned)
        self._loop.add_reader(sys.stdin.fileno(), self._stdin_ended)
        self._beat()
        self._thread.start()
        status = await self._ended
        lifeline.brace()
        loading = self._thread.state[0] == "loading"  # there is nothing to close, and no end to wait for
        if not loading and not await asyncio.to_thread(self._thread.stop, CLOSE_TIMEOUT_S):
            log.warning("the engine did not close within %s s", CLOSE_TIMEOUT_S)
        self._router.close()
        self._plane.close()
        self._context.term()  # what was said last has a moment to leave
        return status

    def _make_gate(self) -> Gate:
        spec, stage, limits = self._spec, self._spec.stage_config, self._spec.config.router
        return Gate(
            spec.stage,
            spec.replica,
            spec.incarnation,
            stage.ready,
            self._targets,
            self._shares,
            slots=stage.max_inflight,
            priority_age_s=limits.priority_age_s,
            reader_grace_s=limits.slow_reader_grace_s,
            output_timeout_s=stage.output_timeout_s,
            input_timeouts_s=unfed_limits(spec.config, spec.stage),
            trace_chunks=limits.trace and limits.trace_chunks,
        )

    def _end(self, status: int) -> None:
        if not self._ended.done():
            self._ended.set_result(status)

    def _terminated(self) -> None:
        self._end(0 if self._failure is None else self._failure[0])

    def _stdin_ended(self) -> None:
        if not os.read(sys.stdin.fileno(), 1024):
            self._orphaned()

    def _orphaned(self) -> None:
        log.warning("the router is gone: ending")
        lifeline.brace()
        lifeline.end_with_group(self._spec.runtime_dir, self._spec.nonce)

    # --- The engine ------------------------------------------------------------------------------------------------

    def _load(self, wake: Callable[[], None]) -> Engine:
        """In the engine thread."""
        self._make_ring()
        spec, stage = self._spec, self._spec.stage_config
        private_dir = Path(spec.private_dir)
        private_dir.mkdir(mode=0o700, exist_ok=True)
        context = EngineContext(
            stage=spec.stage,
            model=spec.config.model,
            device=tuple(spec.devices),
            options=stage.options,
            sources=tuple(edge.source for edge in spec.config.edge if edge.target == spec.stage),
            targets=self._targets,
            final_output=stage.final_output,
            max_inflight=stage.max_inflight,
            private_dir=private_dir,
            wake=wake,
            progress=lambda text: self._post(lambda: self._progressed(text)),
            priority_age_s=spec.config.router.priority_age_s,
            broken=lambda reason: self._post(lambda: self._broken(EngineBrokenError(reason))),
        )
        found = entry_points(group="omnizmq.engines", name=stage.engine)
        if not found:
            known = ", ".join(sorted(entry.name for entry in entry_points(group="omnizmq.engines")))
            raise ConfigError(f"stage {spec.stage} names an unknown engine {stage.engine!r}; there are: {known}")
        engine: Engine = next(iter(found)).load()(context)
        return engine

    def _make_ring(self) -> None:
        nbytes = sum(share.capacity for share in self._shares.values())
        if not nbytes:
            return
        try:
            self._plane.ring = ring = RingWriter(nbytes)
        except SharedMemoryError as error:
            raise ConfigError(
                f"the ring of stage {self._spec.stage} is the sum of its edges' ring_mib: {error}"
            ) from error
        self._thread.put(Mapped(ring.memory))

    def _post(self, call: Callable[[], None]) -> None:
        """From the engine's threads to the loop; the loop may have ended."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(call)

    def _progressed(self, text: str) -> None:
        self._progress = text
        self._send_heartbeat()

    def _engine_loaded(self, error: Exception | None) -> None:
        self._post(lambda: self._loaded(error))

    def _loaded(self, error: Exception | None) -> None:
        """A failure is told, and whoever hears of it ends this worker: so it is heard before the process is reaped."""
        if error is None:
            self._progress = ""
        elif isinstance(error, ConfigError):
            self._failure = (lifeline.EXIT_MISCONFIGURED, error.message)
        else:
            text = error.message if isinstance(error, OmnizmqError) else f"{type(error).__name__}: {error}"
            self._failure = (lifeline.EXIT_FAILED_START, text)
        self._send_heartbeat()
        if self._failure is not None:
            self._loop.call_later(FAILED_LINGER_S, self._end, self._failure[0])

    def _broken(self, error: EngineBrokenError) -> None:
        """No request is told: the router gives this replica up, and what follows for them is its matter (F2)."""
        if self._failure is None:
            self._failure = (lifeline.EXIT_BROKEN, str(error))
            self._send_heartbeat()
            self._loop.call_later(FAILED_LINGER_S, self._end, self._failure[0])

    def _engine_said(self, events: list[EngineEvent]) -> None:
        self._post(lambda: self._handle_all(events))

    def _handle_all(self, events: list[EngineEvent]) -> None:
        try:
            for event in events:
                self._handle(event)
        finally:
            self._thread.heard()

    # --- Frames in -------------------------------------------------------------------------------------------------

    def _router_sent(self, data: bytes) -> None:
        self._heard = time.monotonic()
        try:
            frame = self._unpacker.unpack(data)
        except ProtocolError as error:
            log.warning("dropped a frame from the router: %s", error)
            return
        match frame:
            case None | wire.Welcome() | wire.Ping():
                return
            case wire.Refused():
                log.error("the router refused this worker: %s", frame.error.message)
                self._end(lifeline.EXIT_FAILED_START)
            case wire.AskStage():
                self._handle(StageAsked(frame, *self._thread.state, self._thread.at_work_on))
            case _:
                self._handle(RouterSent(frame))

    def _peer_sent(self, peer: Peer, frame: FromPeer, data: SlotData) -> None:
        self._handle(PeerSent(*peer, frame, data))

    def _peer_lost(self, peer: Peer, why: str) -> None:
        self._later(PeerUnreachable(*peer, why))

    # --- The gate --------------------------------------------------------------------------------------------------

    def _handle(self, event: GateEvent) -> None:
        if self._router.closed or self._failure is not None:  # this worker has ended, and something came late
            return
        try:
            for command in self._ask_gate(event):
                self._carry_out(command)
        except EngineBrokenError as error:  # a tensor of the engine's could not be copied
            self._broken(error)

    def _ask_gate(self, event: GateEvent) -> list[GateCommand]:
        try:
            return self._gate.handle(event, time.monotonic_ns())
        except EngineBrokenError:
            raise
        except Exception as error:  # F1: the boundary between one request and all the others
            log.exception("the gate failed on a %s", type(event).__name__)
            engine_id = engine_id_of(event, self._spec.stage)
            if engine_id is not None:
                self._later(EngineFailed(engine_id, StageError(f"{type(error).__name__}: {error}")))
            return []

    def _carry_out(self, command: GateCommand) -> None:
        match command:
            case ToRouter():
                self._to_router(command.frame)
            case ToConsumer() | ToProducer() | MeetConsumer() | WriteSlot() | FreeSlot() | DropPeer():
                self._peers.carry_out(command)
            case _:
                self._thread.put(command)

    def _to_router(self, frame: wire.WorkerToRouter) -> None:
        try:
            self._router.send(self._packer.pack(frame))
        except ProtocolError as error:
            log.error("%s", error.message)
            if not isinstance(frame, wire.Heartbeat):
                engine_id = wire.make_engine_id(frame.request_id, frame.attempt, self._spec.stage)
                self._later(EngineFailed(engine_id, StageError(error.message)))

    def _later(self, event: GateEvent) -> None:
        """After the commands that brought it about."""
        self._loop.call_soon(self._handle, event)

    # --- Heartbeats ------------------------------------------------------------------------------------------------

    def _beat(self) -> None:
        limits = self._spec.config.router
        self._send_heartbeat()
        silent = time.monotonic() - self._heard
        self._handle(Ticked(deaf=silent > SILENT_BEATS * limits.heartbeat_interval_s))
        if silent > limits.heartbeat_timeout_s:
            self._orphaned()
        self._loop.call_later(limits.heartbeat_interval_s, self._beat)

    def _send_heartbeat(self) -> None:
        if self._router.closed:
            return
        state, since_ns = self._thread.state
        text = self._progress
        if self._failure is not None:
            state, text = "failed", self._failure[1]
        self._to_router(
            wire.Heartbeat(
                incarnation=self._spec.incarnation,
                state=state,
                since_ns=since_ns,
                text=text,
                rings=self._gate.rings(),
                late_frames=self._gate.late,
                bad_frames=self._plane.bad_frames,
                discarded=self._gate.discarded,
            )
        )


def unfed_limits(config: Config, stage: str) -> dict[str, float]:
    """How long a join waits for each edge in, in seconds, when it cannot take more of another: as long as the source
    may be in a step, and then be silent."""
    steps = {one.name: one.step_timeout_s for one in config.stage}
    return {edge.source: steps[edge.source] + edge.input_timeout_s for edge in config.edge if edge.target == stage}


async def _run(spec: WorkerSpec) -> int:
    return await Worker(spec).run()


def main() -> None:
    """The process: `python -m omnizmq.workers`, a `WorkerSpec` on standard input."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        spec = decode(sys.stdin.buffer.raw.readline())  # type: ignore[union-attr]
    except msgspec.MsgspecError as error:
        sys.exit(
            f"omnizmq {version('omnizmq')} cannot read what its launcher says ({error}): "
            "install the same omnizmq in both"
        )
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format=f"%(asctime)s {spec.replica} %(levelname)s %(message)s"
    )
    if not lifeline.hold(spec.parent_pid):
        lifeline.end_with_group(spec.runtime_dir, spec.nonce)
    try:
        status = asyncio.run(_run(spec))
    except Exception:
        log.exception("the worker failed")
        status = 1
    sys.stderr.flush()
    os._exit(status)
