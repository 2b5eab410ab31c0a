"""Plugins, asked before anything is started, as engines are: where each is found, and what it says of its options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from omnizmq.config import Config


def look(config: Config) -> list[dict[str, Any]]:
    """Each configured plugin: where it is found, and which packages it lacks.

    Raises `ConfigError` for one that is not installed, or a wrong option.
    """
    return [_examined(name, options) for name, options in config.plugins.items()]


def _examined(name: str, options: dict[str, Any]) -> dict[str, Any]:
    from importlib import import_module
    from importlib.util import find_spec

    from omnizmq.commands.engines import stated_in
    from omnizmq.errors import ConfigError
    from omnizmq.plugin import entry_of

    entry = entry_of(name)
    packages, hooks = stated_in(entry.module)
    missing = sorted(package for package in packages if find_spec(package) is None)
    if "check_options" in hooks and not missing:
        try:
            import_module(entry.module).check_options(options)
        except ConfigError:
            raise
        except Exception as error:
            problem = f"its options cannot be checked: {type(error).__name__}: {error}"
            raise ConfigError(f"plugins.{name}: {problem}") from error
    return {"plugin": name, "entry_point": entry.value, "missing": missing}
