"""A deployment that a client starts for itself: a `launch` process at the end of a pipe.

The pipe is its standard input; its end means "stop", so the deployment ends however its owner does. On its standard
output it writes events, one JSON document a line: `loading`, `ready`, `failed`.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from omnizmq.errors import LaunchError, from_code

STOP_TIMEOUT_S = 15.0
EVENT_BYTES = 1 << 20


class OwnedDeployment:
    """`start` returns the deployment's name when it is ready, and raises what kept it from starting."""

    def __init__(
        self,
        config: str,
        *,
        name: str | None,
        sets: Sequence[str],
        progress: Callable[[str, str], None] | None,
    ) -> None:
        self.name = name or f"own-{secrets.token_hex(4)}"
        self._config = config
        self._sets = sets
        self._progress = progress
        self._process: Process | None = None

    async def start(self) -> str:
        options = [option for setting in self._sets for option in ("--set", setting)]
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "omnizmq", "launch", "--owned"),
            *("--config", self._config, "--name", self.name, *options),
            stdin=PIPE,
            stdout=PIPE,
            limit=EVENT_BYTES,
            start_new_session=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            if self._heard(json.loads(line)):
                return self.name
        raise LaunchError(f"the deployment ended while it started (exit status {await self._process.wait()})")

    def _heard(self, event: dict[str, Any]) -> bool:
        """Whether it is ready."""
        if event["event"] == "failed":
            raise from_code(event["code"], event["message"], stage=event["stage"])
        if event["event"] == "loading" and self._progress is not None:
            self._progress(event["replica"], event["text"])
        return bool(event["event"] == "ready")

    async def stop(self) -> None:
        """Close the pipe and wait; kill what does not end."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), STOP_TIMEOUT_S)
        except TimeoutError:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
