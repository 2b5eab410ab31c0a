"""Every test that starts a process has directories of its own and must leave nothing behind."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import leaks


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Runtime and state directories of this test alone. The path is short: a Unix socket's may have 107 bytes."""
    path = Path(tempfile.mkdtemp(prefix="oz-"))
    (path / "run").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(path / "run"))
    monkeypatch.setenv("XDG_STATE_HOME", str(path / "state"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def no_leaks(home: Path) -> Iterator[None]:
    """Fails the test that leaves a process, a socket file, shared memory or a descriptor behind."""
    root = home / "run" / "omnizmq"
    root.mkdir(mode=0o700)
    before = leaks.look(root)
    yield
    left = leaks.settle(before, root)
    assert not left, "left behind: " + "; ".join(left)
