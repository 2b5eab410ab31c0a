"""What a deployment costs that nobody uses: the CPU, the wake-ups and the clocks of seven processes.

    python tools/bench/idle.py [--turns 5] [--seconds 4] [--json]

A router and six workers of the synthetic engine, with the defaults. CPU: of all their threads, as a share of one core;
the median over the turns. Beside it, in the same turns, as many processes of asyncio that do nothing but wake up once a
second: on a virtual machine that has gone to sleep, a wake-up costs many times what it costs on a busy one. Wake-ups:
voluntary context switches of each thread, a second. Clocks: a second deployment runs with `asyncio`'s timers noting
when they fire, which says what ticks, and how often. About a minute.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from common import cpu_ns, deployment, directories, median, print_report, switches, verdict

from omnizmq import Client

CPU_AIM_PERCENT = 1.0
TICK_AIM_HZ = 1.0
SETTLE_S = 2.0
IDLER = "import asyncio\nasync def main():\n  while True: await asyncio.sleep(1)\nasyncio.run(main())"
SETS = tuple(f"stage.{stage}.replicas=2" for stage in ("thinker", "talker", "code2wav"))

TRACER = '''"""Each process notes which of its timers fire, and when."""
import asyncio, os, time

_file = None
_run = asyncio.TimerHandle._run

def _noted(handle):
    global _file
    if _file is None:
        _file = open(os.path.join(os.path.dirname(__file__), f"{os.getpid()}.ticks"), "a", buffering=1)
    owner = getattr(handle._callback, "__self__", None)
    name = getattr(handle._callback, "__qualname__", repr(handle._callback))
    _file.write(f"{time.monotonic_ns()} {name}#{id(owner)}\\n")
    _run(handle)

asyncio.TimerHandle._run = _noted
'''


@dataclass(frozen=True)
class Turn:
    """Of each process: its share of a core, and each thread's wake-ups a second. `bare`: what the bare ones took."""

    percent: dict[str, float]
    bare: float
    wakeups: dict[str, dict[str, float]]


def processes(ready: dict[str, Any]) -> dict[str, int]:
    """The router's pid and the workers', once this connection has gone."""
    with Client.connect(ready["name"]) as client:
        stages = client.status()["stages"]
    return {"router": ready["pid"], **{one["id"]: one["pid"] for stage in stages.values() for one in stage["replicas"]}}


@contextmanager
def idlers(count: int) -> Iterator[list[int]]:
    """Processes that do nothing but wake up once a second."""
    running = [subprocess.Popen([sys.executable, "-c", IDLER]) for _ in range(count)]
    try:
        yield [process.pid for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()


def turn(pids: dict[str, int], bare: list[int], seconds: float) -> Turn:
    bare_cpu = sum(map(cpu_ns, bare))
    cpu = {name: cpu_ns(pid) for name, pid in pids.items()}
    woken = {name: switches(pid) for name, pid in pids.items()}
    start = time.monotonic_ns()
    time.sleep(seconds)
    took = time.monotonic_ns() - start
    percent = {name: 100 * (cpu_ns(pid) - cpu[name]) / took for name, pid in pids.items()}
    rates = {
        name: {thread: (count - woken[name][thread]) * 1e9 / took for thread, count in switches(pid).items()}
        for name, pid in pids.items()
    }
    return Turn(percent, 100 * (sum(map(cpu_ns, bare)) - bare_cpu) / took, rates)


def measure_cpu(n: int, seconds: float) -> list[Turn]:
    with directories(), deployment("synthetic", *SETS) as ready:
        pids = processes(ready)
        with idlers(len(pids)) as bare:
            time.sleep(SETTLE_S)
            return [turn(pids, bare, seconds) for _ in range(n)]


def measure_ticks(seconds: float) -> dict[str, dict[str, float]]:
    """Of each process: how often each of its timers fires, a second. Two of one name are two clocks."""
    with TemporaryDirectory(prefix="ozb-") as tracer:
        Path(tracer, "sitecustomize.py").write_text(TRACER)
        with directories(tracer), deployment("synthetic", *SETS) as ready:
            pids = processes(ready)
            time.sleep(SETTLE_S)
            since = time.monotonic_ns()
            time.sleep(seconds)
            return {name: _rates(Path(tracer, f"{pid}.ticks"), since) for name, pid in pids.items()}


def _rates(notes: Path, since_ns: int) -> dict[str, float]:
    fired: dict[str, list[int]] = {}
    for line in notes.read_text().splitlines():
        at_ns, timer = line.split(" ", 1)
        if int(at_ns) >= since_ns:
            fired.setdefault(timer, []).append(int(at_ns))
    rates: dict[str, float] = {}
    for timer, times in fired.items():
        name = timer.rpartition("#")[0]
        name = name if name not in rates else f"{name} ({sum(known.startswith(name) for known in rates) + 1})"
        rates[name] = round((len(times) - 1) * 1e9 / (times[-1] - times[0]), 3) if len(times) > 1 else 0.0
    return rates


def measure(n: int, seconds: float) -> dict[str, Any]:
    ran = measure_cpu(n, seconds)
    ticks = measure_ticks(n * seconds)
    bare = median([one.bare for one in ran])
    total = median([sum(one.percent.values()) for one in ran])
    fastest, rate = max(
        ((f"{timer} of {name}", hz) for name, timers in ticks.items() for timer, hz in timers.items()),
        key=lambda item: item[1],
    )
    return {
        "bench": "idle",
        "turns": n,
        "seconds": seconds,
        "processes": len(ran[0].percent),
        "cpu_percent": {
            "all": round(total, 3),
            "as many bare ones": round(bare, 3),
            **{name: round(median([one.percent[name] for one in ran]), 3) for name in ran[0].percent},
        },
        "wakeups_hz": _medians([one.wakeups for one in ran]),
        "timers_hz": ticks,
        "verdicts": [
            verdict(f"idle CPU of {len(ran[0].percent)} processes", total, CPU_AIM_PERCENT, "% of a core"),
            f"as many bare processes: {bare:.2f} % of a core; omnizmq: {total / bare:.2f} x (no aim)",
            verdict(f"the fastest clock ({fastest})", rate, TICK_AIM_HZ, "a second"),
        ],
    }


def _medians(turns: list[dict[str, dict[str, float]]]) -> dict[str, dict[str, float]]:
    return {
        name: {thread: round(median([turn[name][thread] for turn in turns]), 2) for thread in threads}
        for name, threads in turns[0].items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--json", action="store_true", help="the document alone, without the verdict lines")
    args = parser.parse_args()
    print_report(measure(args.turns, args.seconds), as_json=args.json)


if __name__ == "__main__":
    main()
