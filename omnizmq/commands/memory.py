"""Whether what the stages need fits the devices that they are placed on: the table of `omnizmq check`, and the refusal.

What is where: `placement`; what would make it fit: `advice`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from omnizmq.commands import engines, machine, packages
from omnizmq.commands.advice import advice
from omnizmq.commands.placement import CPU, Placed, devices_of, placed
from omnizmq.errors import ConfigError

if TYPE_CHECKING:
    from omnizmq.config import Config
    from omnizmq.workers.memory import MemoryNeed

_SHARES = 3
"""A line names so many replicas."""


def look(config: Config) -> engines.Found:
    """What the engines say. Raises `ConfigError`, also for a placement that cannot fit."""
    found = engines.look(config)
    _refuse(config, found.needs)
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
            for device in devices_of(replicas)
        ],
    }


def gib(nbytes: int) -> str:
    """As a person reads it."""
    if not nbytes:
        return "0"
    if nbytes >= 1 << 80:  # a model's configuration may say anything
        return "more than 2^50 GiB"
    return f"{nbytes / (1 << 30):.1f} GiB" if nbytes >= 1 << 30 else f"{nbytes / (1 << 20):.0f} MiB"


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


def _refuse(config: Config, needs: dict[str, MemoryNeed]) -> None:
    """Raises `ConfigError` for the first device that cannot hold what is placed on it."""
    replicas = placed(config, needs)
    for device in devices_of(replicas):
        has, need = machine.usable(device, config.device_memory_gib), sum(one.on(device) for one in replicas)
        if has is not None and need > has:
            has_said, need_said = _apart(has, need)
            raise ConfigError(
                f"{device} has {has_said} of memory, and {need_said} are needed ({_shares(replicas, device)}): "
                f"{advice(config, needs, device, has)}"
            )


def _apart(has: int, need: int) -> tuple[str, str]:
    """Both as a person reads them, in MiB where GiB would be the same."""
    if gib(has) != gib(need):
        return gib(has), gib(need)
    return f"{has >> 20} MiB", f"{-(-need >> 20)} MiB"


def _shares(replicas: list[Placed], device: str) -> str:
    """The largest of them."""
    there = sorted((one for one in replicas if one.on(device)), key=lambda one: -one.on(device))
    more = [f"and {len(there) - _SHARES} more"] if len(there) > _SHARES else []
    return "; ".join([*(_share(one, device) for one in there[:_SHARES]), *more])


def _share(one: Placed, device: str) -> str:
    said = f"{one.replica} {gib(one.on(device))}"
    if one.need is None or device not in one.devices:
        return f"{said} for process and ring"
    need, part = one.need, f" of {gib(one.need.on_devices)}" if len(one.devices) > 1 else ""
    besides = f", process and ring {gib(need.process + one.ring)}" if device == CPU else ""
    parts = f"weights {gib(need.weights)}, slots {gib(need.slots)}, workspace {gib(need.workspace)}"
    return f"{said}{part}: {parts}{besides}"
