"""Every test of shared memory fails that leaves a descriptor or a mapping behind."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest


def open_segments() -> list[str]:
    """Descriptors and mappings of segments that this process has now."""
    targets = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            targets.append(os.readlink(f"/proc/self/fd/{fd}"))
        except FileNotFoundError:  # the descriptor that listed the others
            continue
    maps = Path("/proc/self/maps").read_text().splitlines()
    return [name for name in targets + maps if "memfd:omnizmq" in name]


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    descriptors = len(os.listdir("/proc/self/fd"))
    yield
    gc.collect()
    assert open_segments() == []
    assert len(os.listdir("/proc/self/fd")) == descriptors
