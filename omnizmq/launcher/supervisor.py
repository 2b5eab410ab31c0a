"""Which worker process to start when (F5, F2's restarts). Pure: events and time in, orders out.

Replicas that share an accelerator start one after another, all others side by side. Until the deployment is ready, one
failed start fails it; after that a dead replica is restarted, with a delay that doubles by each death within a minute.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from omnizmq.config import Config, RouterConfig, StageConfig

FORGET_DEATHS_S = 60.0


@dataclass(frozen=True)
class Spawn:
    replica: str
    stage: str
    incarnation: int
    devices: tuple[str, ...]


@dataclass(frozen=True)
class FailLaunch:
    """A replica did not start while the deployment was starting."""

    replica: str
    reason: str


@dataclass(frozen=True)
class AllReady:
    """Every replica has been ready once."""


Order = Spawn | FailLaunch | AllReady


class Deaths:
    """Of one process, as far as they count."""

    def __init__(self, limits: RouterConfig) -> None:
        self._limits = limits
        self._times: list[float] = []

    def another(self, now: float) -> float:
        """In how many seconds it may be started again: a delay that doubles by each death within a minute."""
        self._times = [death for death in self._times if now - death < FORGET_DEATHS_S]
        delay: float = self._limits.restart_delay_s * 2 ** len(self._times)
        self._times.append(now)
        return min(delay, self._limits.max_restart_delay_s)


@dataclass
class _Slot:
    replica: str
    stage: str
    devices: tuple[str, ...]
    deaths: Deaths
    incarnation: int = 0
    state: str = "down"  # down, starting or up
    due: float = 0.0
    expected: bool = False  # its end is wanted


class Supervisor:
    def __init__(self, config: Config) -> None:
        self._slots = {slot.replica: slot for stage in config.stage for slot in _slots(stage, config.router)}
        self._ready = False
        self._stopping = False

    def start(self, now: float) -> list[Order]:
        return self._spawn_due(now)

    def ready(self, replica: str, now: float) -> list[Order]:
        if self._stopping:
            return []
        self._slots[replica].state = "up"
        orders = self._spawn_due(now)
        if not self._ready and all(slot.state == "up" for slot in self._slots.values()):
            self._ready = True
            orders.append(AllReady())
        return orders

    def restarting(self, replica: str) -> None:
        """Its present process is about to be ended on purpose: another one follows at once, and it was no death."""
        self._slots[replica].expected = True

    def exited(self, replica: str, reason: str, now: float) -> list[Order]:
        slot = self._slots[replica]
        expected, slot.expected = slot.expected, False
        slot.state = "down"
        if self._stopping:
            return []
        if not self._ready:
            self._stopping = True
            return [FailLaunch(replica, reason)]
        if expected:
            return self._spawn_due(now)
        slot.due = now + slot.deaths.another(now)
        return self._spawn_due(now)

    def ticked(self, now: float) -> list[Order]:
        return self._spawn_due(now)

    def stop(self) -> None:
        """Nothing is started any more."""
        self._stopping = True

    def next_due(self) -> float | None:
        """When `ticked` is wanted; None: nothing waits for a time. Who waits for a device is started by `ready`."""
        loading = self._loading()
        down = (slot for slot in self._slots.values() if slot.state == "down")
        waiting = [slot.due for slot in down if loading.isdisjoint(slot.devices)]
        return None if self._stopping or not waiting else min(waiting)

    def _loading(self) -> set[str]:
        """The devices on which a replica is starting."""
        return {device for slot in self._slots.values() if slot.state == "starting" for device in slot.devices}

    def _spawn_due(self, now: float) -> list[Order]:
        if self._stopping:
            return []
        orders: list[Order] = []
        loading = self._loading()
        for slot in self._slots.values():
            if slot.state == "down" and slot.due <= now and loading.isdisjoint(slot.devices):
                loading.update(slot.devices)
                slot.state = "starting"
                slot.incarnation += 1
                orders.append(Spawn(slot.replica, slot.stage, slot.incarnation, slot.devices))
        return orders


def _slots(stage: StageConfig, limits: RouterConfig) -> Iterator[_Slot]:
    for n in range(stage.replicas):
        yield _Slot(f"{stage.name}/{n}", stage.name, stage.devices_of(n), Deaths(limits))
