"""Plugins, asked before anything is started, as engines are: where each is found, and what it says of its options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from omnizmq.config import Config


def look(config: Config) -> list[dict[str, Any]]:
    """Each configured plugin: where it is found, which packages it lacks, and its options, defaults filled in where it
    says them.

    Raises `ConfigError` for one that is not installed, or a wrong option.
    """
    stages = [stage.name for stage in config.stage]
    hooks = {"check_options": (), "check_stages": (stages,)}
    return [_examined(name, options, hooks) for name, options in config.plugins.items()]


def must_start_here(config: Config) -> None:
    """The same for `launch`, which refuses a plugin that lacks packages, or cannot start here now, too."""
    from omnizmq.commands import packages
    from omnizmq.errors import ConfigError

    for found in look(config):
        if found["missing"]:
            raise ConfigError(packages.refusal(f"plugins.{found['plugin']}: it", found["missing"]))
    for name, options in config.plugins.items():
        _examined(name, options, {"check_start": ()})


def _examined(name: str, options: dict[str, Any], hooks: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
    """`hooks`: functions that the plugin may have, and what each is given beside the options."""
    from importlib import import_module
    from importlib.util import find_spec

    from omnizmq.commands.engines import stated_in
    from omnizmq.errors import ConfigError, OmnizmqError
    from omnizmq.plugin import entry_of

    entry = entry_of(name)
    packages, has = stated_in(entry.module)
    missing = sorted(package for package in packages if find_spec(package) is None)
    said: dict[str, Any] = {}
    for hook, more in hooks.items():
        if hook not in has or missing:
            continue
        try:
            said[hook] = getattr(import_module(entry.module), hook)(options, *more)
        except OmnizmqError:
            raise
        except Exception as error:
            problem = f"its options cannot be checked: {type(error).__name__}: {error}"
            raise ConfigError(f"plugins.{name}: {problem}") from error
    every = said.get("check_options") or options
    return {"plugin": name, "entry_point": entry.value, "missing": missing, "options": every}
