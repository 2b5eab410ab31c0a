"""One child process: spawned in a session of its own, watched, reaped with its whole group, its log kept short.

Standard input carries the child's specification and then stays open: its end tells the child that we are gone.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from omnizmq.workers.spec import WorkerSpec, encode

LOG_BYTES = 8 << 20
LAST_LINES = 12
PIPE_BYTES = 64 << 10  # what a pipe holds anyway


class ChildProcess:
    """`exited(reason)` is called once, on the loop, after the process and its group were killed and reaped."""

    def __init__(
        self,
        command: Sequence[str],
        specification: bytes,
        log: Path,
        exited: Callable[[str], None],
        pass_fds: Sequence[int] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Raises `OSError` where the command cannot be run. `environment`: this process's own, or another."""
        self.status: int | None = None
        self._log = log
        self._exited = exited
        self._loop = asyncio.get_running_loop()
        self.gone: asyncio.Future[None] = self._loop.create_future()
        trim_log(log)
        with open(log, "ab") as output:
            self._log_start = output.tell()
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,
                pass_fds=pass_fds,
                env=environment,
            )
        self._pidfd = os.pidfd_open(self._process.pid)
        self._loop.add_reader(self._pidfd, self._reap)
        self._tell(specification)

    def _tell(self, specification: bytes) -> None:
        """The pipe is made large enough to take it all, so that a child that does not read blocks nobody."""
        fcntl.fcntl(self._stdin(), fcntl.F_SETPIPE_SZ, max(len(specification), PIPE_BYTES))
        with suppress(BrokenPipeError):  # it ended already: the reaper will say why
            self._stdin().write(specification)
            self._stdin().flush()

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        """The process and whatever it has started."""
        if not self.gone.done():
            os.killpg(self.pid, signal.SIGKILL)

    def terminate(self) -> None:
        if not self.gone.done():
            self._process.terminate()

    def last_lines(self) -> list[str]:
        """What this incarnation wrote last."""
        with open(self._log, "rb") as log:
            log.seek(max(self._log_start, log.seek(0, os.SEEK_END) - 16384))
            return log.read().decode(errors="replace").splitlines()[-LAST_LINES:]

    def _stdin(self) -> IO[bytes]:
        assert self._process.stdin is not None
        return self._process.stdin

    def _reap(self) -> None:
        """Its group dies while its zombie still keeps the group's number from being reused."""
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.status = self._process.wait()
        with suppress(BrokenPipeError):
            self._stdin().close()
        self.gone.set_result(None)
        self._exited(_reason(self.status))


class WorkerProcess(ChildProcess):
    """A replica of a stage, run by the stage's own interpreter where it has one."""

    def __init__(
        self,
        spec: WorkerSpec,
        log: Path,
        exited: Callable[[str], None],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        # -P: nothing is imported from the directory that the deployment happens to be started in.
        command = [spec.stage_config.python or sys.executable, "-P", "-m", "omnizmq.workers"]
        super().__init__(command, encode(spec), log, exited, environment=environment)
        self.spec = spec


def _reason(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    return f"killed by {signal.Signals(-status).name}"


def trim_log(log: Path) -> None:
    """Above the limit, what is there becomes `NAME.1` and the log starts anew; writers append, so they go on."""
    if log.exists() and log.stat().st_size > LOG_BYTES:
        shutil.copyfile(log, log.with_name(log.name + ".1"))
        os.truncate(log, 0)
