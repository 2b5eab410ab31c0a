"""A plugin for tests, and how deployments that are started in here find it.

It listens on a Unix socket at its option `socket` and answers each connection with what its own client hears for the
prompt that came in. What it does instead is said by its options: `fail` (how it does not start), `deaf` (seconds that
it takes to stop).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from omnizmq import AsyncClient
from omnizmq.errors import ConfigError, LaunchError
from omnizmq.plugin import PluginContext

TESTS = Path(__file__).parent.parent


def check_options(options: dict[str, Any]) -> None:
    if options.get("fail") == "check":
        raise ConfigError('plugins.parrot.fail: "check" was refused')


async def parrot(context: PluginContext) -> None:
    match context.options.get("fail"):
        case "options":
            raise ConfigError("plugins.parrot.fail: nothing was expected")
        case "start":
            raise LaunchError("no perch is free")
        case "long":
            raise LaunchError("no perch is free: " + "tweet " * 50_000 + "I said")
        case "endless":
            raise LaunchError("no perch is free: " + "tweet " * 500_000)
        case "crash":
            raise RuntimeError("it fell off")
        case "silence":
            await context.stopping.wait()
            return
    async with AsyncClient.connect(context.connect) as client:

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            prompt = (await reader.readline()).decode().strip()
            if prompt == "die":
                os._exit(9)
            async for output in client.generate(prompt, modalities=["text"]):
                writer.write((output.text or "").encode())
            writer.close()

        async with await asyncio.start_unix_server(answer, context.options["socket"]):
            context.listening(context.options["socket"])
            await context.stopping.wait()
            await asyncio.sleep(context.options.get("deaf", 0))


@contextmanager
def parrots(folder: Path) -> Iterator[None]:
    """Deployments that are started in here find the plugin `parrot`."""
    about = folder / "parrot-0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: parrot\nVersion: 0\n")
    (about / "entry_points.txt").write_text("[omnizmq.plugins]\nparrot = support.plugins:parrot\n")
    paths = [str(folder), str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(paths))
        yield
