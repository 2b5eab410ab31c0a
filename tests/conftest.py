"""Every test that starts a process has directories of its own and must leave nothing behind."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import settings
from support import leaks

settings.register_profile("omnizmq", deadline=None)  # how long an example takes is the machine's matter
settings.load_profile("omnizmq")


@contextmanager
def _directories() -> Iterator[Path]:
    """Runtime and state directories. The path is short: a Unix socket's may have 107 bytes."""
    path = Path(tempfile.mkdtemp(prefix="oz-"))
    (path / "run").mkdir(mode=0o700)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(path / "run"))
        patch.setenv("XDG_STATE_HOME", str(path / "state"))
        yield path
    shutil.rmtree(path)


@pytest.fixture
def home() -> Iterator[Path]:
    """Runtime and state directories of this test alone."""
    with _directories() as path:
        yield path


@pytest.fixture(scope="module")
def module_home() -> Iterator[Path]:
    """The same for a module whose tests share a deployment; there, `home` is made to return it."""
    with _directories() as path:
        yield path


@pytest.fixture
def no_leaks(home: Path) -> Iterator[None]:
    """Fails the test that leaves a process, a socket file, shared memory, a descriptor or a thread behind."""
    root = home / "run" / "omnizmq"
    root.mkdir(mode=0o700, exist_ok=True)
    before = leaks.look(root)
    yield
    left = leaks.settle(before, root)
    assert not left, "left behind: " + "; ".join(left)
