"""Processes of a deployment that are killed or stopped for a while, at random. Who was killed when is remembered."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

from omnizmq import AsyncClient

GAP_S = (0.05, 0.9)
STOPPED_S = (0.02, 0.7)
NOTICED_S = 2.0
"""The router hears of a death within this time; until then it binds requests to the dead."""


class Process:
    """One that is ours, by a descriptor: its number may be another's by now. `ProcessLookupError` where it is not."""

    def __init__(self, pid: int) -> None:
        self._pidfd = os.pidfd_open(pid)
        try:
            ours = f"XDG_RUNTIME_DIR={os.environ['XDG_RUNTIME_DIR']}".encode()
            if ours not in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                raise ProcessLookupError(f"{pid} is no process of this stress")
        except (OSError, ProcessLookupError):
            self.close()
            raise

    def send(self, number: int) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, number)

    def close(self) -> None:
        os.close(self._pidfd)


class Faults:
    """Strikes until `kills` workers have been killed. `stops` counts those that were stopped and went on."""

    def __init__(self, random: Random, kills: int) -> None:
        self.stops = 0
        self.deaths: list[tuple[float, str]] = []
        self._random = random
        self._kills = kills

    async def run(self, client: AsyncClient) -> None:
        while len(self.deaths) < self._kills:
            await asyncio.sleep(self._random.uniform(*GAP_S))
            status = await client.status()
            replicas = [one for stage in status["stages"].values() for one in stage["replicas"] if one["pid"]]
            if replicas:
                with suppress(OSError):  # it has ended already
                    await self._strike(self._random.choice(replicas))

    async def _strike(self, replica: dict[str, Any]) -> None:
        """A kill, a stop, or a kill of one that is stopped. One that loads is not stopped: it has time."""
        process = Process(replica["pid"])
        try:
            if replica["state"] == "ready" and self._random.random() < 0.6:
                process.send(signal.SIGSTOP)
                try:
                    await asyncio.sleep(self._random.uniform(*STOPPED_S))
                finally:
                    if self._random.random() < 0.2:
                        self._kill(process, replica["id"])
                    else:
                        self.stops += 1
                    process.send(signal.SIGCONT)
            else:
                self._kill(process, replica["id"])
        finally:
            process.close()

    def _kill(self, process: Process, replica: str) -> None:
        process.send(signal.SIGKILL)
        self.deaths.append((time.monotonic(), replica))

    def excuse(self, replica: str | None, started: float) -> bool:
        """Whether the death of that replica can have met a request that was started then."""
        return any(name == replica and at > started - NOTICED_S for at, name in self.deaths)
