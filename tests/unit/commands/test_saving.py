"""A file that a command writes is whole, or is not there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from omnizmq.commands.saving import save
from omnizmq.errors import OmnizmqError

SMALL_DISK = """
import resource, sys
from pathlib import Path
from omnizmq.commands.saving import save
from omnizmq.errors import OmnizmqError
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    save(Path(sys.argv[1]), bytes(5000))
except OmnizmqError as error:
    print(error.message)
"""


def test_it_is_written_and_replaces_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    for data in (b"one", b"two"):
        save(path, data)
        assert path.read_bytes() == data
    assert os.listdir(tmp_path) == ["trace"]


def test_a_full_disk_leaves_what_was_there_and_no_half_file(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(b"before")
    done = subprocess.run(
        [sys.executable, "-c", SMALL_DISK, str(path)], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == f"{path} cannot be written: File too large\n"
    assert (os.listdir(tmp_path), path.read_bytes()) == (["trace"], b"before")


def test_a_device_that_is_full_stays_a_device() -> None:
    with pytest.raises(OmnizmqError, match=r"^/dev/full cannot be written: No space left on device$"):
        save(Path("/dev/full"), b"data")
    assert Path("/dev/full").is_char_device()


def test_a_folder_that_there_is_not(tmp_path: Path) -> None:
    with pytest.raises(OmnizmqError, match="nowhere/trace cannot be written: No such file or directory"):
        save(tmp_path / "nowhere" / "trace", b"data")
