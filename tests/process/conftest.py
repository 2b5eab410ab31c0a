"""A deployment that all tests of a file share: it takes a second to start, and each test must leave it as it was.

A file that uses it says with which `SETS` it runs, and shares the directories as well: its `home` is `module_home`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.running import Running, eventually, launched


@pytest.fixture(scope="module")
def running(request: pytest.FixtureRequest, module_home: Path) -> Iterator[Running]:  # noqa: ARG001 (its environment)
    with launched("synthetic", *request.module.SETS) as running:
        yield running
        assert running.stop() == 0


@pytest.fixture
def deployment(running: Running, no_leaks: None) -> Iterator[Running]:  # noqa: ARG001 (it looks before and after)
    """The shared deployment, as empty after each test as before (B3)."""
    yield running
    assert eventually(running.idle), running.status()
