"""What the trace costs a request in the router's core and in the trace's writer, without sockets: CPU, on beside off.

    python tools/bench/trace_core.py [--rounds 31]

Two cores in one process get the same frames in turns, one with `router.trace` on and one with it off; what they want
recorded goes to a `TraceWriter`, as in the router. A request of three stages brings 26 facts. CPU is that of the
process until all is on disk, and of the thread that runs the cores. It says what tracing takes where nothing else
disturbs the caches; `trace_cost.py` says what it takes in a deployment.
"""

from __future__ import annotations

import argparse
import secrets
import tempfile
import time
from pathlib import Path

from common import median, verdict
from live_requests import STAGES, Bench, Event

from omnizmq import protocol as wire
from omnizmq.trace.facts import Fact
from omnizmq.trace.store import TraceWriter

REQUESTS = 200
AIM_US = 50.0


class Traced(Bench):
    """Whose facts are stored."""

    def __init__(self, writer: TraceWriter, *, trace: bool) -> None:
        self._writer = writer
        super().__init__(0, trace=trace)

    def feed(self, event: Event) -> None:
        self.now += 1e-6
        for effect in self.core.handle(event, self.now):
            if type(effect) is Fact:
                self._writer.append(effect)

    def turn(self) -> tuple[float, float]:
        """CPU a request in microseconds: of the process, and of this thread."""
        self.count = secrets.randbits(48)  # no id comes twice
        process, thread = time.process_time_ns(), time.thread_time_ns()
        for _ in range(REQUESTS):
            rid = self.begin()
            for stage in STAGES:
                for fact in ("input_ready", "running", "first_output"):
                    self.says(stage, wire.StageFact(rid, 1, 1, fact, 1, {}))
            self.end(rid)
        self._writer.flush(60)
        used = time.process_time_ns() - process, time.thread_time_ns() - thread
        return used[0] / REQUESTS / 1000, used[1] / REQUESTS / 1000


def measure(rounds: int) -> None:
    with tempfile.TemporaryDirectory(prefix="ozb-") as directory:
        writer = TraceWriter(Path(directory) / "trace.db", max_mib=64, max_age_days=7.0)
        on, off = Traced(writer, trace=True), Traced(writer, trace=False)
        for _ in range(3):  # warm
            on.turn()
            off.turn()
        found = [(on.turn(), off.turn()) for _ in range(rounds)]
        writer.close()
        assert not writer.dropped, "what was not stored cost nothing"
    whole = [ours[0] - bare[0] for ours, bare in found]
    core = median([ours[1] - bare[1] for ours, bare in found])
    print(f"a request {median([bare[0] for _, bare in found]):.0f} us without; core {core:.1f} us more")
    print(f"all {median(whole):.1f} us more ({min(whole):.1f} to {max(whole):.1f})")
    print(verdict("tracing, CPU a request", median(whole), AIM_US, "us more"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=31)
    measure(parser.parse_args().rounds)
