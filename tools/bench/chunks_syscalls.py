"""System calls a chunk, counted by strace: what two processes ask of the kernel, whatever else the machine does."""

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from chunks_job import Job, Opponent

MISSING = "strace is not installed: system calls are not counted"
ATTACH_TIMEOUT_S = 10.0
FEW, MANY = 20, 120
"""Chunks of two runs; what belongs to a run and not to a chunk is in both."""


def is_there() -> bool:
    return shutil.which("strace") is not None


def count(opponent: Opponent, size: int) -> dict[str, float]:
    """By call, and `all`, producer and consumer together, with one chunk under way; the wait for its
    acknowledgement is among them. Empty where the opponent has no processes."""
    pids = opponent.pids()
    if not pids:
        return {}
    few, many = (_traced(opponent, pids, Job(size, chunks, 4)) for chunks in (FEW, MANY))
    return per_chunk(few, many, MANY - FEW)


def per_chunk(few: Mapping[str, int], many: Mapping[str, int], chunks: int) -> dict[str, float]:
    """Of two runs, one of `chunks` more. Calls that are seldom (under one in ten chunks) are left out."""
    calls = {name: (made - few.get(name, 0)) / chunks for name, made in many.items()}
    shown = {name: round(each, 1) for name, each in sorted(calls.items(), key=lambda item: -item[1]) if each >= 0.1}
    return {"all": round(sum(calls.values()), 1), **shown}


def parse(table: str) -> dict[str, int]:
    """Calls by name, from the table of `strace -c`."""
    calls = {}
    for line in table.splitlines():
        fields = line.split()
        if len(fields) >= 5 and fields[3].isdigit() and fields[-1] != "total":
            calls[fields[-1]] = int(fields[3])
    return calls


def _traced(opponent: Opponent, pids: Sequence[int], job: Job) -> dict[str, int]:
    with tempfile.NamedTemporaryFile("r", prefix="ozb-strace-") as table:
        attach = [option for pid in pids for option in ("-p", str(pid))]
        strace = subprocess.Popen(["strace", "-c", "-f", "-q", "-o", table.name, *attach], stderr=subprocess.PIPE)
        try:
            _await_attached(strace, pids)
            opponent.measure(job)
        finally:
            strace.send_signal(signal.SIGINT)  # it detaches, and writes its table
            _, said = strace.communicate()
        calls = parse(table.read())
    if not calls:
        raise SystemExit(f"strace counted nothing: {said.decode().strip() or 'no reason was given'}")
    return calls


def _await_attached(strace: subprocess.Popen[bytes], pids: Sequence[int]) -> None:
    tasks = [task for pid in pids for task in Path(f"/proc/{pid}/task").iterdir()]
    deadline = time.monotonic() + ATTACH_TIMEOUT_S
    while not all(_is_traced(task) for task in tasks):
        if strace.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"strace could not attach to the processes {', '.join(map(str, pids))}")
        time.sleep(0.01)


def _is_traced(task: Path) -> bool:
    return "\nTracerPid:\t0\n" not in (task / "status").read_text()
