"""Hand-off of one chunk, one way: from an array in the producer's engine to `feed` of the consumer's.

    python tools/bench/chunks.py [--quick] [--json] [--turns 5] [--sizes 4K,1M] [--set K=V]… [--variant NAME=K=V]…

omnizmq is measured as it runs: a deployment of two stages, each worker with its socket thread and its engine thread.
The clock starts as the last thing that the producer's `step` does and stops as the first thing that the consumer's
`feed` does. Its opponents are pairs of bare processes of one thread, with nothing around the transport: their clock
starts before the hand-over and stops when an array of all the bytes is there. All take turns within one run, in an
order that rotates; each figure is the median over the turns of the turn's median, and `spread` is the slowest turn's
over the fastest one's. Only ratios of one run mean something.

| opponent | what it is |
| --- | --- |
| `memcpy` | one copy into warm memory: the floor |
| `zmq …` | the bytes through pyzmq over ipc, six ways; "best ZMQ" is the fastest at that size |
| `SharedMemory a chunk` | an object of `multiprocessing.shared_memory` for each, its name over ZeroMQ |
| `iceoryx2` | where it is installed |
| `bare ring` | omnizmq's ring without its workers: the descriptor over ZeroMQ |
| `omnizmq` | as configured, `--set` included |
| `omnizmq inline`, `omnizmq ring` | everything inline, or everything by ring: where the crossover is |
| `omnizmq NAME` | `--variant NAME=K=V`: with that set besides; may be repeated, also for one name |

Modes: `latency`: one chunk under way, nothing else to do, nobody reads the bytes. The next one goes as soon as the last
one is acknowledged, so a fast pair's consumer is often still awake; `--gap-us` lets everything fall asleep in between.
`summed`: the consumer adds all bytes up, within the time. `throughput`: as many chunks under way as credits allow (32;
fewer where a ring holds fewer); its times are those of a queue. `busy numpy`, `busy python`: a second request keeps
both engines in steps of `--busy-ms`; a chunk is fed between two steps, so half a step is the least to be expected.

Aims, in latency: 16 MB at most 1.15 x memcpy; 1 MB at most 3.5 x; 1 MB and 16 MB at least 3 and 2.5 times faster than
the best ZMQ. "4 KB no slower than inline" compares like with like: omnizmq as configured with `omnizmq inline`, both at
4 KB in the same turns and through the same four threads, at most 1.1 x: two runs of one thing differ by that much.

`waits` are voluntary context switches a chunk, producer + consumer, of all threads, ZeroMQ's own too; the wait for the
consumer's acknowledgement is among them. `views` is the share of omnizmq's chunks that were read in the ring itself,
after one copy; the others came inline or were copied out. They, the `copies` by design and the system calls
(`--syscalls`, by strace) count what a busy machine hides; `p10_us` is what the less disturbed chunks took.

Nothing is left behind: neither processes nor files nor shared memory; after `kill -9` of this program, its directories
(`ozb-…` in the temporary folder) and a file of iceoryx2's stay.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from common import PLUGIN, directories, print_report, turns

sys.path.insert(0, str(PLUGIN))  # the benchmark's engines, for what they and the bare processes share

import chunks_syscalls
from chunks_job import KIB, MIB, UNDER_WAY, Job, Opponent, Sample, medians, parse_size, plan, show_size
from chunks_report import INLINE, OURS, RING, Cell, document, rows, verdicts
from opponents import bare_ring, deployment, iceoryx, shared_memory, zmq_inline
from opponents.memcpy import Memcpy

from omnizmq.errors import OmnizmqError

SIZES = "4K,8K,16K,32K,64K,1M,16M"
QUICK_SIZES = "4K,64K,1M,16M"
MODES = ("latency", "summed", "throughput", "busy numpy", "busy python")
CROSSING = (8 * KIB, 16 * KIB, 32 * KIB)
"""Sizes that are there for the crossover alone."""

FEW = 8
SMALL = 64 * KIB
"""Above it nobody asks whether a chunk should go inline."""


def main() -> None:
    args = _arguments()
    load = os.getloadavg()[0]
    if load > _cpus():
        _say(f"this machine is busy (load {load:.1f} on {_cpus()} CPUs): even ratios suffer, waits and copies do not")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # as Ctrl-C: everything is ended on the way out
    try:
        with directories(), tempfile.TemporaryDirectory(prefix="ozb-") as folder, ExitStack() as stack:
            opponents = _opponents(args, Path(folder), stack)
            cells = list(_measure(args, opponents))
            calls = _syscalls(args, opponents) if args.syscalls else None
    except OmnizmqError as error:
        sys.exit(f"{error.code}: {error.message}")
    report = {
        "machine": {
            "cpus": _cpus(),
            "kernel": platform.release(),
            "python": platform.python_version(),
            "load": [round(load, 1), round(os.getloadavg()[0], 1)],
        },
        "settings": {"turns": args.turns, "busy_ms": args.busy_ms, "sets": args.sets},
        "copies": {opponent.name: opponent.copies for opponent in opponents},
        "syscalls": calls,
        "cells": document(cells),
        "verdicts": verdicts(cells),
    }
    print_report(report, as_json=args.json)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, help="of each opponent in each cell; default 5")
    parser.add_argument("--sizes", help=f"default {SIZES}")
    parser.add_argument("--modes", default=",".join(MODES), help="default: all")
    parser.add_argument("--only", metavar="TEXT", help="opponents whose name contains it, memcpy besides")
    parser.add_argument("--set", dest="sets", action="append", default=[], metavar="K=V", help="as for launch")
    parser.add_argument("--variant", action="append", default=[], metavar="NAME=K=V", help="a deployment more")
    parser.add_argument("--busy-ms", type=float, default=2.0, help="an engine's step in the busy modes; default 2")
    parser.add_argument("--gap-us", type=float, default=0.0, help="rest before each chunk in latency; default none")
    parser.add_argument("--syscalls", action="store_true", help="count system calls a chunk as well, with strace")
    parser.add_argument("--quick", action="store_true", help="two turns, four sizes, a third of the chunks")
    parser.add_argument("--json", action="store_true", help="nothing but the document on standard output")
    args = parser.parse_args()
    args.turns = (2 if args.quick else 5) if args.turns is None else args.turns
    try:
        args.sizes = [parse_size(text) for text in (args.sizes or (QUICK_SIZES if args.quick else SIZES)).split(",")]
    except ValueError as error:
        parser.error(str(error))
    args.modes = args.modes.split(",")
    unknown = set(args.modes) - set(MODES)
    if unknown:
        parser.error(f"mode {min(unknown)!r}: there are {', '.join(MODES)}")
    if args.turns < 1 or args.busy_ms <= 0:
        parser.error("--turns and --busy-ms: more than 0 was expected")
    if any(text.count("=") < 2 for text in args.variant):
        parser.error("--variant: NAME=K=V was expected, such as --variant small=edge.producer->consumer.ring_mib=8")
    return args


def _cpus() -> int:
    return len(os.sched_getaffinity(0))


# --- The opponents --------------------------------------------------------------------------------------------------


def _opponents(args: argparse.Namespace, folder: Path, stack: ExitStack) -> list[Opponent]:
    """Started; ended with the stack."""
    found: list[Opponent] = []
    for number, (name, make) in enumerate(_makers(args)):
        if args.only and args.only not in name and name != Memcpy.name:
            continue
        try:
            opponent = make(folder / str(number))
        except OmnizmqError as error:
            if name in (INLINE, RING):
                _say(f"{name}: left out: {error.message}")
                continue
            raise
        stack.callback(opponent.close)
        found.append(opponent)
    return found


def _makers(args: argparse.Namespace) -> Iterator[tuple[str, Callable[[Path], Opponent]]]:
    largest = max(args.sizes)
    yield Memcpy.name, lambda _: Memcpy()
    for variant in zmq_inline.VARIANTS:
        yield variant.name, partial(_pair, zmq_inline.make, variant, largest)
    yield "SharedMemory a chunk", lambda folder: shared_memory.make(folder, largest)
    if iceoryx.is_there():
        yield "iceoryx2", lambda folder: iceoryx.Iceoryx(folder, largest)
    else:
        _say(iceoryx.ABSENT)
    yield "bare ring", lambda folder: bare_ring.make(folder, largest)
    deployments = {OURS: [], INLINE: [deployment.CROSSOVER.format(1 << 40)], RING: [deployment.CROSSOVER.format(0)]}
    for text in args.variant:
        name, _, override = text.partition("=")
        deployments.setdefault(f"{OURS} {name}", []).append(override)
    for name, sets in deployments.items():
        yield name, partial(_deployment, name, [*args.sets, *sets])


def _pair(make: Callable[[Any, Path, int], Opponent], variant: Any, largest: int, folder: Path) -> Opponent:
    return make(variant, folder, largest)


def _deployment(name: str, sets: Sequence[str], folder: Path) -> Opponent:
    return deployment.Deployment(name, folder, sets)


# --- The turns ------------------------------------------------------------------------------------------------------


def _measure(args: argparse.Namespace, opponents: Sequence[Opponent]) -> Iterator[Cell]:
    for mode in args.modes:
        for size in args.sizes:
            cell = _cell(args, opponents, mode, size)
            if cell.figures:
                _say("\n".join(rows(cell)))
                yield cell


def _cell(args: argparse.Namespace, opponents: Sequence[Opponent], mode: str, size: int) -> Cell:
    job = _job(args, mode, size)
    joining = [one for one in opponents if one.takes(job) and _joins(one.name, mode, size)]
    chosen = {one.name: partial(one.measure, _suited(job, one.name)) for one in joining}
    cell = Cell(mode, size)
    if set(chosen) - {Memcpy.name}:
        samples: dict[str, list[Sample]] = turns(chosen, args.turns)
        cell.figures = {name: medians(found) for name, found in samples.items()}
    return cell


def _job(args: argparse.Namespace, mode: str, size: int) -> Job:
    part = 0.3 if args.quick else 1.0
    if mode == "throughput":
        return plan(size, part=2 * part, under_way=UNDER_WAY)
    if mode == "busy numpy":
        return plan(size, part=0.2 * part, busy="numpy", busy_ms=args.busy_ms)
    if mode == "busy python":
        return plan(size, part=0.1 * part, busy="python", busy_ms=args.busy_ms)
    return plan(size, part=part, summed=mode == "summed", gap_us=args.gap_us)


def _suited(job: Job, name: str) -> Job:
    """Large chunks inline take a tenth of a second each: a few tell as much."""
    return replace(job, chunks=FEW, warm=1) if name == INLINE and job.size > MIB else job


def _joins(name: str, mode: str, size: int) -> bool:
    """What nobody asks for is not measured."""
    if name == RING:
        return mode == "latency" and size <= SMALL
    if mode == "latency":
        return True
    if name == INLINE and (mode != "throughput" or size > SMALL):
        return False
    return size not in CROSSING and (mode != "summed" or size >= SMALL)


def _syscalls(args: argparse.Namespace, opponents: Sequence[Opponent]) -> dict[str, dict[str, dict[str, float]]]:
    """By size and opponent."""
    if not chunks_syscalls.is_there():
        sys.exit(chunks_syscalls.MISSING)
    found: dict[str, dict[str, dict[str, float]]] = {}
    for size in args.sizes:
        found[show_size(size)] = counts = {one.name: chunks_syscalls.count(one, size) for one in opponents}
        lines = [f"  {name:<24}{json.dumps(calls)}" for name, calls in counts.items() if calls]
        _say("\n".join([f"system calls a chunk, {show_size(size)}", *lines]))
    return found


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
