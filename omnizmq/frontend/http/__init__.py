"""The HTTP bridge, a plugin: OpenAI's API, with sound, on a deployment (extra `http`).

It is a client of the router like any other, in a process of its own: an HTTP request is one request of the deployment,
and ends when its caller goes. Of a request's past it reads the deployment's trace file, so it runs on the same machine.
`settings.py` has the options of `[plugins.http]`. Only `serve` loads FastAPI, so that options can be
checked without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from omnizmq.frontend.http.listening import listening
from omnizmq.frontend.http.settings import Settings
from omnizmq.plugin import PluginContext

PACKAGES = ("fastapi", "uvicorn", "prometheus_client")


def check_options(options: dict[str, Any]) -> dict[str, Any]:
    """All of them, defaults filled in. Raises `ConfigError`."""
    every: dict[str, Any] = msgspec.to_builtins(Settings.of(options))
    return every


def check_stages(options: dict[str, Any], stages: Sequence[str]) -> None:
    """Raises `ConfigError` for a parameter of a stage that there is not."""
    Settings.of(options).check_stages(stages)


def check_start(options: dict[str, Any]) -> None:
    """What would keep it from listening is found before models are loaded. Raises `ConfigError`, `LaunchError`."""
    with listening(Settings.of(options)):
        pass


async def plugin(context: PluginContext) -> None:
    """The entry point. Raises `ConfigError` or `LaunchError` where it cannot serve."""
    from omnizmq.frontend.http.server import serve

    await serve(context, Settings.of(context.options))
