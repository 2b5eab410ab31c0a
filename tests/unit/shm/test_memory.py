"""Segments: what they refuse, what their seals forbid, and that a peer opens the right one or none."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from omnizmq.shm import memory
from omnizmq.shm.memory import (
    SharedMemoryError,
    make_segment,
    map_for_writing,
    open_segment,
    seal_contents,
    write_all,
)

PAGE = mmap.PAGESIZE
PID = os.getpid()


@contextmanager
def segment(nbytes: int = PAGE, *, populate: bool = True) -> Iterator[int]:
    fd = make_segment(nbytes, populate=populate)
    try:
        yield fd
    finally:
        os.close(fd)


def opened(fd: int, *, pid: int = PID, nbytes: int | None = None, inode: int | None = None) -> mmap.mmap:
    """The descriptor opened as a peer would, with what is given announced wrongly."""
    status = os.fstat(fd)
    size = status.st_size if nbytes is None else nbytes
    return open_segment(pid, fd, status.st_ino if inode is None else inode, status.st_dev, size)


def test_a_segment_is_allocated_whole_and_closes_on_exec() -> None:
    with segment(3 * PAGE + 1) as fd:
        assert os.fstat(fd).st_size == 3 * PAGE + 1
        assert os.fstat(fd).st_blocks * 512 == 4 * PAGE
        assert not os.get_inheritable(fd)


def test_a_segment_that_is_written_later_takes_nothing_before() -> None:
    with segment(8 * PAGE, populate=False) as fd:
        assert os.fstat(fd).st_blocks == 0
        write_all(fd, memoryview(b"x" * (8 * PAGE)))
        assert os.fstat(fd).st_blocks * 512 == 8 * PAGE


def test_more_than_half_of_what_is_available_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda: (4 << 20, "its control group (memory.max of /g)"))
    with segment(2 << 20):
        pass
    with pytest.raises(SharedMemoryError) as refused:
        make_segment((2 << 20) + 1, populate=True)
    assert str(refused.value) == (
        "2.0 MiB of shared memory asked, over half of the 4.0 MiB available, "
        "limited by its control group (memory.max of /g)"
    )


def test_what_no_machine_has_is_refused_before_it_is_allocated() -> None:
    with pytest.raises(SharedMemoryError, match=r"1,073,741,824\.0 MiB of shared memory asked"):
        make_segment(1 << 50, populate=True)


@pytest.mark.parametrize("nbytes", [0, -1])
def test_a_segment_of_no_bytes_is_a_mistake(nbytes: int) -> None:
    with pytest.raises(ValueError, match=f"a segment of {nbytes} bytes"):
        make_segment(nbytes, populate=True)


@pytest.mark.parametrize("call", ["memfd_create", "ftruncate", "posix_fallocate"])
def test_memory_that_runs_out_meanwhile_is_an_error_and_nothing_leaks(
    monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def fails(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, call, fails)
    with pytest.raises(SharedMemoryError, match=r"cannot be had: No space left on device; .* available, limited by "):
        make_segment(PAGE, populate=True)


def test_a_write_goes_on_where_it_was_cut_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel writes less than 2 GiB at a time."""
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, content, at: real(fd, content[:1000], at))
    content = os.urandom(3500)
    with segment(3500, populate=False) as fd:
        write_all(fd, memoryview(content))
        with closing(opened(fd)) as seen:
            assert seen[:] == content


PEER = """
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
n = os.fstat(fd).st_size
for name, attempt in {
    "shrink": lambda: os.ftruncate(fd, 0),
    "grow": lambda: os.ftruncate(fd, n + 1),
    "map writable": lambda: mmap.mmap(fd, n),
    "write": lambda: os.pwrite(fd, b"x", 0),
}.items():
    try:
        attempt()
        print(name, "was possible")
    except PermissionError:
        pass
print(mmap.mmap(fd, n, prot=mmap.PROT_READ)[:5])
"""


def test_no_peer_can_cut_off_or_write_a_segment_and_its_maker_still_can_write() -> None:
    with segment() as fd, closing(map_for_writing(fd, PAGE)) as mine:
        seal_contents(fd)
        mine[:5] = b"hello"
        peer = subprocess.run(
            [sys.executable, "-c", PEER, f"/proc/{PID}/fd/{fd}"], capture_output=True, text=True, check=True
        )
    assert peer.stdout == "b'hello'\n"


def test_a_mapping_shows_what_is_written_and_cannot_be_written() -> None:
    with segment() as fd, closing(map_for_writing(fd, PAGE)) as mine, closing(opened(fd)) as seen:
        mine[:5] = b"hello"
        assert seen[:5] == b"hello"
        with pytest.raises(TypeError):
            seen[0] = 1


def test_a_mapping_outlives_the_descriptor() -> None:
    with segment() as fd:
        write_all(fd, memoryview(b"still here"))
        seen = opened(fd)
    with closing(seen):
        assert seen[:10] == b"still here"


def test_a_descriptor_number_that_was_used_again_is_not_opened() -> None:
    with segment() as old:
        status = os.fstat(old)
    with segment() as new:
        assert new == old, "the kernel gives out the lowest free number"
        with pytest.raises(
            SharedMemoryError, match=rf"descriptor {old} of process {PID} is not the segment .*used again"
        ):
            open_segment(PID, old, status.st_ino, status.st_dev, PAGE)


@pytest.mark.parametrize("nbytes", [PAGE - 1, PAGE + 1, 0, -PAGE, 1 << 70])
def test_another_size_than_announced_is_not_opened(nbytes: int) -> None:
    with segment() as fd, pytest.raises(SharedMemoryError, match="not the segment"):
        opened(fd, nbytes=nbytes)


def test_another_device_than_announced_is_not_opened() -> None:
    with segment() as fd, pytest.raises(SharedMemoryError, match="not the segment"):
        open_segment(PID, fd, os.fstat(fd).st_ino, os.fstat(fd).st_dev + 1, PAGE)


def test_a_pipe_under_that_number_does_not_hold_the_reader_up() -> None:
    """To open a pipe for reading waits for a writer: what does not match is never opened."""
    path = os.path.join(tempfile.mkdtemp(), "pipe")
    os.mkfifo(path)
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with pytest.raises(SharedMemoryError, match="not the segment"):
            opened(fd, nbytes=PAGE)
    finally:
        os.close(fd)
        os.unlink(path)
        os.rmdir(os.path.dirname(path))


def test_a_file_that_could_be_cut_off_is_not_mapped() -> None:
    with tempfile.TemporaryFile() as file:
        file.truncate(PAGE)
        with pytest.raises(SharedMemoryError, match=f"descriptor {file.fileno()} of process {PID}"):
            opened(file.fileno())
    unsealed = os.memfd_create("omnizmq", os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(unsealed, PAGE)
        with pytest.raises(SharedMemoryError, match="its size is not sealed"):
            opened(unsealed)
    finally:
        os.close(unsealed)


def test_w1_a_segment_of_which_some_does_not_exist_is_not_mapped() -> None:
    """To map it whole would allocate it: whoever announces it could have any amount allocated."""
    sparse = os.memfd_create("omnizmq", os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(sparse, 64 * PAGE)
        os.pwrite(sparse, b"x" * 63 * PAGE, 0)
        fcntl.fcntl(sparse, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        with pytest.raises(SharedMemoryError, match="is not a whole segment"):
            opened(sparse)
        assert os.fstat(sparse).st_blocks * 512 == 63 * PAGE
    finally:
        os.close(sparse)


def test_a_process_that_is_gone_is_named() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    message = rf"descriptor \d+ of process {gone.pid} cannot be opened: the process or its segment is gone"
    with segment() as fd, pytest.raises(SharedMemoryError, match=message):
        opened(fd, pid=gone.pid)


@pytest.mark.parametrize("pid", [0, -1, 1 << 80])
def test_a_process_that_cannot_be_is_named(pid: int) -> None:
    with segment() as fd, pytest.raises(SharedMemoryError, match=f"of process {pid} cannot be opened"):
        opened(fd, pid=pid)
