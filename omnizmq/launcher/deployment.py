"""A deployment in this process: runtime directory, trace, router, and workers and plugins as children (F5, F6).

`start` returns when every stage can serve and every plugin listens, or rolls back and raises. `drain` lets live
requests end; `stop` ends what is left, in order: plugins, workers, router, trace, directory.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import msgspec

from omnizmq import __version__, remote, runtime
from omnizmq.config import Config
from omnizmq.errors import ConfigError, LaunchError, OmnizmqError
from omnizmq.launcher import visibility
from omnizmq.launcher.plugins import Plugins
from omnizmq.launcher.process import WorkerProcess, trim_log
from omnizmq.launcher.retention import prune_own_states
from omnizmq.launcher.supervisor import AllReady, FailLaunch, Order, Spawn, Supervisor
from omnizmq.launcher.tracing import Tracing
from omnizmq.lifeline import EXIT_MISCONFIGURED
from omnizmq.protocol import VERSION
from omnizmq.recording import file as recordings
from omnizmq.recording.recorder import Recorder
from omnizmq.router.messages import DrainAsked, ReplicaStarting, StopAsked
from omnizmq.router.server import RouterServer
from omnizmq.runtime import Deployment, RuntimeDir
from omnizmq.transport import make_keys
from omnizmq.workers.spec import WorkerSpec

log = logging.getLogger(__name__)

STOP_TIMEOUT_S = 4.0
LAST_WORDS_S = 0.05
LOG_CHECK_S = 60.0
DAY_S = 24 * 3600.0

Progress = Callable[[str, str], None]
"""Called with a replica or plugin and what it does: `loading …`, `ready`."""


class LocalDeployment:
    """One deployment on this machine. It implements the router's `Hooks`."""

    def __init__(
        self, config: Config, name: str, progress: Progress, recording: tuple[Path, int] | None = None
    ) -> None:
        """`recording`: the file that the router's inputs are recorded to, and the most MiB it may have. Raises
        `ConfigError`."""
        self.config = msgspec.structs.replace(config, name=runtime.check_name(name))
        visibility.check(config, os.environ)
        self.name = name
        self._progress = progress
        self._loop = asyncio.get_running_loop()
        self._supervisor = Supervisor(config)
        self._workers: dict[str, WorkerProcess] = {}
        self._loading: dict[str, str] = {}
        self._causes: dict[str, str] = {}  # replica -> why it ends: what its engine said, or why it was killed
        self._nonce = secrets.token_hex(16)
        self._started: asyncio.Future[None] = self._loop.create_future()
        self._drained = asyncio.Event()
        self._stopping = False
        self._reaping: dict[str, asyncio.TimerHandle] = {}
        self._restart: asyncio.TimerHandle | None = None
        self._log_check: asyncio.TimerHandle | None = None
        state = runtime.state_dir(name)
        self._logs = state / "logs"
        try:
            self._logs.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"log directory {self._logs} cannot be made: {error.strerror}") from error
        self._directory = RuntimeDir.create(name)
        with ExitStack() as undo:
            undo.callback(self._directory.remove)
            prune_own_states(self.config.router.trace_max_age_days * DAY_S)
            self._tracing = Tracing(self.config, state)
            undo.callback(self._tracing.stop)
            self._recorder = None if recording is None else self._make_recorder(*recording)
            if self._recorder is not None:
                undo.callback(self._recorder.close, "the deployment did not start")
            self._server = self._make_server(state)
            self._plugins = Plugins(self.config, self._nonce, self._directory.path, self._logs, progress)
            undo.pop_all()

    def _make_server(self, state: Path) -> RouterServer:
        """Raises `ConfigError`."""
        endpoint = self.config.router.remote
        served = remote.serve(state, self.name, endpoint, VERSION, make_keys) if endpoint else None
        if served is not None:
            log.info("clients of other machines: %s, with %s", endpoint, remote.file(state))
        return RouterServer(
            self.config,
            self._directory.path,
            self._nonce,
            hooks=self,
            facts=self._tracing.facts,
            written=self._tracing.written,
            tracing=self._tracing.status,
            remote=served,
            recorder=self._recorder,
        )

    def _make_recorder(self, path: Path, max_mib: int) -> Recorder:
        """Raises `ConfigError`."""
        header = recordings.header(self.config, version=__version__, started=time.time())
        return Recorder(path, header, max_mib=max_mib)

    @property
    def endpoint(self) -> str:
        return self._server.client_endpoint

    @property
    def plugins(self) -> dict[str, str]:
        """Each plugin, and where it listens."""
        return self._plugins.where

    async def start(self) -> Deployment:
        """Raises `LaunchError` or `ConfigError` after everything that was started has been rolled back (F5)."""
        try:
            self._server.start()
            self._obey(self._supervisor.start(time.monotonic()))
            self._check_logs()
            await self._started
            deployment = Deployment(self.name, self.endpoint, self._nonce, os.getpid(), time.time(), VERSION)
            self._directory.publish(deployment)
            await self._plugins.start()
        except BaseException:
            await self.stop()
            raise
        return deployment

    async def drain(self) -> None:
        """No new requests; live ones have `drain_timeout_s` to end, then they are ended."""
        self._server.handle(DrainAsked())
        limits = self.config.router
        for limit, why in ((limits.drain_timeout_s, "the deployment is stopping"), (limits.abort_timeout_s + 1, "")):
            with suppress(TimeoutError):
                await asyncio.wait_for(self._drained.wait(), limit)
                return
            if why:
                self._server.handle(StopAsked(why))
        log.warning("not everything could be drained")

    async def stop(self) -> None:
        self._stopping = True
        self._supervisor.stop()
        for timer in (self._restart, self._log_check):
            if timer is not None:
                timer.cancel()
        await self._plugins.stop()
        self._server.handle(StopAsked("the deployment has stopped"))
        await self._end_workers()
        for last_words in self._reaping.values():
            last_words.cancel()
        self._server.close()
        await self._tracing.close()
        if self._recorder is not None:
            await asyncio.to_thread(self._recorder.close, "the deployment has stopped")
        self._directory.remove()

    async def _end_workers(self) -> None:
        workers = list(self._workers.values())
        for worker in workers:
            worker.terminate()
        gone = [worker.gone for worker in workers]
        if gone:
            await asyncio.wait(gone, timeout=STOP_TIMEOUT_S)
        for worker in workers:
            worker.kill()
        if gone:
            await asyncio.wait(gone)

    # --- What the router asks --------------------------------------------------------------------------------------

    def kill(self, replica: str, incarnation: int, why: str) -> None:
        worker = self._workers.get(replica)
        if worker is not None and worker.spec.incarnation == incarnation:
            self._causes.setdefault(replica, why)
            worker.kill()

    def restart(self, replica: str, incarnation: int) -> None:
        """In good order, and by force where that takes too long."""
        worker = self._workers.get(replica)
        if worker is not None and worker.spec.incarnation == incarnation:
            self._causes.setdefault(replica, "restarted")
            self._supervisor.restarting(replica)
            worker.terminate()
            self._loop.call_later(STOP_TIMEOUT_S, worker.kill)

    def loading(self, replica: str, text: str) -> None:
        """A heartbeat repeats what the last one said."""
        if self._loading.get(replica) != text:
            self._loading[replica] = text
            self._progress(replica, text)

    def failed(self, replica: str, text: str) -> None:
        """It waits for this, so that what it said is never lost with it."""
        self._causes.setdefault(replica, text)
        self._workers[replica].terminate()

    def ready(self, replica: str) -> None:
        self._progress(replica, "ready")
        self._obey(self._supervisor.ready(replica, time.monotonic()))

    def drained(self) -> None:
        self._drained.set()

    # --- Processes -------------------------------------------------------------------------------------------------

    def _obey(self, orders: list[Order]) -> None:
        for order in orders:
            if isinstance(order, Spawn):
                self._spawn(order)
            elif isinstance(order, AllReady):
                self._started.set_result(None)
            else:
                self._fail(order)
        self._arm_restart()

    def _spawn(self, order: Spawn) -> None:
        stage = [stage.name for stage in self.config.stage].index(order.stage)
        place = f"{stage}-{order.replica.rpartition('/')[2]}"
        directory = self._directory.path
        sight = visibility.sight(order.stage, order.devices, os.environ)
        spec = WorkerSpec(
            config=self.config,
            stage=order.stage,
            replica=order.replica,
            incarnation=order.incarnation,
            devices=list(sight.names),
            router_endpoint=self._server.worker_endpoint,
            data_endpoint=runtime.ipc_endpoint(directory / f"d{place}-{order.incarnation}.sock"),
            nonce=self._nonce,
            runtime_dir=str(directory),
            private_dir=str(directory / "engines"),
            parent_pid=os.getpid(),
        )
        log_path = self._logs / f"{order.replica.replace('/', '-')}.log"
        self._progress(order.replica, "starting")
        try:
            reaped = partial(self._reaped, order)
            worker = WorkerProcess(spec, log_path, reaped, sight.environment(os.environ))
        except OSError as error:
            self._loop.call_soon(self._not_spawned, order, f"{error.filename or 'its process'}: {error.strerror}")
            return
        self._workers[order.replica] = worker
        with suppress(OSError):  # it ended already, or the directory is gone: the reaper will say so
            runtime.record_group(directory, worker.pid)
        self._server.handle(ReplicaStarting(order.replica, order.incarnation, worker.pid))

    def _not_spawned(self, order: Spawn, reason: str) -> None:
        self._obey(self._supervisor.exited(order.replica, f"it cannot be started: {reason}", time.monotonic()))

    def _reaped(self, order: Spawn, reason: str) -> None:
        """What it said last may still be on its way to the router: a request may just have ended there."""
        if self._stopping:
            self._exited(order, reason)
        else:
            self._reaping[order.replica] = self._loop.call_later(LAST_WORDS_S, self._exited, order, reason)

    def _exited(self, order: Spawn, reason: str) -> None:
        self._reaping.pop(order.replica, None)
        reason = self._causes.pop(order.replica, reason)
        self._loading.pop(order.replica, None)
        if not self._stopping:
            log.warning("%s#%d ended: %s", order.replica, order.incarnation, reason)
            self._progress(order.replica, f"ended: {reason}")
        if not self._directory.path.is_dir():
            log.error("%s is gone: nothing can be started any more; stop this deployment", self._directory.path)
        worker = self._workers[order.replica]
        runtime.forget_group(self._directory.path, worker.pid)
        (self._directory.path / Path(worker.spec.data_endpoint).name).unlink(missing_ok=True)
        self._server.replica_exited(order.replica, order.incarnation, reason)
        self._obey(self._supervisor.exited(order.replica, reason, time.monotonic()))

    def _fail(self, order: FailLaunch) -> None:
        """F5: the stage, the reason and the worker's last lines; for a wrong configuration the reason says all."""
        worker = self._workers.get(order.replica)
        stage = order.replica.rpartition("/")[0]
        error: OmnizmqError = LaunchError(f"{order.replica} did not start: {order.reason}", stage=stage)
        if worker is not None and worker.status == EXIT_MISCONFIGURED:
            error = ConfigError(order.reason, stage=stage)
        elif worker is not None and (lines := worker.last_lines()):
            shown = "".join(f"\n  | {line}" for line in lines)
            error = LaunchError(f"{error.message}; its last lines:{shown}", stage=stage)
        if not self._started.done():
            self._started.set_exception(error)

    def _arm_restart(self) -> None:
        due = self._supervisor.next_due()
        if self._restart is not None:
            self._restart.cancel()
        if due is not None:
            delay = max(0.0, due - time.monotonic()) + 0.01
            self._restart = self._loop.call_later(delay, lambda: self._obey(self._supervisor.ticked(time.monotonic())))

    def _check_logs(self) -> None:
        for path in self._logs.glob("*.log"):
            trim_log(path)
        self._log_check = self._loop.call_later(LOG_CHECK_S, self._check_logs)
