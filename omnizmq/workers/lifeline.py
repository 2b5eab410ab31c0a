"""A worker ends with its parent, and its process group with it (F6).

Two signs say that the parent has died: the end of standard input, which the launcher holds open, and SIGTERM from the
kernel (PR_SET_PDEATHSIG). Both end the worker in good order if it can still listen; an alarm whose default action the
kernel itself carries out ends it if it cannot.
"""

from __future__ import annotations

import ctypes
import os
import signal
from pathlib import Path

from omnizmq.runtime import remove_if_dead

_PR_SET_PDEATHSIG = 1
LAST_WORDS_S = 3


def hold(parent_pid: int) -> bool:
    """Ask the kernel for SIGTERM at the parent's death. False: it has died already."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    return os.getppid() == parent_pid


def brace() -> None:
    """From here on the process ends within `LAST_WORDS_S`, whatever its threads do."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(LAST_WORDS_S)


def end_with_group(runtime_dir: str, nonce: str) -> None:
    """Remove what the dead router left, then this process and all its children. Does not return."""
    remove_if_dead(Path(runtime_dir), nonce)
    os.killpg(0, signal.SIGKILL)
