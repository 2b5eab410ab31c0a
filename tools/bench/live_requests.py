"""What one request costs the router while many others live: time a request and an output, memory a live request.

    python tools/bench/live_requests.py [--live 10 10000] [--rounds 7]

The router's core alone, in one process, without sockets: its frames are made beforehand, its effects are dropped. For
each number of live requests in turn, some hundred requests come, make outputs and end, beside those that stay. The
rounds alternate between the numbers, and the figure is the median of the rounds' ratios. Memory is what the process
allocates for the requests that stay (`tracemalloc`), their submissions included, divided by their number.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import statistics
import time
import tracemalloc
from collections.abc import Sequence

from omnizmq import protocol as wire
from omnizmq.config import Config, EdgeConfig, RouterConfig, StageConfig, validate
from omnizmq.router.core import RouterCore
from omnizmq.router.messages import ClientSent, ReplicaStarting, WorkerJoined, WorkerSent

STAGES = ("thinker", "talker", "code2wav")
OUTPUTS = 50
BATCH = 200


Event = ClientSent | ReplicaStarting | WorkerJoined | WorkerSent


def deployment(live: int, *, trace: bool) -> Config:
    """Three stages in a chain with room for all of them."""
    room = live + 2 * BATCH
    final = {"thinker": "text", "code2wav": "audio"}
    return validate(
        Config(
            name="bench",
            stage=[
                StageConfig(name=name, engine="synthetic", final_output=final.get(name), max_inflight=room)
                for name in STAGES
            ],
            edge=[EdgeConfig(source=source, target=target) for source, target in itertools.pairwise(STAGES)],
            router=RouterConfig(trace=trace),
        )
    )


class Bench:
    """A router core with so many live requests, each of which has all its stages registered and one output made."""

    def __init__(self, live: int, *, trace: bool = True) -> None:
        self.now = 1000.0
        self.core = RouterCore(deployment(live, trace=trace))
        for stage in STAGES:
            self.feed(ReplicaStarting(f"{stage}/0", 1, 1))
            self.feed(WorkerJoined(f"{stage}/0", 1, f"ipc:///run/{stage}"))
            self.says(stage, wire.Heartbeat(1, "idle", 0, "", [], 0, 0, 0))
        self.count = 0
        self.staying = [self.begin() for _ in range(live)]

    def feed(self, event: Event) -> None:
        self.now += 1e-6
        self.core.handle(event, self.now)

    def says(self, stage: str, frame: wire.WorkerToRouter) -> None:
        self.feed(WorkerSent(f"{stage}/0", 1, frame))

    def begin(self) -> str:
        self.count += 1
        external = f"bench-{self.count}"
        rid = wire.make_request_id(external, self.count.to_bytes(8, "big"))
        prompt = wire.Prompt(f"Say something about number {self.count}.", None, None)
        self.feed(ClientSent(b"client", wire.Submit(rid, external, prompt, None, {}, 0, None, None, 1024, 1, None)))
        for stage in reversed(STAGES):
            self.says(stage, wire.StageFact(rid, 1, 1, "registered", 1, {}))
        self.says("thinker", wire.Output(rid, 1, 1, 1, wire.Text("word "), False, 1))
        return rid

    def outputs(self, rid: str) -> None:
        for seq in range(2, OUTPUTS + 2):
            self.says("thinker", wire.Output(rid, 1, 1, seq, wire.Text("word "), False, 1))

    def end(self, rid: str) -> None:
        self.says("thinker", wire.StageFinished(rid, 1, 1, "stop", None, {}, None, OUTPUTS + 1, [], 1))
        self.says("talker", wire.StageFinished(rid, 1, 1, "stop", None, {}, None, 0, [], 1))
        self.says("code2wav", wire.StageFinished(rid, 1, 1, "stop", None, {}, None, 0, [], 1))

    def round(self) -> tuple[float, float]:
        """Seconds for one request without its outputs, and for one output."""
        started = time.perf_counter()
        begun = [self.begin() for _ in range(BATCH)]
        middle = time.perf_counter()
        for rid in begun:
            self.outputs(rid)
        made = time.perf_counter()
        for rid in begun:
            self.end(rid)
        ended = time.perf_counter()
        return (middle - started + ended - made) / BATCH, (made - middle) / (BATCH * OUTPUTS)


def memory(live: int) -> float:
    """Bytes a live request."""
    gc.collect()
    tracemalloc.start()
    empty = Bench(0)
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    full = Bench(live)
    gc.collect()
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    del empty, full
    return (after - before) / live


def measure(numbers: Sequence[int], rounds: int) -> None:
    benches = {live: Bench(live) for live in numbers}
    gc.collect()
    took: dict[int, list[tuple[float, float]]] = {live: [] for live in numbers}
    for _ in range(rounds):
        for live, bench in benches.items():
            took[live].append(bench.round())
    few = numbers[0]
    for live in numbers:
        request, output = (statistics.median(one[n] for one in took[live]) for n in (0, 1))
        ratios = [
            statistics.median(one[n] / base[n] for one, base in zip(took[live], took[few], strict=True)) for n in (0, 1)
        ]
        print(
            f"{live:>6} live: a request {request * 1e6:7.1f} us ({ratios[0]:.2f} x), "
            f"an output {output * 1e6:5.2f} us ({ratios[1]:.2f} x)"
        )
    print(f"memory: {memory(numbers[-1]):.0f} bytes a live request ({numbers[-1]} live)")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--live", type=int, nargs=2, default=[10, 10_000])
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    measure(options.live, options.rounds)
