"""The trace's store with many requests: what writing one costs, that the file keeps its bound, how long a lookup takes.

    python tools/bench/trace_store.py [--requests 100000] [--max-mib 64]

A `TraceWriter` is given the facts of requests with three stages, as the router records them, as fast as it stores them.
Then a `TraceReader` looks up requests that are there: by request id or external id (found, and all facts read), the
newest failed ones and the slowest, each time with a connection of its own, as `omnizmq trace` does. The file is in the
folder of temporary files, in the page cache.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from common import print_report, verdict

from omnizmq import protocol as wire
from omnizmq.trace.facts import Fact
from omnizmq.trace.store import TraceReader, TraceWriter

STAGES = ("thinker", "talker", "code2wav")
STEPS = ("registered", "input_ready", "running", "first_output")
LOOKUPS = 300
LOOKUP_AIM_MS = 50.0
LIVE = 64
"""Requests whose facts come mingled."""


def facts(number: int) -> list[Fact]:
    """One request's; every tenth fails."""
    external_id = f"req-{random.randbytes(4).hex()}"
    request_id = wire.make_request_id(external_id, random.randbytes(8))
    began = time.monotonic_ns()
    told: list[Fact] = []

    def tell(event: str, owner: str = "router", stage: str | None = None, **detail: wire.Value) -> None:
        at_ns = began + len(told) * 1_000_000 * (1 + number % 7)
        told.append(Fact(request_id, external_id, 1, at_ns, owner, event, stage, detail))

    tell("asked", "client")
    chain = ",".join(STAGES)
    tell("received", stages=chain, all_stages=chain, final_stages="thinker,code2wav", last_stage="code2wav")
    for stage in STAGES:
        tell("bound", stage=stage, replica=f"{stage}/0")
    for stage in reversed(STAGES):
        tell("submitted", stage=stage)
    for stage in STAGES:
        for step in STEPS:
            tell(step, f"{stage}/0", stage)
    for source, target in itertools.pairwise(STAGES):
        tell("edge", f"{source}/0", source, chunks=40, bytes=163840, first_ns=began, last_ns=began, to=target)
    for stage in STAGES:
        tell("finished", f"{stage}/0", stage, finish_reason="stop", outputs=40)
    if number % 10:
        tell("terminal", stage="code2wav", finish_reason="stop", usage_incomplete="")
    else:
        tell("terminal", stage="talker", finish_reason="error", error_code="stage_error", error_message="it broke")
    return told


def write(path: Path, requests: int, max_mib: int) -> dict[str, Any]:
    """CPU of the writer's thread and of the caller's `append`, microseconds a request; and what was dropped."""
    writer = TraceWriter(path, max_mib=max_mib, max_age_days=7.0)
    largest = appending = count = 0
    started = time.process_time_ns()
    ours = time.thread_time_ns()
    for group in range(0, requests, LIVE):
        for fact in mingled([facts(number) for number in range(group, min(requests, group + LIVE))]):
            count += 1
            before = time.thread_time_ns()
            writer.append(fact)
            appending += time.thread_time_ns() - before
        writer.flush(60)
        largest = max(largest, path.stat().st_size)
    theirs = time.process_time_ns() - started - (time.thread_time_ns() - ours)
    writer.close()
    return {
        "requests": requests,
        "facts_a_request": round(count / requests, 1),
        "dropped": writer.dropped,
        "writer_us_a_request": round(theirs / requests / 1000, 1),
        "append_us_a_request": round(appending / requests / 1000, 1),
        "largest_mib": round(largest / 2**20, 1),
        "mib": round(path.stat().st_size / 2**20, 1),
    }


def mingled(told: Sequence[Sequence[Fact]]) -> Iterator[Fact]:
    """The first of each, then the second of each, and so on."""
    for step in range(max(map(len, told))):
        yield from (one[step] for one in told if step < len(one))


def lookups(path: Path) -> dict[str, dict[str, float]]:
    """p50 and p99 in milliseconds."""
    with TraceReader(path) as reader:
        kept = reader.last(10**9)
    chosen = random.choices(kept, k=LOOKUPS)

    def by_request_id(reader: TraceReader, request_id: str) -> None:
        assert reader.facts(reader.find(request_id)[0])

    def by_external_id(reader: TraceReader, request_id: str) -> None:
        assert reader.facts(reader.find(request_id.rpartition("-")[0])[0])

    def failed(reader: TraceReader, _: str) -> None:
        assert len(reader.failed(20, pid=os.getpid())) == 20

    def slow(reader: TraceReader, _: str) -> None:
        assert len(reader.slow(20)) == 20

    return {look.__name__: percentiles(path, chosen, look) for look in (by_request_id, by_external_id, failed, slow)}


def percentiles(path: Path, chosen: Sequence[str], look: Callable[[TraceReader, str], None]) -> dict[str, float]:
    took = []
    for request_id in chosen:
        started = time.perf_counter()
        with TraceReader(path) as reader:
            look(reader, request_id)
        took.append((time.perf_counter() - started) * 1000)
    took.sort()
    return {"p50_ms": round(took[len(took) // 2], 2), "p99_ms": round(took[len(took) * 99 // 100], 2)}


def measure(requests: int, max_mib: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="ozb-") as directory:
        path = Path(directory) / "trace.db"
        written = write(path, requests, max_mib)
        with TraceReader(path) as reader:
            written["kept"] = len(reader.last(10**9))
        looked = lookups(path)
    slowest = max(row["p99_ms"] for row in looked.values())
    return {
        "bench": "trace_store",
        "written": written,
        "lookups": looked,
        "verdicts": [
            verdict("the file", written["mib"], max_mib, "MiB"),
            verdict("slowest lookup, p99", slowest, LOOKUP_AIM_MS, "ms"),
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--max-mib", type=int, default=64)
    parser.add_argument("--json", action="store_true", help="the document alone, without the verdict lines")
    args = parser.parse_args()
    print_report(measure(args.requests, args.max_mib), as_json=args.json)


if __name__ == "__main__":
    main()
