"""Segments: shared memory that has no name, so nothing can be left behind, whoever is killed.

A segment is an anonymous file, known by its descriptor in the process that made it; it lives as long as somebody has it
open or mapped. Its size is sealed, so nobody can cut it off under a process that reads it. Peers of the same user find
it under /proc, and compare what they find: numbers of processes and descriptors are used again.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager

from omnizmq.shm.available import available_bytes

_SIZE_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
_FUTURE_WRITE_SEAL = 0x10  # F_SEAL_FUTURE_WRITE (Linux 5.1); the fcntl module names it from Python 3.13 on
# An allocation that a signal interrupts starts anew, so it is not one large one.
_PIECE = 64 << 20


class SharedMemoryError(Exception):
    """Shared memory that cannot be had. One line: what was asked, and what is in the way."""


class SegmentGoneError(SharedMemoryError):
    """What its maker has announced is not there any more."""


def make_segment(nbytes: int, *, populate: bool) -> int:
    """The descriptor of a new segment; its size can no longer be changed.

    With `populate`, all its pages are allocated now, and reading or writing it can never fail later. Without, they are
    allocated as the segment is written, which only `write_all` may do: where memory is short, it gives an error.

    Raises SharedMemoryError, before anything is allocated, if `nbytes` is over half of what is available.
    """
    _refuse_if_scarce(nbytes)
    with _cannot_be_made(nbytes):
        fd = os.memfd_create("omnizmq", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with _cannot_be_made(nbytes):
            os.ftruncate(fd, nbytes)
            for start in range(0, nbytes if populate else 0, _PIECE):
                os.posix_fallocate(fd, start, min(_PIECE, nbytes - start))
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SIZE_SEALS)
    except BaseException:
        os.close(fd)
        raise
    return fd


def map_for_writing(fd: int, nbytes: int) -> mmap.mmap:
    """The segment's bytes, writable: for its maker, before `seal_contents`."""
    with _cannot_be_made(nbytes):
        return mmap.mmap(fd, nbytes, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)


def write_all(fd: int, content: memoryview) -> None:
    """Writes a segment from its start. Raises SharedMemoryError if there is no memory for it."""
    done = 0
    with _cannot_be_made(len(content)):
        while done < len(content):
            done += os.pwrite(fd, content[done:], done)


def seal_contents(fd: int) -> None:
    """From now on nobody writes the segment but by a mapping that exists already."""
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _FUTURE_WRITE_SEAL | fcntl.F_SEAL_SEAL)


def open_segment(pid: int, fd: int, inode: int, device: int, nbytes: int) -> mmap.mmap:
    """A read-only mapping of descriptor `fd` of the process `pid`: `nbytes`, all of the segment.

    Raises SharedMemoryError if it cannot be opened from here, or if what is there now is not that segment.
    """
    where = f"descriptor {fd} of process {pid}"
    try:
        with _opened(f"/proc/{pid}/fd/{fd}", os.O_PATH) as found:
            status = os.fstat(found)
            if nbytes < 1 or (status.st_ino, status.st_dev, status.st_size) != (inode, device, nbytes):
                raise SegmentGoneError(f"{where} is not the segment that was announced: the number was used again")
            # Only what was compared is opened: opening a device or a pipe would do something to it.
            with _opened(f"/proc/self/fd/{found}", os.O_RDONLY) as opened:
                if fcntl.fcntl(opened, fcntl.F_GET_SEALS) & _SIZE_SEALS != _SIZE_SEALS:
                    raise SharedMemoryError(f"{where} is not a segment: its size is not sealed")
                if status.st_blocks * 512 < nbytes:  # to map it would be to allocate it, for whoever says so
                    raise SharedMemoryError(f"{where} is not a whole segment: some of its {nbytes} bytes do not exist")
                return mmap.mmap(opened, nbytes, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE, prot=mmap.PROT_READ)
    except (FileNotFoundError, ProcessLookupError) as error:
        raise SegmentGoneError(f"{where} cannot be opened: the process or its segment is gone, or not here") from error
    except OSError as error:
        raise SharedMemoryError(f"{where} cannot be opened: {error.strerror}") from error


@contextmanager
def _opened(path: str, flags: int) -> Iterator[int]:
    fd = os.open(path, flags | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def _cannot_be_made(nbytes: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        room, limit = available_bytes()
        raise SharedMemoryError(
            f"{_mib(nbytes)} of shared memory cannot be had: {error.strerror}; "
            f"{_mib(room)} available, limited by {limit}"
        ) from error


def _refuse_if_scarce(nbytes: int) -> None:
    if nbytes < 1:
        raise ValueError(f"a segment of {nbytes} bytes, it must be 1 or more")
    room, limit = available_bytes()
    if 2 * nbytes > room:
        raise SharedMemoryError(
            f"{_mib(nbytes)} of shared memory asked, over half of the {_mib(room)} available, limited by {limit}"
        )


def _mib(nbytes: int) -> str:
    return f"{nbytes / (1 << 20):,.1f} MiB"
