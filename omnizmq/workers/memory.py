"""What a stage needs of memory, as its engine estimates it before anything loads: for `omnizmq check` and `launch`.

An engine's module may have a function `estimate_memory(asked: MemoryAsked) -> MemoryNeed`, beside `check_options`; by
having it the module promises that it is cheap to import. It reads headers and configurations, never a tensor, and loads
no library of models. It raises `ConfigError` or `LaunchError` for a model that is damaged or another engine's, and
`ModelNotFoundError` for one that is not on this machine; and `ConfigError` for what `create` would refuse of the
stage's edges, final output and devices, which it is told for that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

WORKER_BYTES = 45 << 20
"""A worker's own process, before its engine imports anything. Measured."""


@dataclass(frozen=True, slots=True)
class MemoryAsked:
    """One replica of a stage, not started yet."""

    stage: str
    model: str
    options: Mapping[str, Any]
    device: tuple[str, ...]  # its GPUs, as the configuration calls them; empty: CPU
    max_inflight: int
    max_registered: int
    sources: Mapping[str, Mapping[str, Any]]  # upstream stages and their options
    targets: tuple[str, ...] = ()  # downstream stages
    final_output: str | None = None  # "text", "audio" or None

    @property
    def on_cpu(self) -> bool:
        return not self.device


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Of one replica, in bytes. The first three are where it computes: on its devices, all together, or on the CPU."""

    weights: int = 0
    slots: int = 0  # what requests hold from step to step, such as keys and values: all that there can be
    workspace: int = 0  # what the largest step needs besides, and the device's runtime
    process: int = 0  # of the machine's own memory, wherever it computes: interpreter, libraries, preprocessing
    slot_count: int = 0  # how many requests `slots` are for, where an option `slots` says it; 0: there is none
    notes: tuple[str, ...] = ()  # sentences for whoever checks the configuration

    @property
    def on_devices(self) -> int:
        return self.weights + self.slots + self.workspace
