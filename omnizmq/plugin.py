"""Plugins: programs that serve others through a deployment, each in a process of its own.

A plugin is an `async` function of a `PluginContext`, found by the entry-point group `omnizmq.plugins` and started for
each `[plugins.NAME]` of a configuration. It connects as a client like any other. It ends with its deployment (F6), and
is started again when it ends by itself. A module that has a function `check_options(options)` beside it lets
`omnizmq check` find a wrong option before anything starts: that raises `ConfigError`, and has to be cheap to import. It
may return all options, defaults filled in, as `check` shows them.
`check_stages(options, stages)` does the same for options that name stages; it is given the names that there are. One
that has `check_start(options)` lets `omnizmq launch` find, before models are loaded, what would keep it from
starting here and now: that raises `LaunchError` as well.

What the launcher tells it, on standard input, is a line of JSON (`PluginSpec`); what it tells the launcher, on a pipe
of its own, is a line of JSON each time (`Listening` or `Failed`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import msgspec

from omnizmq import lifeline
from omnizmq.config import Config
from omnizmq.errors import ConfigError, OmnizmqError
from omnizmq.tables import nearest

log = logging.getLogger(__name__)

GROUP = "omnizmq.plugins"


class PluginSpec(msgspec.Struct, frozen=True):
    """What a plugin's process is told at its start."""

    config: Config
    plugin: str
    nonce: str
    runtime_dir: str
    parent_pid: int
    answer_fd: int


class Listening(msgspec.Struct, frozen=True, tag=True):
    """It serves now. `where`: what users type, such as a URL."""

    where: str


class Failed(msgspec.Struct, frozen=True, tag=True):
    """It does not start, for a reason that fits in a line."""

    message: str
    configuration: bool


Answer = Listening | Failed
encode = msgspec.json.Encoder().encode
decode_spec = msgspec.json.Decoder(PluginSpec).decode
decode_answer = msgspec.json.Decoder(Answer).decode


@dataclass(frozen=True)
class PluginContext:
    """What a plugin is given. `options` are those of its `[plugins.NAME]`; `connect` is what its clients connect to.

    It calls `listening(where)` once it serves. When `stopping` is set it takes no new work, ends what it has and
    returns; it has a few seconds for that. It raises an `OmnizmqError` where it cannot serve, `ConfigError` where its
    options are why.
    """

    config: Config
    options: dict[str, Any]
    connect: str
    listening: Callable[[str], None]
    stopping: asyncio.Event


Plugin = Callable[[PluginContext], Awaitable[None]]


def entry_of(name: str) -> EntryPoint:
    """Where the installed plugin of that name is found. Raises `ConfigError`."""
    known = {entry.name: entry for entry in entry_points(group=GROUP)}
    if name not in known:
        raise ConfigError(f"plugins.{name}: not an installed plugin: {nearest(name, sorted(known))}")
    return known[name]


def find(name: str) -> Plugin:
    """The installed plugin of that name, loaded. Raises `ConfigError`."""
    try:
        plugin: Plugin = entry_of(name).load()
    except ImportError as error:
        raise ConfigError(f"plugins.{name}: it cannot be loaded: {error}") from error
    return plugin


class _Process:
    """What runs one plugin: gives it its context, tells the launcher what it says, and ends it with the deployment.

    `run` returns the exit status: that of a plugin that has ended (0), or could not start (`lifeline`).
    """

    def __init__(self, spec: PluginSpec) -> None:
        self._spec = spec
        self._stopping = asyncio.Event()

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._stopping.set)
        loop.add_signal_handler(signal.SIGHUP, self._orphaned)
        loop.add_reader(sys.stdin.fileno(), self._stdin_ended)
        spec = self._spec
        try:
            await find(spec.plugin)(
                PluginContext(
                    spec.config, spec.config.plugins[spec.plugin], spec.config.name, self._told, self._stopping
                )
            )
        except OmnizmqError as error:
            log.error("%s", error.message)
            wrong = isinstance(error, ConfigError)
            self._answer(Failed(error.message, wrong))
            return lifeline.EXIT_MISCONFIGURED if wrong else lifeline.EXIT_FAILED_START
        return 0

    def _told(self, where: str) -> None:
        self._answer(Listening(where))

    def _answer(self, answer: Answer) -> None:
        os.write(self._spec.answer_fd, encode(answer) + b"\n")

    def _stdin_ended(self) -> None:
        if not os.read(sys.stdin.fileno(), 1024):
            self._orphaned()

    def _orphaned(self) -> None:
        log.warning("the deployment is gone: ending")
        lifeline.brace()
        lifeline.end_with_group(self._spec.runtime_dir, self._spec.nonce)


async def _run(spec: PluginSpec) -> int:
    return await _Process(spec).run()


def main() -> None:
    """The process: `python -m omnizmq.plugin`, a `PluginSpec` on standard input."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    spec = decode_spec(sys.stdin.buffer.raw.readline())  # type: ignore[union-attr]
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format=f"%(asctime)s {spec.plugin} %(levelname)s %(message)s"
    )
    if not lifeline.hold(spec.parent_pid):
        lifeline.end_with_group(spec.runtime_dir, spec.nonce)
    try:
        status = asyncio.run(_run(spec))
    except Exception:
        log.exception("the plugin failed")
        status = 1
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
