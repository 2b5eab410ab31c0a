"""Where a client's router is, and how its end is noticed: by its process on this machine, by its silence on another's.

A router says something every heartbeat, so one that is silent for its lease is gone (F6). A client whose own loop was
busy meanwhile has not listened: it looks at what has come before it judges.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from omnizmq import remote, runtime
from omnizmq.errors import NotFoundError, OmnizmqError, RouterLostError
from omnizmq.transport import Connection, Curve

LAST_WORDS_S = 0.2
LOOKS = 4
"""How often a lease is looked at within its length."""


@dataclass(frozen=True)
class Address:
    """Of one router. For one on another machine `pid` is None, and `curve` and `file`, its `remote.json`, are set."""

    name: str
    endpoint: str
    nonce: str
    pid: int | None
    curve: Curve | None
    file: str | None

    @property
    def who(self) -> str:
        return f"{self.name} ({self.endpoint if self.pid is None else f'pid {self.pid}'})"

    def unanswered(self, connection: Connection) -> OmnizmqError:
        """What to say when it has not welcomed a client in time."""
        if connection == "refused":
            return NotFoundError(
                f"{self.who} does not accept the keys of {self.file}: they are probably not, or no longer, those of "
                "the deployment there; copy its remote.json again"
            )
        if self.file is not None and connection == "none":
            return RouterLostError(
                f"{self.who} does not answer: no connection could be made; does it run, and is that its address?"
            )
        return RouterLostError(f"{self.who} does not answer")


def locate(to: str | None) -> Address:
    """A running deployment by name or endpoint, or the one that a `remote.json` leads to. Raises `NotFoundError`."""
    if to is not None and remote.is_file(to):
        far = remote.read(to)
        curve = Curve(far.client_key.encode(), far.client_secret.encode(), far.server_key.encode())
        return Address(far.name, far.endpoint, "", None, curve, to)
    near = runtime.find(to)
    return Address(near.name, near.endpoint, near.nonce, near.pid, None, None)


class Watch:
    """Calls `ended(why)` once, when the router is gone. `heard` is to be called for everything that it says."""

    def __init__(self, pid: int | None, ended: Callable[[str], None]) -> None:
        """Raises `RouterLostError` for a process that has ended already."""
        self._loop = asyncio.get_running_loop()
        self._ended = ended
        self._timer: asyncio.TimerHandle | None = None
        self._pidfd: int | None = None
        self._lease_s = 0.0
        self._heard = self._looked = time.monotonic()
        if pid is not None:
            self._watch_process(pid)

    def hold(self, lease_s: float) -> None:
        """From now on, silence for so long is the end. For a router whose process cannot be watched."""
        self._lease_s = lease_s
        self._heard = self._looked = time.monotonic()
        self._look_later()

    def heard(self) -> None:
        self._heard = time.monotonic()

    def close(self) -> None:
        """It is not watched any more. May be repeated."""
        if self._timer is not None:
            self._timer.cancel()
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None

    def _watch_process(self, pid: int) -> None:
        try:
            self._pidfd = os.pidfd_open(pid)
        except ProcessLookupError as error:
            raise RouterLostError("the router has just ended") from error
        self._loop.add_reader(self._pidfd, self._died)

    def _died(self) -> None:
        """What it said last may still be on its way to us."""
        self.close()
        self._timer = self._loop.call_later(LAST_WORDS_S, self._ended, "its process ended")

    def _look_later(self) -> None:
        self._timer = self._loop.call_later(self._lease_s / LOOKS, self._look)

    def _look(self) -> None:
        now, before = time.monotonic(), self._looked
        self._looked = now
        if now - before > 2 * self._lease_s / LOOKS:  # this loop was busy, and what came meanwhile is not read yet
            self.hold(self._lease_s)
        elif now - self._heard > self._lease_s:
            self._ended(f"it has said nothing for {now - self._heard:.0f} s")
        else:
            self._look_later()
