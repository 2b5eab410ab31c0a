"""The router's I/O: its ROUTER sockets, a tick, and the core between them. The only I/O of this package.

Clients of this machine connect to one socket, and their processes are watched; those of other machines to another one,
encrypted and authenticated, on a lease that their I/O threads renew (A7, W2). Operators are clients that submit nothing
and are counted apart, so that no number of callers keeps them out (B1).

Whoever composes a deployment gives it `hooks`: what to do when a replica must be killed, is loading, is ready, and when
a drain has ended; `facts`, where these go, `written`, which calls when those so far can be read, and `tracing`, which
tells what became of them; `recorder`, where the inputs of its core go. Everything else happens here.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import math
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol, assert_never

import msgspec

from omnizmq import protocol as wire
from omnizmq.config import Config
from omnizmq.errors import ConfigError, InvalidRequestError, OmnizmqError, OverloadedError, ProtocolError
from omnizmq.remote import Server
from omnizmq.router.authentication import Authentication
from omnizmq.router.core import RouterCore
from omnizmq.router.door import REQUEST_ID_CHARS
from omnizmq.router.messages import (
    ClientGone,
    ClientSent,
    Drained,
    Effect,
    FrameUnsendable,
    HandlingFailed,
    Input,
    KillReplica,
    ReplicaExited,
    ReplicaFailed,
    ReplicaLoading,
    ReplicaReady,
    RestartReplica,
    Ticked,
    ToClient,
    ToWorker,
    WorkerJoined,
    WorkerSent,
    WorkerUnreachable,
)
from omnizmq.runtime import ipc_endpoint
from omnizmq.trace.facts import Fact
from omnizmq.trace.sinks import FactSink
from omnizmq.transport import Curve, PeerFullError, PeerGoneError, Router, make_context

log = logging.getLogger(__name__)

MIN_TICK_S = 0.001
GONE_CLIENTS = 4096
FACTS_WRITTEN_S = 0.2
"""How long an answer about a request waits for the facts that it goes with: a disk that is stuck must not keep it."""

_LOCAL, _REMOTE = b"local:", b"remote:"


class Hooks(Protocol):
    """What the router asks of whoever runs the processes."""

    def kill(self, replica: str, incarnation: int, why: str) -> None: ...
    def restart(self, replica: str, incarnation: int) -> None: ...
    def loading(self, replica: str, text: str) -> None: ...
    def failed(self, replica: str, text: str) -> None: ...
    def ready(self, replica: str) -> None: ...
    def drained(self) -> None: ...


class Recorder(Protocol):
    """Where inputs go, and what the core orders upon them; it must never block, and raises nothing. `ended`: why it has
    ended before the router."""

    ended: str | None

    def add(self, event: Input, now: float, effects: Sequence[Effect], *, other: bool) -> None: ...


class _Client:
    """A client that said a good hello. A local one's process is watched (A7)."""

    def __init__(self, socket: Router, identity: bytes, pidfd: int | None) -> None:
        self.socket = socket
        self.identity = identity
        self.pidfd = pidfd
        self.unpacker = wire.Unpacker(wire.client_to_router)


class _Worker:
    def __init__(self, replica: str, incarnation: int) -> None:
        self.peer = (replica, incarnation)
        self.unpacker = wire.Unpacker(wire.worker_to_router)


class RouterServer:
    """One deployment's router. `directory` is its private runtime directory; `remote` says where clients of other
    machines may connect, and who. Raises `ConfigError` when that address cannot be bound."""

    def __init__(
        self,
        config: Config,
        directory: Path,
        nonce: str,
        *,
        hooks: Hooks,
        facts: FactSink,
        written: Callable[[Callable[[], None]], None] = lambda call: call(),
        tracing: Callable[[], dict[str, object]] = dict,
        remote: Server | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        self.core = RouterCore(config)
        self._recorder = recorder
        self.client_endpoint = ipc_endpoint(directory / "clients.sock")
        self.worker_endpoint = ipc_endpoint(directory / "workers.sock")
        self._config = config
        self._nonce = nonce
        self._hooks = hooks
        self._facts = facts
        self._written = written
        self._tracing = tracing
        self._loop = asyncio.get_running_loop()
        self._context = make_context()
        self._packer = wire.Packer()
        self._client_sockets: list[Router] = []
        self._authentication: Authentication | None = None
        self._listen(self.client_endpoint, _LOCAL)
        if remote is not None:
            self._listen_remote(remote)
        self._worker_socket = Router(self._context, self.worker_endpoint, self._worker_data)
        self._clients: dict[bytes, _Client] = {}
        self._operators: set[bytes] = set()  # of these
        self._gone: dict[bytes, str] = {}  # what they had sent may still be read; no identity comes again
        self._workers: dict[bytes, _Worker] = {}
        self._inputs: deque[Input] = deque()
        self._busy = False
        self._pinged = time.monotonic()
        self._timer: asyncio.TimerHandle | None = None
        self._tick_at = math.inf

    def _listen(self, endpoint: str, kind: bytes, curve: Curve | None = None, lease_s: float | None = None) -> None:
        def received(identity: bytes, data: bytes) -> None:
            self._client_data(socket, kind, identity, data)

        limit = self._config.router.max_peer_queue
        socket = Router(self._context, endpoint, received, limit=limit, curve=curve, lease_s=lease_s)
        self._client_sockets.append(socket)

    def _listen_remote(self, remote: Server) -> None:
        self._authentication = Authentication(self._context, remote.client_key)
        curve = Curve(remote.public, remote.secret, remote.client_key)
        try:
            self._listen(remote.endpoint, _REMOTE, curve, self._config.router.heartbeat_timeout_s)
        except OSError as error:
            self._end_sockets()
            raise ConfigError(f"router.remote: {remote.endpoint} cannot be bound: {error.strerror}") from error

    def start(self) -> None:
        for socket in self._client_sockets:
            socket.start()
        self._worker_socket.start()
        self.handle(Ticked())

    def close(self) -> None:
        """Tell clients, then close; what is queued has a moment to leave."""
        for identity in list(self._clients):
            self._send_client(identity, wire.Bye("the deployment has stopped"))
            self._drop_client(identity, "the deployment has stopped")
        if self._timer is not None:
            self._timer.cancel()
        self._worker_socket.close()
        self._end_sockets()

    def _end_sockets(self) -> None:
        for socket in self._client_sockets:
            socket.close()
        if self._authentication is not None:
            self._authentication.close()
        self._context.term()

    # --- The core --------------------------------------------------------------------------------------------------

    def handle(self, event: Input) -> None:
        """Feed the core; carry out its effects. What an effect brings about is fed after it."""
        if self._busy:
            self._inputs.append(event)
            return
        self._busy = True
        try:
            self._feed(event)
            while self._inputs:
                self._feed(self._inputs.popleft())
        finally:
            self._busy = False
        self._arm()

    def _feed(self, event: Input) -> None:
        """F1: whatever goes wrong with one effect ends neither the router nor its clock, nor the others."""
        now = time.monotonic()
        effects = self.core.handle(event, now)
        if self._recorder is not None:
            self._recorder.add(event, now, effects, other=self.core.says_another(event))
        for effect in effects:
            try:
                if type(effect) is Fact:  # many are, and `isinstance` of a struct takes longer than this
                    self._facts.append(effect)
                else:
                    self._carry_out(effect)
            except Exception:
                self.core.counters.router_errors += 1
                log.exception("the router failed to carry out a %s", type(effect).__name__)

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case ToClient():
                self._to_client(effect.client, effect.frame)
            case ToWorker():
                self._send_worker(effect)
            case Fact():
                self._facts.append(effect)
            case KillReplica():
                log.warning("%s#%d is %s: killing it", effect.replica, effect.incarnation, effect.why)
                self._hooks.kill(effect.replica, effect.incarnation, effect.why)
            case RestartReplica():
                log.info("%s#%d is restarted", effect.replica, effect.incarnation)
                self._hooks.restart(effect.replica, effect.incarnation)
            case ReplicaLoading():
                self._hooks.loading(effect.replica, effect.text)
            case ReplicaFailed():
                self._hooks.failed(effect.replica, effect.why)
            case ReplicaReady():
                self._hooks.ready(effect.replica)
            case HandlingFailed():
                log.error("the router failed on a %s", effect.kind, exc_info=effect.error)
            case Drained():
                self._hooks.drained()
            case _:
                assert_never(effect)

    def _to_client(self, key: bytes, frame: wire.RouterToClient) -> None:
        if type(frame) is wire.Status:
            frame = self._with_sinks(frame)
        elif type(frame) is wire.Terminal:
            reason = frame.finish_reason if frame.error is None else frame.error.message
            log.info("%s ended: %s", frame.request_id, reason)
        elif type(frame) is wire.Traced:
            self._when_written(lambda: self._send_client(key, frame))
            return
        self._send_client(key, frame)

    def _when_written(self, send: Callable[[], None]) -> None:
        """Once the facts so far can be read, or `FACTS_WRITTEN_S` from now."""
        done = self._loop.create_future()
        done.add_done_callback(lambda _: send())
        self._loop.call_later(FACTS_WRITTEN_S, _set, done)

        def written() -> None:
            with suppress(RuntimeError):  # the loop was closed before
                self._loop.call_soon_threadsafe(_set, done)

        self._written(written)

    def _with_sinks(self, status: wire.Status) -> wire.Status:
        """What becomes of the facts is no matter of the core's, so it is added here."""
        document = msgspec.json.decode(status.json, type=dict[str, msgspec.Raw])
        ended = None if self._recorder is None else self._recorder.ended
        whole = {**document, "trace": self._tracing(), "recording_ended": ended}
        return wire.Status(status.call, wire.encode_json(whole))

    def _arm(self) -> None:
        """Tick when the core wants it. After nearly every event that is when it wanted it before."""
        wanted = self.core.next_tick()
        if wanted == self._tick_at:
            return
        self._tick_at = wanted
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(max(MIN_TICK_S, wanted - time.monotonic()), self._tick)

    def _tick(self) -> None:
        self._tick_at = math.inf
        self.handle(Ticked())
        # Ticks are at most an interval apart, give or take a moment: half of it lets no ping be left out.
        if time.monotonic() - self._pinged >= self._config.router.heartbeat_interval_s / 2:
            self._pinged = time.monotonic()
            for identity in list(self._clients):
                self._send_client(identity, wire.Ping())

    # --- Clients ---------------------------------------------------------------------------------------------------

    def _client_data(self, socket: Router, kind: bytes, identity: bytes, data: bytes) -> None:
        """Two sockets may give two peers one identity: `kind` tells them apart."""
        key = kind + identity
        client = self._clients.get(key)
        if client is None and key in self._gone:
            self._tell_gone(socket, identity, self._gone[key])
        elif client is None:
            self._client_hello(socket, key, identity, data)
        else:
            self._client_sent(key, client, data)

    def _tell_gone(self, socket: Router, identity: bytes, why: str) -> None:
        """It was sent before the end, or its sender lives and does not know that it was given up."""
        self.core.counters.late_frames += 1
        with suppress(PeerGoneError, PeerFullError):
            socket.send(identity, self._packer.pack(wire.Bye(f"this client was given up: {why}")))

    def _client_sent(self, key: bytes, client: _Client, data: bytes) -> None:
        try:
            frame = client.unpacker.unpack(data)
        except ProtocolError as error:
            self.core.counters.bad_frames += 1
            log.warning("dropped a frame from a client: %s", error)
            return
        if isinstance(frame, wire.Bye):
            self._client_gone(key, "said goodbye")
        elif isinstance(frame, wire.Submit) and key in self._operators:
            self._refuse_submission(key, frame)
        elif frame is not None:
            if isinstance(frame, wire.Submit) and key.startswith(_REMOTE):  # its clock is another machine's
                frame = msgspec.structs.replace(frame, at_ns=time.monotonic_ns())
            self.handle(ClientSent(key, frame))

    def _refuse_submission(self, key: bytes, frame: wire.Submit) -> None:
        self.core.counters.refused += 1
        error = InvalidRequestError("this is an operator's connection, which submits nothing: connect another one")
        self._send_client(key, wire.Refused(frame.request_id[:REQUEST_ID_CHARS], wire.ErrorInfo.of(error)))

    def _client_hello(self, socket: Router, key: bytes, identity: bytes, data: bytes) -> None:
        try:
            hello = wire.decode_hello(data)
            self._check(hello, "client", "operator", known=key.startswith(_REMOTE))
            self._check_room(hello)
            pidfd = None if key.startswith(_REMOTE) else os.pidfd_open(hello.pid)
        except (ProtocolError, OverloadedError) as error:
            self._refuse(socket, identity, error)
            return
        except (OSError, OverflowError):
            self._refuse(socket, identity, ProtocolError(f"process {hello.pid} cannot be watched"))
            return
        self._clients[key] = _Client(socket, identity, pidfd)
        if hello.role == "operator":
            self._operators.add(key)
        if pidfd is not None:
            self._loop.add_reader(pidfd, self._client_gone, key, "its process ended")
        self._send_client(key, self._welcome())

    def _check_room(self, hello: wire.Hello) -> None:
        limits, operators = self._config.router, len(self._operators)
        if hello.role == "operator":
            count, limit, key = operators, limits.max_operators, "max_operators"
        else:
            count, limit, key = len(self._clients) - operators, limits.max_clients, "max_clients"
        if count >= limit:
            raise OverloadedError(f"{limit} {hello.role}s are connected already (router.{key}); try again shortly")

    def _welcome(self) -> wire.Welcome:
        return wire.Welcome(
            version=wire.VERSION,
            name=self._config.name,
            pid=os.getpid(),
            stages=[wire.StageInfo(stage.name, stage.final_output) for stage in self.core.pipeline.stages],
            max_prompt_bytes=self._config.router.max_prompt_bytes,
            output_window=self._config.router.output_window,
            output_window_bytes=self._config.router.output_window_mib << 20,
            lease_s=self._config.router.heartbeat_timeout_s,
        )

    def _send_client(self, key: bytes, frame: wire.RouterToClient) -> None:
        client = self._clients.get(key)
        if client is None:  # it has just gone: its requests end, and nobody reads this
            return
        try:
            client.socket.send(client.identity, self._packer.pack(frame))
        except PeerGoneError:
            self._client_gone(key, "its connection ended")
        except PeerFullError:
            self._give_up(key, client, "the client does not read")
        except ProtocolError as error:
            self._give_up(key, client, error.message)

    def _give_up(self, key: bytes, client: _Client, why: str) -> None:
        """What this client should have got is lost, so it must not wait for more: it hears a goodbye, when it reads."""
        self._client_gone(key, why)
        with suppress(PeerGoneError):
            client.socket.send(client.identity, self._packer.pack(wire.Bye(why)))

    def _client_gone(self, key: bytes, why: str) -> None:
        operator = key in self._operators
        if self._drop_client(key, why):
            self.handle(ClientGone(key, why, operator))

    def _drop_client(self, key: bytes, why: str) -> bool:
        client = self._clients.pop(key, None)
        if client is None:
            return False
        self._operators.discard(key)
        if client.pidfd is not None:
            self._loop.remove_reader(client.pidfd)
            os.close(client.pidfd)
        client.socket.forget(client.identity)
        self._gone[key] = why
        if len(self._gone) > GONE_CLIENTS:
            del self._gone[next(iter(self._gone))]
        return True

    # --- Workers ---------------------------------------------------------------------------------------------------

    def _worker_data(self, identity: bytes, data: bytes) -> None:
        worker = self._workers.get(identity)
        if worker is None:
            self._worker_hello(identity, data)
            return
        try:
            frame = worker.unpacker.unpack(data)
        except ProtocolError as error:
            self.core.counters.bad_frames += 1
            log.warning("dropped a frame from %s#%d: %s", *worker.peer, error)
            return
        if frame is not None:
            self.handle(WorkerSent(*worker.peer, frame))

    def _worker_hello(self, identity: bytes, data: bytes) -> None:
        try:
            hello = wire.decode_hello(data)
            self._check(hello, "worker")
            known = self.core.pools.replicas.get(hello.replica)
            expected = self._identity(hello.replica, hello.incarnation)
            if known is None or known.incarnation != hello.incarnation or identity != expected:
                raise ProtocolError(f"{hello.replica}#{hello.incarnation} is not expected here")
        except ProtocolError as error:
            if identity.endswith(f"#{self._nonce}".encode()):  # of ours, and reaped meanwhile (F3)
                self.core.counters.late_frames += 1
            else:
                self._refuse(self._worker_socket, identity, error)
            return
        self._workers[identity] = _Worker(hello.replica, hello.incarnation)
        self.handle(WorkerJoined(hello.replica, hello.incarnation, hello.endpoint))
        with suppress(PeerGoneError, PeerFullError):  # it has ended already: the reaper will say so
            self._worker_socket.send(identity, self._packer.pack(self._welcome()))

    def _send_worker(self, effect: ToWorker) -> None:
        identity = self._identity(effect.replica, effect.incarnation)
        try:
            self._worker_socket.send(identity, self._packer.pack(effect.frame))
        except PeerGoneError:
            if isinstance(effect.frame, wire.SubmitStage | wire.FeedStage):
                self._unreachable(effect, "it is not connected")
        except PeerFullError:
            self._unreachable(effect, "it does not read")
        except ProtocolError as error:
            about, submission = _about(effect.frame), isinstance(effect.frame, wire.SubmitStage)
            self.handle(FrameUnsendable(effect.replica, effect.incarnation, *about, submission, error.message))

    def _unreachable(self, effect: ToWorker, why: str) -> None:
        self.handle(WorkerUnreachable(effect.replica, effect.incarnation, *_about(effect.frame), why))

    def replica_exited(self, replica: str, incarnation: int, reason: str) -> None:
        """The launcher has reaped it."""
        self._workers.pop(self._identity(replica, incarnation), None)
        self.handle(ReplicaExited(replica, incarnation, reason))

    def _identity(self, replica: str, incarnation: int) -> bytes:
        """A worker's socket bears the launch's secret too, so that nobody else can take its place in the socket."""
        return f"{replica}#{incarnation}#{self._nonce}".encode()

    # --- Handshake (W1, W2) ----------------------------------------------------------------------------------------

    def _check(self, hello: wire.Hello, *roles: str, known: bool = False) -> None:
        """`known`: it has shown a key already, and does not know this launch's nonce."""
        if hello.version != wire.VERSION:
            raise ProtocolError(f"protocol version {hello.version} meets {wire.VERSION}: install the same omnizmq")
        if not known and not hmac.compare_digest(hello.nonce.encode(), self._nonce.encode()):
            raise ProtocolError("this is another launch: its nonce differs")
        if hello.role not in roles:
            raise ProtocolError(f"a {hello.role} does not belong on this socket, a {' or '.join(roles)} does")

    def _refuse(self, socket: Router, identity: bytes, error: OmnizmqError) -> None:
        if isinstance(error, ProtocolError):
            self.core.counters.bad_frames += 1
        else:
            self.core.counters.refused += 1
        log.warning("refused a connection: %s", error)
        try:
            socket.send(identity, self._packer.pack(wire.Refused("", wire.ErrorInfo.of(error))))
        except (PeerGoneError, PeerFullError):
            log.info("the refused peer is gone")


def _set(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)


def _about(frame: wire.RouterToWorker) -> tuple[str, int]:
    """Which attempt of which request the frame submits or feeds; empty for any other frame."""
    return (frame.request_id, frame.attempt) if isinstance(frame, wire.SubmitStage | wire.FeedStage) else ("", 0)
