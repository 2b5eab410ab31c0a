"""What the benchmarks share: opponents in turns, medians, verdicts, one JSON document, a deployment of their own.

Times on a busy machine mean little by themselves. Opponents therefore run in turns within one run, each figure is the
median over the turns, and a verdict compares ratios.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

PLUGIN = Path(__file__).resolve().parent / "plugin"
"""A folder that looks installed to whoever has it on PYTHONPATH: the benchmarks' engines are found there."""

STOP_TIMEOUT_S = 20.0

T = TypeVar("T")


def turns(opponents: Mapping[str, Callable[[], T]], n: int) -> dict[str, list[T]]:
    """Each opponent `n` times, one after another; every turn begins with another of them. What each returned."""
    names = list(opponents)
    results: dict[str, list[T]] = {name: [] for name in names}
    for turn in range(n):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            results[name].append(opponents[name]())
    return results


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def verdict(what: str, value: float, aim: float, unit: str) -> str:
    """One line; at most the aim is wanted: `hop p50: 1.38 x relay (aim 1.5): met`."""
    return f"{what}: {value:.3g} {unit} (aim {aim:g}): {'met' if value <= aim else 'missed'}"


def print_report(report: Mapping[str, Any], *, as_json: bool = False) -> None:
    """The JSON document on standard output, and the lines under its `verdicts` after it; with `as_json` it alone."""
    print(json.dumps(report, indent=2))
    if not as_json:
        print(*report.get("verdicts", ()), sep="\n")


@contextmanager
def directories(*search: str) -> Iterator[None]:
    """An environment with runtime and state directories of its own, with `search` and the benchmarks' engines in reach.

    Everything is removed at the end. The path is short: a Unix socket's may have 107 bytes.
    """
    path = Path(tempfile.mkdtemp(prefix="ozb-"))
    (path / "run").mkdir(mode=0o700)
    found = [*search, str(PLUGIN), *filter(None, [os.environ.get("PYTHONPATH")])]
    ours = {
        "XDG_RUNTIME_DIR": str(path / "run"),
        "XDG_STATE_HOME": str(path / "state"),
        "PYTHONPATH": os.pathsep.join(found),
    }
    before = {name: os.environ.get(name) for name in ours}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        shutil.rmtree(path)


@contextmanager
def deployment(config: str | Path, *sets: str, options: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """`omnizmq launch`, ready: its ready line (name, endpoint, pid of the router). Use it within `directories`."""
    setting = [option for one in sets for option in ("--set", one)]
    process = subprocess.Popen(
        [sys.executable, "-m", "omnizmq", "launch", "--config", str(config), "--json", *setting, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # progress; why a start failed is on standard output
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if '"endpoint"' not in line:
            raise SystemExit(f"the deployment did not start: {line.strip()}")
        ready: dict[str, Any] = json.loads(line)
        yield ready
    finally:
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def cpu_ns(pid: int) -> int:
    """User and system time of a process and all its threads, also of those that have ended: its CPU clock."""
    return time.clock_gettime_ns((~pid << 3) | 2)


def switches(pid: int) -> dict[str, int]:
    """Voluntary context switches of each thread, by name; threads of one name together, the first one is `main`.

    How often it went to sleep, and so how often it was woken.
    """
    counts: Counter[str] = Counter()
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            lines = (task / "status").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            continue
        fields = dict(line.split(":", 1) for line in lines if ":" in line)
        name = "main" if task.name == str(pid) else fields["Name"].strip()
        counts[name] += int(fields["voluntary_ctxt_switches"])
    return counts
