"""Whether what the stages need fits the devices that they are placed on: the table of `omnizmq check`, and the refusal.

A replica's weights, slots and workspace are where it computes; its process, and the ring of its outgoing edges, are in
the machine's memory wherever that is. A replica over several devices takes an equal part of each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from omnizmq.commands import engines, machine, packages
from omnizmq.errors import ConfigError

if TYPE_CHECKING:
    from omnizmq.config import Config, StageConfig
    from omnizmq.workers.memory import MemoryNeed

CPU = "cpu"


def look(config: Config) -> engines.Found:
    """What the engines say. Raises `ConfigError`, also for a placement that cannot fit."""
    found = engines.look(config)
    _refuse(config, placed(config, found.needs))
    return found


def must_start_here(config: Config) -> None:
    """Raises `ConfigError` for whatever of this would keep `launch` from coming up: also for packages of an engine, or
    a model, that are not here."""
    found = look(config)
    for stage in config.stage:
        if missing := found.missing(stage):
            engine = f'stage.{stage.name}.engine: "{stage.engine}"'
            raise ConfigError(packages.refusal(engine, missing, stage.python))
    for line in found.absent.values():
        raise ConfigError(line)


def document(config: Config, found: engines.Found) -> dict[str, Any]:
    """For `--json`: replicas, and devices with what they need and have; `null` is not known."""
    replicas = placed(config, found.needs)
    return {
        "replicas": [_row(one) for one in replicas],
        "devices": [
            {
                "device": device,
                "need_bytes": _known(replicas, device),
                "has_bytes": machine.usable(device, config.device_memory_gib),
            }
            for device in _devices(replicas)
        ],
    }


def gib(nbytes: int) -> str:
    """As a person reads it."""
    if not nbytes:
        return "0"
    return f"{nbytes / (1 << 30):.1f} GiB" if nbytes >= 1 << 30 else f"{nbytes / (1 << 20):.0f} MiB"


# --- Placement -------------------------------------------------------------------------------------------------------


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


def placed(config: Config, needs: dict[str, MemoryNeed]) -> list[Placed]:
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


def _devices(replicas: list[Placed]) -> list[str]:
    """Those that are used, in their order; the machine's own memory, which all use, last."""
    used = dict.fromkeys(device for one in replicas for device in one.devices)
    return [*(device for device in used if device != CPU), CPU]


def _known(replicas: list[Placed], device: str) -> int | None:
    """What is known to be needed there; None: nothing, since no engine of theirs says it."""
    there = [one for one in replicas if device == CPU or device in one.devices]
    return None if all(one.need is None for one in there) else sum(one.on(device) for one in there)


def _row(one: Placed) -> dict[str, Any]:
    need = one.need
    return {
        "id": one.replica,
        "devices": list(one.devices),
        "weights_bytes": None if need is None else need.weights,
        "slots_bytes": None if need is None else need.slots,
        "workspace_bytes": None if need is None else need.workspace,
        "sum_bytes": None if need is None else need.on_devices,
        "process_bytes": None if need is None else need.process,
        "ring_bytes": one.ring,
    }


# --- Refusal ---------------------------------------------------------------------------------------------------------


def _refuse(config: Config, replicas: list[Placed]) -> None:
    """Raises `ConfigError` for the first device that cannot hold what is placed on it."""
    for device in _devices(replicas):
        has, need = machine.usable(device, config.device_memory_gib), sum(one.on(device) for one in replicas)
        if has is not None and need > has:
            shares = "; ".join(_share(one, device) for one in replicas if one.on(device))
            raise ConfigError(
                f"{device} has {gib(has)} of memory, and {gib(need)} are needed ({shares}): "
                f"{_advice(replicas, device, need - has)}"
            )


def _share(one: Placed, device: str) -> str:
    said = f"{one.replica} {gib(one.on(device))}"
    if one.need is None or device not in one.devices:
        return f"{said} for process and ring"
    need, part = one.need, f" of {gib(one.need.on_devices)}" if len(one.devices) > 1 else ""
    return f"{said}{part}: weights {gib(need.weights)}, slots {gib(need.slots)}, workspace {gib(need.workspace)}"


def _advice(replicas: list[Placed], device: str, excess: int) -> str:
    """The largest number of slots that fits, of the stage whose slots take most there; else that none does."""
    slots: dict[str, float] = {}
    counts: dict[str, int] = {}
    for one in replicas:
        if one.need is not None and one.need.slot_count and device in one.devices:
            slots[one.stage] = slots.get(one.stage, 0) + one.need.slots / len(one.devices)
            counts[one.stage] = one.need.slot_count
    if slots:
        stage = max(slots, key=slots.__getitem__)
        fits = int(counts[stage] * (1 - excess / slots[stage]))
        if fits >= 1:
            return f"it fits with stage.{stage}.options.slots = {fits} (now {counts[stage]}), or with another device"
    return "no number of slots makes it fit; it needs another device, or a larger one"
