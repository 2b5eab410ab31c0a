"""What would make a placement fit, said only where it does: engines are asked again what they need with less."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import isqrt
from typing import TYPE_CHECKING

from msgspec.structs import replace

from omnizmq.commands import engines
from omnizmq.commands.placement import placed
from omnizmq.errors import ConfigError

if TYPE_CHECKING:
    from omnizmq.config import Config, StageConfig
    from omnizmq.workers.memory import MemoryNeed

_SLOT_TOKENS = 256
"""Fewer hold no conversation, and are no advice."""

Needs = Mapping[str, "MemoryNeed"]


@dataclass(frozen=True, slots=True)
class Setting:
    """A value of a stage that takes memory. `changed`: the stage with another one, not less than `least`."""

    key: str
    now: int
    changed: Callable[[int], StageConfig]
    least: int = 1


def advice(config: Config, needs: Needs, device: str, has: int) -> str:
    """Values of the stage that takes most of the device, each with which all fits; else of the next one."""
    taken: dict[str, int] = {}
    for one in placed(config, needs):
        taken[one.stage] = taken.get(one.stage, 0) + one.on(device)
    for stage in sorted(config.stage, key=lambda stage: -taken[stage.name]):
        found = []
        for setting in _settings(stage, needs.get(f"{stage.name}/0")):
            most = _most(setting, lambda tried: _fits(config, needs, tried, device, has))
            if most is not None:
                found.append(f"with stage.{stage.name}.{setting.key} = {most} (now {setting.now})")
        if found:
            return f"it fits {', '.join(found)}, or with another device"
    return "it needs another device, or a larger one"


def _settings(stage: StageConfig, need: MemoryNeed | None) -> Iterator[Setting]:
    """Those that may matter to the stage's engine. `need`: of its first replica."""

    def option(key: str) -> Callable[[int], StageConfig]:
        return lambda value: replace(stage, options={**stage.options, key: value})

    if need is not None and need.slot_count and ("slots" in stage.options or need.slot_count < stage.max_inflight):
        yield Setting("options.slots", need.slot_count, option("slots"))
    else:
        yield Setting("max_inflight", stage.max_inflight, lambda value: _with_inflight(stage, value))
        yield Setting(
            "max_registered",
            stage.max_registered,
            lambda value: replace(stage, max_registered=value),
            least=stage.max_inflight,
        )
    if type(tokens := stage.options.get("slot_tokens")) is int:
        yield Setting("options.slot_tokens", tokens, option("slot_tokens"), least=_SLOT_TOKENS)
    if not stage.devices:
        yield Setting("replicas", stage.replicas, lambda value: replace(stage, replicas=value))


def _with_inflight(stage: StageConfig, value: int) -> StageConfig:
    """With `max_registered` four times that, unless it says something else."""
    given = stage.max_registered != 4 * stage.max_inflight
    return replace(stage, max_inflight=value, max_registered=stage.max_registered if given else 4 * value)


def _most(setting: Setting, fits: Callable[[StageConfig], bool]) -> int | None:
    """The largest value that fits, of large ones to a sixteenth; None: none does.

    By halving in proportion: from a million it takes few steps to where it matters, and each asks an engine.
    """
    low, high = setting.least, setting.now
    if low >= high or not fits(setting.changed(low)):
        return None
    while high - low > max(1, low // 16):
        middle = max(low + 1, isqrt(low * high))
        low, high = (middle, high) if fits(setting.changed(middle)) else (low, middle)
    return low


def _fits(config: Config, needs: Needs, tried: StageConfig, device: str, has: int) -> bool:
    """Whether all fits there with this stage in place of the one of its name."""
    changed = replace(config, stage=[tried if stage.name == tried.name else stage for stage in config.stage])
    try:
        again = engines.needs_of(changed, tried)
    except ConfigError:
        return False
    return sum(one.on(device) for one in placed(changed, {**needs, **again})) <= has
