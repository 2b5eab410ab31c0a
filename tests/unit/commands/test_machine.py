"""What this machine and its GPUs have, as files of the kernel and the driver's tool tell it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from omnizmq.commands import machine

MIB = 1 << 20


def test_the_machines_memory_is_no_more_than_it_has() -> None:
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    found = machine.memory_of("cpu")
    assert found is not None
    assert 0 < found <= total


def limits(tmp_path: Path, lines: str, files: dict[str, str]) -> list[int]:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "own").write_text(lines)
    return sorted(machine.cgroup_limits(tmp_path / "fs", tmp_path / "own"))


def test_limits_of_control_groups_hold_for_those_below(tmp_path: Path) -> None:
    files = {
        "fs/a/b/memory.max": "max\n",
        "fs/a/memory.max": "4096\n",
        "fs/memory.max": "8192\n",
        "fs/a/c/memory.max": "1\n",
    }
    assert limits(tmp_path, "0::/a/b\n", files) == [4096, 8192]


def test_the_first_version_of_control_groups(tmp_path: Path) -> None:
    files = {"fs/memory/box/memory.limit_in_bytes": "4096\n", "fs/cpu/box/memory.limit_in_bytes": "1\n"}
    assert limits(tmp_path, "5:cpu:/box\n3:memory:/box\n", files) == [4096]


def test_without_control_groups_there_is_no_limit(tmp_path: Path) -> None:
    assert list(machine.cgroup_limits(tmp_path, tmp_path / "none")) == []


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The driver's tool, as it answers on a machine of two GPUs."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho '0, GPU-aaaa-1, 81559'\necho '1, GPU-bbbb-2, 40960'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    machine.gpus.cache_clear()
    yield
    machine.gpus.cache_clear()


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize(
    ("visible", "device", "mib"),
    [
        (None, "cuda:0", 81559),
        (None, "cuda:1", 40960),
        (None, "cuda:2", None),
        ("1,0", "cuda:0", 40960),
        ("1", "cuda:1", None),
        ("GPU-bbbb", "cuda:0", 40960),
        ("", "cuda:0", None),
        ("1,-1,0", "cuda:0", 40960),
        ("1,-1,0", "cuda:2", None),
        (None, "GPU-bbbb-2", 40960),
        ("0", "GPU-bbbb", 40960),
        (None, "GPU-cccc-3", None),
        (None, "MIG-aaaa-1", None),
        (None, "xpu:0", None),
    ],
)
def test_a_gpu_is_counted_among_those_that_are_visible(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, device: str, mib: int | None
) -> None:
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert machine.memory_of(device) == (None if mib is None else mib * MIB)


def test_without_the_drivers_tool_nothing_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    machine.gpus.cache_clear()
    assert machine.memory_of("cuda:0") is None
    machine.gpus.cache_clear()


@pytest.mark.usefixtures("gpus")
def test_the_lesser_of_found_and_stated_counts() -> None:
    assert machine.usable("cuda:1", {"cuda:1": 80}) == 40960 * MIB
    assert machine.usable("cuda:1", {"cuda:1": 0.5}) == 512 * MIB
    assert machine.usable("cuda:7", {"cuda:7": 2}) == 2048 * MIB
    assert machine.usable("cuda:7", {}) is None


@pytest.mark.usefixtures("gpus")
def test_a_gpu_is_the_same_by_all_its_names(monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.identity("cuda:1") == machine.identity("GPU-bbbb") == "GPU-bbbb-2"
    assert machine.usable("cuda:1", {"GPU-bbbb-2": 1}) == 1024 * MIB
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    assert machine.identity("cuda:0") == "GPU-bbbb-2"
    assert machine.identity("cuda:7") == "cuda:7"
