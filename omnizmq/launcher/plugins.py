"""The plugins of a deployment, as children of this process: started, heard, started again, ended (F5, F6)."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from omnizmq import runtime
from omnizmq.config import Config
from omnizmq.errors import ConfigError, LaunchError, OmnizmqError
from omnizmq.launcher.process import ChildProcess, trim_log
from omnizmq.launcher.supervisor import Deaths
from omnizmq.plugin import Failed, Listening, PluginSpec, decode_answer, encode

log = logging.getLogger(__name__)

STOP_TIMEOUT_S = 4.0
"""From SIGTERM to SIGKILL: as workers have; so a plugin has to give its own callers less."""

START_TIMEOUT_S = 60.0
"""From its start until it listens: enough to import large packages from a cold disk, and an end for one that hangs."""

MAX_ANSWER_BYTES = 1 << 20
"""Of a line that a plugin says: far more than any error's message has. What is longer is not kept."""

_PIECE = 1 << 16
"""As much as a pipe holds, so that one read empties it."""


class Plugins:
    """Each of the configuration's `[plugins.NAME]`. `progress(name, text)` hears what they do."""

    def __init__(
        self, config: Config, nonce: str, directory: Path, logs: Path, progress: Callable[[str, str], None]
    ) -> None:
        self._plugins = [_Plugin(config, name, nonce, directory, logs, progress) for name in config.plugins]

    @property
    def where(self) -> dict[str, str]:
        """What each told of where it listens."""
        return {plugin.name: plugin.where for plugin in self._plugins}

    async def start(self) -> None:
        """Returns when all listen. Raises `LaunchError` or `ConfigError` where one does not."""
        for plugin in self._plugins:
            plugin.spawn()
        for plugin in self._plugins:
            try:
                await asyncio.wait_for(plugin.listening, START_TIMEOUT_S)
            except TimeoutError as error:
                raise LaunchError(f"plugin {plugin.name} did not listen within {START_TIMEOUT_S:g} s") from error

    async def stop(self) -> None:
        """Each ends what it has, and is killed where that takes too long. May be repeated."""
        gone = [gone for plugin in self._plugins if (gone := plugin.stop()) is not None]
        if gone:
            await asyncio.wait(gone, timeout=STOP_TIMEOUT_S)
        for plugin in self._plugins:
            plugin.kill()
        if gone:
            await asyncio.wait(gone)


class _Plugin:
    """One of them: its present process, if it has one."""

    def __init__(
        self,
        config: Config,
        name: str,
        nonce: str,
        directory: Path,
        logs: Path,
        progress: Callable[[str, str], None],
    ) -> None:
        self.name = name
        self.where = ""
        self._config, self._nonce = config, nonce
        self._directory, self._log = directory, logs / f"{name}.log"
        self._progress = progress
        self._loop = asyncio.get_running_loop()
        self.listening: asyncio.Future[None] = self._loop.create_future()
        self.listening.add_done_callback(_heed)
        self._deaths = Deaths(config.router)
        self._process: ChildProcess | None = None
        self._failure: Failed | None = None
        self._unended = b""  # what it has said of a line so far
        self._restart: asyncio.TimerHandle | None = None
        self._stopping = False

    def spawn(self) -> None:
        self._restart, self._failure, self._unended = None, None, b""
        hears, answers = os.pipe()
        os.set_blocking(hears, False)
        spec = PluginSpec(self._config, self.name, self._nonce, str(self._directory), os.getpid(), answers)
        command = [sys.executable, "-P", "-m", "omnizmq.plugin"]
        self._progress(self.name, "starting")
        try:
            self._process = ChildProcess(
                command, encode(spec) + b"\n", self._log, lambda reason: self._exited(hears, reason), (answers,)
            )
        except OSError as error:
            os.close(hears)
            self._loop.call_soon(self._ended, f"it cannot be started: {error.filename}: {error.strerror}")
            return
        finally:
            os.close(answers)
        self._loop.add_reader(hears, self._heard, hears)
        with suppress(OSError):  # it ended already, or the directory is gone: the reaper will say so
            runtime.record_group(self._directory, self._process.pid)

    def stop(self) -> asyncio.Future[None] | None:
        """When its process is gone; None: it has none."""
        self._stopping = True
        if self._restart is not None:
            self._restart.cancel()
        if self._process is None:
            return None
        self._process.terminate()
        return self._process.gone

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    def _heard(self, hears: int) -> None:
        """A part of a line, or several lines."""
        try:
            said = os.read(hears, _PIECE)
        except BlockingIOError:
            return
        if not said:
            self._loop.remove_reader(hears)
        *lines, unended = (self._unended + said).split(b"\n")
        self._unended = unended[: MAX_ANSWER_BYTES + 1]
        for line in lines:
            if len(line) > MAX_ANSWER_BYTES:
                log.warning("plugin %s said a line of more than %d bytes", self.name, MAX_ANSWER_BYTES)
                continue
            try:
                answer = decode_answer(line)
            except msgspec.DecodeError as error:
                log.warning("plugin %s said what this version does not understand: %s", self.name, error)
                continue
            if isinstance(answer, Failed):
                self._failure = answer
            else:
                self._serves(answer)

    def _serves(self, answer: Listening) -> None:
        self.where = answer.where
        log.info("plugin %s listens at %s", self.name, answer.where)
        self._progress(self.name, f"ready at {answer.where}")
        if not self.listening.done():
            self.listening.set_result(None)

    def _exited(self, hears: int, reason: str) -> None:
        """It may have said why just before."""
        self._heard(hears)
        self._loop.remove_reader(hears)
        os.close(hears)
        assert self._process is not None
        runtime.forget_group(self._directory, self._process.pid)
        self._ended(self._failure.message if self._failure is not None else reason)

    def _ended(self, reason: str) -> None:
        if self._stopping:
            return
        log.warning("plugin %s ended: %s", self.name, reason)
        self._progress(self.name, f"ended: {reason}")
        if self.listening.done():
            trim_log(self._log)
            self._restart = self._loop.call_later(self._deaths.another(time.monotonic()), self.spawn)
        else:
            self.listening.set_exception(self._error(reason))

    def _error(self, reason: str) -> OmnizmqError:
        """Why it did not start (F5): what it said, else its last lines."""
        if self._failure is not None and self._failure.configuration:
            return ConfigError(reason)
        text = f"plugin {self.name} did not start: {reason}"
        lines = self._process.last_lines() if self._process is not None and self._failure is None else []
        shown = "".join(f"\n  | {line}" for line in lines)
        return LaunchError(f"{text}; its last lines:{shown}" if lines else text)


def _heed(listening: asyncio.Future[None]) -> None:
    """Nobody may wait for it any more: then nobody has to hear why it failed."""
    if not listening.cancelled():
        listening.exception()
