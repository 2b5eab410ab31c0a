"""`omnizmq launch`: a deployment in this process, until a signal drains it."""

from __future__ import annotations

import asyncio
import json
import logging
import resource
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from omnizmq.commands import loop
from omnizmq.errors import ConfigError, LaunchError, OmnizmqError

if TYPE_CHECKING:
    from omnizmq.config import Config
    from omnizmq.launcher.deployment import LocalDeployment
    from omnizmq.runtime import Deployment

LOG_BYTES = 8 << 20
RECORD_MAX_MIB = 1024
Say = Callable[[str, dict[str, object]], None]


SHIPPED = (
    "csm, csm_tiny, embedded, qwen3_omni, qwen3_omni_one_gpu, qwen3_omni_tiny, qwen3_omni_tiny_vllm, synthetic, vllm"
)


@click.command()
@click.option(
    "--config", "config_path", required=True, metavar="FILE", help=f"A TOML file or a shipped name: {SHIPPED}."
)
@click.option("--name", metavar="NAME", help="The deployment's name; default: the configuration's.")
@click.option("--set", "sets", multiple=True, metavar="K=V", help="Override a value: stage.talker.replicas=2.")
@click.option(
    "--http", "http_port", type=click.IntRange(0, 65535), metavar="PORT", help="Serve OpenAI's API there; 0: any port."
)
@click.option("--json", "as_json", is_flag=True, help="Print the ready line as JSON.")
@click.option("--record", type=click.Path(path_type=Path), metavar="FILE", help="Record for `omnizmq replay`.")
@click.option(
    "--record-max-mib",
    type=click.IntRange(1, 1 << 20),
    metavar="N",
    help=f"Where a recording ends; default: {RECORD_MAX_MIB}.",
)
@click.option("--owned", is_flag=True, hidden=True, help="Write events as JSON lines; stop when standard input ends.")
def launch(
    config_path: str,
    name: str | None,
    sets: tuple[str, ...],
    http_port: int | None,
    as_json: bool,
    record: Path | None,
    record_max_mib: int | None,
    owned: bool,
) -> None:
    """Start the router, its workers and its plugins, and serve until SIGTERM or Ctrl-C.

    A signal drains the deployment: no new requests, live ones may end. A second signal stops at once.
    """
    if record is None and record_max_mib is not None:
        raise click.UsageError(f"--record-max-mib {record_max_mib} goes with --record FILE: nothing is recorded")
    say = _forgiving(_events if owned else (_json_lines if as_json else _plain_lines))
    try:
        config = _load(config_path, sets, http_port)
        recording = None if record is None else (record, record_max_mib or RECORD_MAX_MIB)
        status = loop.run(_serve(config, name or config.name, say, owned, recording))
    except OmnizmqError as error:
        if not owned:
            raise
        say("failed", {"code": error.code, "message": error.message, "stage": error.stage})
        status = 1
    sys.exit(status)


def _load(path: str, sets: tuple[str, ...], http_port: int | None) -> Config:
    """What `omnizmq check` finds wrong is found before anything is started."""
    if sys.platform != "linux":
        raise LaunchError(f"a deployment runs on Linux, not on {sys.platform}; clients run anywhere")
    from omnizmq import config
    from omnizmq.commands import memory, plugins

    def judge(config: Config) -> None:
        memory.must_start_here(config)
        plugins.must_start_here(config)

    if http_port is None:
        return config.load(path, sets, judge=judge)
    port = f"plugins.http.port={http_port}"
    try:
        return config.load(path, (*sets, port), judge=judge)
    except ConfigError as error:
        raise ConfigError(error.message.replace(f"--set {port}:", f"--http {http_port}:", 1)) from None


async def _serve(config: Config, name: str, say: Say, owned: bool, recording: tuple[Path, int] | None) -> int:
    from omnizmq.launcher.deployment import LocalDeployment
    from omnizmq.runtime import state_dir

    await asyncio.sleep(0)  # an interrupt that came while this was imported is raised here, before anything is started
    _allow_descriptors()
    signals = _Signals(owned)
    serving = asyncio.Event()

    def progress(replica: str, text: str) -> None:
        if not (owned and serving.is_set()):  # an owner reads until `ready`: more would fill the pipe, and block us
            say("loading", {"replica": replica, "text": text})

    _log_to_file(state_dir(name) / "router.log")
    deployment = LocalDeployment(config, name, progress, recording)
    starting = asyncio.create_task(deployment.start())
    if not await signals.first(starting):
        starting.cancel()
        with suppress(asyncio.CancelledError, LaunchError, ConfigError):
            await starting
        if not owned:
            say("stopped", {})
        return 0
    say("ready", _ready(deployment, await starting))
    serving.set()
    await signals.wait()
    if not owned:
        say("draining", {})
    draining = asyncio.create_task(deployment.drain())
    if await signals.first(draining):
        await draining
    else:
        draining.cancel()
    await deployment.stop()
    return 0


def _allow_descriptors() -> None:
    """Each client and each worker costs some; running out of them would end the router."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class _Signals:
    """SIGTERM, SIGINT and, for an owned deployment, the end of standard input: each is a wish to stop."""

    def __init__(self, owned: bool) -> None:
        self._loop = asyncio.get_running_loop()
        self._asked = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._asked.set)
        if owned:
            self._loop.add_reader(sys.stdin.fileno(), self._stdin)

    def _stdin(self) -> None:
        if not sys.stdin.buffer.raw.read(1024):  # type: ignore[union-attr]
            self._loop.remove_reader(sys.stdin.fileno())
            self._asked.set()

    async def wait(self) -> None:
        """Until a wish to stop; the next `wait` or `first` needs another one."""
        await self._asked.wait()
        self._asked.clear()

    async def first(self, task: asyncio.Task[object] | asyncio.Task[None]) -> bool:
        """Whether the task ended before a wish to stop came. A wish that comes with its end is for the next to hear."""
        asked = asyncio.create_task(self._asked.wait())
        await asyncio.wait([task, asked], return_when=asyncio.FIRST_COMPLETED)
        asked.cancel()
        if not task.done():
            self._asked.clear()
        return task.done()


def _ready(deployment: LocalDeployment, published: Deployment) -> dict[str, object]:
    return {
        "name": published.name,
        "endpoint": published.endpoint,
        "pid": published.pid,
        "stages": [stage.name for stage in deployment.config.stage],
        "plugins": deployment.plugins,
        "remote": _remote(deployment),
    }


def _remote(deployment: LocalDeployment) -> dict[str, str] | None:
    """What clients of other machines connect to, and the file that they need."""
    from omnizmq import remote
    from omnizmq.runtime import state_dir

    endpoint = deployment.config.router.remote
    if not endpoint:
        return None
    return {"endpoint": remote.as_seen_elsewhere(endpoint), "keys": str(remote.file(state_dir(deployment.name)))}


def _log_to_file(path: Path) -> None:
    try:
        file = RotatingFileHandler(path, maxBytes=LOG_BYTES, backupCount=1)
    except OSError as error:
        raise ConfigError(f"log {path} cannot be written: {error.strerror}; set XDG_STATE_HOME") from error
    file.setFormatter(logging.Formatter("%(asctime)s router %(levelname)s %(message)s"))
    # A full disk costs lines of the log. A complaint of each would fill standard error, which nobody may be reading.
    logging.raiseExceptions = False
    logging.basicConfig(level=logging.INFO, handlers=[file])


def _forgiving(say: Say) -> Say:
    """Neither a listener that has gone nor a full disk ends a deployment; an owner's end is noticed by its pipe."""

    def forgiving(event: str, fields: dict[str, object]) -> None:
        with suppress(OSError):
            say(event, fields)

    return forgiving


def _events(event: str, fields: dict[str, object]) -> None:
    """For an owner: one JSON document a line."""
    print(json.dumps({"event": event, **fields}), flush=True)  # noqa: T201 (it is the interface)


def _plain_lines(event: str, fields: dict[str, object]) -> None:
    if event == "ready":
        stages = ", ".join(map(str, fields["stages"]))  # type: ignore[call-overload]
        remote: Any = fields["remote"]
        elsewhere = f"; from other machines at {remote['endpoint']} with {remote['keys']}" if remote else ""
        plugins: Any = fields["plugins"]
        serving = "".join(f"; {name} at {where}" for name, where in plugins.items())
        click.echo(
            f"ready: {fields['name']} ({stages}) at {fields['endpoint']}, pid {fields['pid']}{serving}{elsewhere}"
        )
    elif event == "draining":
        click.echo("draining: no new requests; a second signal stops at once", err=True)
    elif event == "stopped":
        click.echo("stopped before it was ready", err=True)
    elif event == "loading":
        click.echo(f"{fields['replica']}: {fields['text']}", err=True)


def _json_lines(event: str, fields: dict[str, object]) -> None:
    if event == "ready":
        click.echo(json.dumps(fields))
    else:
        _plain_lines(event, fields)
