"""Which GPUs a worker sees, fixed before anything in it loads: its own, and no other. Pure.

A worker's own GPUs are `cuda:0`, `cuda:1`, … inside it, whatever they are called outside. A stage on the CPU sees none.

`cuda:N` counts what the launcher itself may use: where its own CUDA_VISIBLE_DEVICES is set, the N-th entry of that. The
entries are numbers or UUIDs, and end at the first that is none
(https://docs.nvidia.com/cuda/cuda-c-programming-guide, "CUDA Environment Variables").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from omnizmq.config import Config
from omnizmq.errors import ConfigError

VARIABLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True)
class Sight:
    """`entries`: what the variable is to be for the worker; `names`: what its devices are called inside."""

    entries: str
    names: tuple[str, ...]

    def environment(self, outer: Mapping[str, str]) -> dict[str, str]:
        return {**outer, VARIABLE: self.entries}


def sight(stage: str, devices: Sequence[str], outer: Mapping[str, str]) -> Sight:
    """Of a replica with these devices (none: the CPU). Raises `ConfigError` for one that the launcher does not see."""
    visible = visible_entries(outer)
    entries = [_entry(stage, device, visible) for device in devices]
    return Sight(",".join(entries), tuple(f"cuda:{n}" for n in range(len(devices))))


def check(config: Config, outer: Mapping[str, str]) -> None:
    """Raises `ConfigError`, before anything is started."""
    for stage in config.stage:
        for replica in range(stage.replicas):
            sight(stage.name, stage.devices_of(replica), outer)


def visible_entries(environment: Mapping[str, str]) -> list[str] | None:
    """The numbers or UUIDs of the GPUs that a process with this environment sees; None: all that there are."""
    if VARIABLE not in environment:
        return None
    entries = []
    for entry in environment[VARIABLE].split(","):
        if not entry.strip() or entry.strip().startswith("-"):
            break
        entries.append(entry.strip())
    return entries


def _entry(stage: str, device: str, visible: list[str] | None) -> str:
    kind, _, number = device.partition(":")
    if visible is None:
        return number if kind == "cuda" else device
    if kind == "cuda" and int(number) < len(visible):
        return visible[int(number)]
    by_number = any(entry.isdigit() for entry in visible)  # which GPUs these are is not known here
    if kind != "cuda" and visible and (by_number or device in visible):
        return device
    seen = f"{len(visible)} GPUs, {VARIABLE}={','.join(visible)}" if visible else f"no GPU, {VARIABLE} is empty"
    raise ConfigError(f"stage.{stage}.devices: {device}: this process sees {seen}")
