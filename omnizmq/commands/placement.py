"""Which replica needs how much of which device.

A replica's weights, slots and workspace are where it computes; its process, and the ring of its outgoing edges, are in
the machine's memory wherever that is. A replica over several devices takes an equal part of each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from omnizmq.commands import machine

if TYPE_CHECKING:
    from omnizmq.config import Config, StageConfig
    from omnizmq.workers.memory import MemoryNeed

CPU = "cpu"


@dataclass(frozen=True, slots=True)
class Placed:
    """One replica. `need`: None where its engine does not say it; `ring`: bytes, of its outgoing edges."""

    stage: str
    replica: str
    devices: tuple[str, ...]
    need: MemoryNeed | None
    ring: int

    def on(self, device: str) -> int:
        """Bytes of one device."""
        nbytes = 0
        if self.need is not None and device in self.devices:
            nbytes += self.need.on_devices * self.devices.count(device) // len(self.devices)
        if device == CPU:
            nbytes += self.ring + (0 if self.need is None else self.need.process)
        return nbytes


def placed(config: Config, needs: Mapping[str, MemoryNeed]) -> list[Placed]:
    """All replicas, in the order of the configuration. A GPU with several names goes by the first of them."""
    first: dict[str, str] = {}
    replicas = []
    for stage in config.stage:
        ring = _ring(config, stage)
        for n in range(stage.replicas):
            devices = tuple(first.setdefault(machine.identity(one), one) for one in stage.devices_of(n)) or (CPU,)
            replica = f"{stage.name}/{n}"
            replicas.append(Placed(stage.name, replica, devices, needs.get(replica), ring))
    return replicas


def _ring(config: Config, stage: StageConfig) -> int:
    return sum(edge.ring_mib << 20 for edge in config.edge if edge.source == stage.name and edge.mode != "relay")


def devices_of(replicas: list[Placed]) -> list[str]:
    """Those that are used, in their order; the machine's own memory, which all use, last."""
    used = dict.fromkeys(device for one in replicas for device in one.devices)
    return [*(device for device in used if device != CPU), CPU]
