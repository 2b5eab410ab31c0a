"""Ctrl-C in a command, before and amid its imports.

`KeyboardInterrupt` raised in an import is a traceback; or it is lost, or becomes another exception, in modules written
in C and in what Python itself calls there. So an interrupt waits until the command can answer it, and later it is noted
before it is raised: `came` tells what an odd exception really was. This module comes first and imports next to nothing.
An interrupt that is ignored, or is somebody else's to handle, stays so.
"""

from __future__ import annotations

import signal

_noted: list[int] = []


def hold() -> None:
    """From now on an interrupt waits."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _note)


def release() -> None:
    """From now on an interrupt raises `KeyboardInterrupt`; one that has waited does so here."""
    if signal.getsignal(signal.SIGINT) is _note:
        signal.signal(signal.SIGINT, _note_and_raise)
        if _noted:
            raise KeyboardInterrupt


def came() -> bool:
    """Whether there was one, whatever it became."""
    return bool(_noted)


def leave_to_asyncio() -> bool:
    """`asyncio.run` cancels its task upon an interrupt, where Python's own handler is set. Whether it was ours."""
    ours = signal.getsignal(signal.SIGINT) is _note_and_raise
    if ours:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return ours


def take_back() -> None:
    """After `leave_to_asyncio`, where it was ours."""
    signal.signal(signal.SIGINT, _note_and_raise)


def end_at_once() -> None:
    """All is said, and the interpreter ends: an interrupt ends the process without a word."""
    if signal.getsignal(signal.SIGINT) in (_note, _note_and_raise, signal.default_int_handler):
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _note(number: int, frame: object) -> None:  # noqa: ARG001 (as `signal` calls it)
    _noted.append(number)


def _note_and_raise(number: int, frame: object) -> None:  # noqa: ARG001
    _noted.append(number)
    raise KeyboardInterrupt
