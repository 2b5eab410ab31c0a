"""Deployments for the tests of `omnizmq trace` to find."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator

import pytest

from omnizmq.protocol import VERSION
from omnizmq.runtime import Deployment, RuntimeDir


@pytest.fixture
def running() -> Iterator[Callable[[str], None]]:
    """Starts a deployment as far as others can see one: its directory is owned by this process, and published."""
    owned: list[RuntimeDir] = []

    def start(name: str) -> None:
        owned.append(RuntimeDir.create(name))
        owned[-1].publish(
            Deployment(
                name=name,
                endpoint=f"ipc:///run/{name}.sock",
                nonce="secret",
                pid=os.getpid(),
                started_at=time.time(),
                version=VERSION,
            )
        )

    yield start
    for one in owned:
        one.remove()
