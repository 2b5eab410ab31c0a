"""A worker or plugin ends with its parent, and its process group with it (F6).

Two signs say that the parent has died: the end of standard input, which the launcher holds open, and SIGHUP from the
kernel (PR_SET_PDEATHSIG; SIGTERM is how the launcher ends a child in good order). Both end the child if it can still
listen. One that cannot (it is stopped, or its engine never lets the interpreter go) is ended by the first of its
siblings that does, which kills every group that the router had recorded; if no sibling could listen, by the next start
(`omnizmq.runtime`).
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from pathlib import Path

from omnizmq.runtime import remove_if_dead

_PR_SET_PDEATHSIG = 1
LAST_WORDS_S = 3
LOCK_FREED_S = 1.0

EXIT_FAILED_START = 3
EXIT_MISCONFIGURED = 4
"""What a child ends with when its engine or plugin did not start; the second: because the configuration is wrong."""

EXIT_BROKEN = 5
"""What a worker ends with when its engine can do nothing any more, and nobody has killed it for that."""


def hold(parent_pid: int) -> bool:
    """Ask the kernel for SIGHUP at the parent's death. False: it has died already."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGHUP)
    return os.getppid() == parent_pid


def brace() -> None:
    """From here on the process ends within `LAST_WORDS_S`, whatever its threads do."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(LAST_WORDS_S)


def end_with_group(runtime_dir: str, nonce: str) -> None:
    """Remove what the dead router left, its other workers included, then this process and all its children.

    The threads of a dying process end one by one: the kernel may tell of the first one's end while another still holds
    the lock. Does not return.
    """
    directory = Path(runtime_dir)
    deadline = time.monotonic() + LOCK_FREED_S
    try:
        while directory.is_dir() and not remove_if_dead(directory, nonce) and time.monotonic() < deadline:
            time.sleep(0.01)
    finally:
        os.killpg(0, signal.SIGKILL)
