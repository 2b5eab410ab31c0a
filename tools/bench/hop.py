"""The router's hop and its CPU, beside a bare relay of the same frames.

    python tools/bench/hop.py [--turns 5] [--json]

Hop: from a worker's output frame to `AsyncClient.generate` yielding it, with the defaults (trace and credits on), one
request, an output every 2 ms. CPU: user and system time of the router's whole process for each output, at 1 request
and at 64, submissions and ends left out. The opponent is `relay.py` with frames of the same bytes; for each figure the
better of its two loops is taken.

What a message costs depends on how many come at once, as each wake-up costs more than a message. A worker makes the
frames of a step one after the other, so the relay's producer leaves the same gap between two frames of a burst as the
worker did in its last turn (the median); `without gaps` is what the relay needs where all 64 come at once. About a
minute.

`wakeups` counts how often a thread of the process went to sleep for one output: what no code makes cheaper.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from time import monotonic_ns
from typing import Any

import msgspec
from common import cpu_ns, deployment, directories, median, print_report, switches, turns, verdict
from relay import STAMP_DIGITS, Relay, relay

from omnizmq import AsyncClient
from omnizmq import protocol as wire

HOP_AIM = 1.5
CPU_AIM = 2.0
LOOPS = ("blocking", "drained")
CHARS = 256

CONFIG = f"""
name = "hop"
[[stage]]
name = "speaker"
engine = "bench-hop"
final_output = "text"
max_inflight = 64
[stage.options]
chars = {CHARS}
"""


@dataclass(frozen=True)
class Load:
    """`requests` at once make an output each, every `interval_ms`, `outputs` times."""

    requests: int
    outputs: int
    interval_ms: float


LOADS = {1: Load(1, 600, 2.0), 64: Load(64, 80, 20.0)}


@dataclass(frozen=True)
class Turn:
    """How long each output was on its way; for one output, what it cost who is between: CPU, and threads woken.

    `gap_ns`: between two of a burst.
    """

    took_ns: list[int]
    cpu_ns: float
    wakeups: float
    gap_ns: float


class Meter:
    """What a process has used for each output since a moment."""

    def __init__(self, pid: int, outputs: int = 0) -> None:
        self._pid = pid
        self._outputs = outputs
        self._cpu_ns, self._wakeups = cpu_ns(pid), sum(switches(pid).values())

    def read(self, outputs: int) -> tuple[float, float]:
        """CPU nanoseconds and wake-ups of each output, where there have been so many now."""
        cpu, wakeups = cpu_ns(self._pid) - self._cpu_ns, sum(switches(self._pid).values()) - self._wakeups
        return cpu / (outputs - self._outputs), wakeups / (outputs - self._outputs)


def frame() -> tuple[bytes, int]:
    """A worker's output as it is on the wire, and where its stamp is."""
    stamp = "7" * STAMP_DIGITS
    text = wire.Text(stamp + "x" * (CHARS - STAMP_DIGITS))
    external_id = "hop-00"
    request_id = wire.make_request_id(external_id, bytes(8))
    data = msgspec.msgpack.encode(wire.Output(request_id, 1, 1, 100, text, False, monotonic_ns()))
    return data, data.index(stamp.encode())


# --- Opponents -----------------------------------------------------------------------------------------------------


def relayed(bare: Relay, load: Load, gap_ns: float) -> Turn:
    """The same messages, by way of the relay."""
    pace = (load.requests, load.interval_ms, gap_ns / 1000)
    bare.receive(2, *pace)
    meter = Meter(bare.pid)
    took = bare.receive(load.outputs, *pace)
    return Turn(took, *meter.read(len(took)), gap_ns)


class Routed:
    """The deployments' clients, in this process; each load has a deployment of its own."""

    def __init__(self, loop: asyncio.AbstractEventLoop, pid: int, name: str) -> None:
        self._loop = loop
        self._pid = pid
        self._client = AsyncClient.connect(name)
        self.gap_ns = 0.0
        loop.run_until_complete(self._client.__aenter__())

    def close(self) -> None:
        self._loop.run_until_complete(self._client.close())

    def turn(self, load: Load) -> Turn:
        turn = self._loop.run_until_complete(self._turn(load))
        self.gap_ns = turn.gap_ns
        return turn

    async def _turn(self, load: Load) -> Turn:
        """Counted between the moment when the last request began and the one when the first is about to end."""
        took: list[int] = []
        stamps: list[int] = []
        seen = [0] * load.requests
        meter: Meter | None = None
        first = last = 0
        used = 0.0, 0.0

        async def ask(number: int) -> None:
            nonlocal meter, first, last, used
            async for output in self._client.generate("speak", request_id=f"hop-{number:02d}"):
                if output.text is None:
                    continue
                now, stamp = monotonic_ns(), int(output.text[:STAMP_DIGITS])
                took.append(now - stamp)
                stamps.append(stamp)
                seen[number] += 1
                if meter is None:
                    if min(seen) >= 2:
                        first = len(took)
                        meter = Meter(self._pid, first)
                elif not last and seen[number] == load.outputs - 2:
                    last = len(took)
                    used = meter.read(last)

        await asyncio.gather(*(ask(number) for number in range(load.requests)))
        return Turn(took[first:last], *used, _gap(stamps[first:last], load.interval_ms))


def _gap(stamps: list[int], interval_ms: float) -> float:
    """The median between two of a burst; 0: they come alone."""
    ordered = sorted(stamps)
    gaps = [after - before for before, after in pairwise(ordered) if after - before < interval_ms * 1e6 / 2]
    return median(gaps) if len(gaps) > len(stamps) / 2 else 0.0


# --- The report ----------------------------------------------------------------------------------------------------


def measure(n: int) -> dict[str, Any]:
    loop = asyncio.new_event_loop()
    with ExitStack() as stack:
        stack.callback(loop.close)
        stack.enter_context(directories())
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ozb-")))
        config = directory / "hop.toml"
        config.write_text(CONFIG)
        bare = {kind: stack.enter_context(relay(directory, kind, *frame())) for kind in LOOPS}
        results = {}
        for load in LOADS.values():
            options = (("outputs", load.outputs), ("interval_ms", load.interval_ms))
            sets = [f"stage.speaker.options.{key}={value}" for key, value in options]
            with deployment(config, *sets) as ready:
                routed = Routed(loop, ready["pid"], ready["name"])
                try:
                    results[load.requests] = _turns(routed, bare, load, n)
                finally:
                    routed.close()
    return _report(results, n)


def _turns(routed: Routed, bare: dict[str, Relay], load: Load, n: int) -> dict[str, list[Turn]]:
    opponents: dict[str, Callable[[], Turn]] = {"router": partial(routed.turn, load)}
    for kind, one in bare.items():
        opponents[kind] = partial(_alike, one, load, routed)
        if load.requests > 1:
            opponents[f"{kind}, without gaps"] = partial(relayed, one, load, 0.0)
    turns(opponents, 1)  # warm
    return turns(opponents, n)


def _alike(bare: Relay, load: Load, routed: Routed) -> Turn:
    return relayed(bare, load, routed.gap_ns)


def _report(results: dict[int, dict[str, list[Turn]]], n: int) -> dict[str, Any]:
    rows = {requests: {who: _figures(found) for who, found in result.items()} for requests, result in results.items()}
    verdicts = []
    hop, who = _ratio(rows[1], "p50_us")
    verdicts.append(verdict("hop p50", hop, HOP_AIM, f"x the {who} relay"))
    ratios: dict[str, Any] = {"hop_p50": {"ratio": hop, "relay": who}}
    for requests, row in rows.items():
        ratio, who = _ratio(row, "cpu_us")
        ratios[f"cpu_at_{requests}"] = {"ratio": ratio, "relay": who}
        verdicts.append(verdict(f"router CPU an output, {requests} at once", ratio, CPU_AIM, f"x the {who} relay"))
    return {
        "bench": "hop",
        "turns": n,
        "frame_bytes": len(frame()[0]),
        "figures": {f"{requests} at once": row for requests, row in rows.items()},
        "ratios": ratios,
        "verdicts": verdicts,
    }


def _figures(found: list[Turn]) -> dict[str, float]:
    """Medians over the turns."""
    ordered = [sorted(turn.took_ns) for turn in found]
    return {
        "p50_us": round(median([took[len(took) // 2] for took in ordered]) / 1000, 1),
        "p99_us": round(median([took[len(took) * 99 // 100] for took in ordered]) / 1000, 1),
        "cpu_us": round(median([turn.cpu_ns for turn in found]) / 1000, 2),
        "wakeups": round(median([turn.wakeups for turn in found]), 2),
        "gap_us": round(median([turn.gap_ns for turn in found]) / 1000, 1),
    }


def _ratio(row: dict[str, dict[str, float]], figure: str) -> tuple[float, str]:
    """The router's figure as a multiple of the better relay's, and which that is."""
    best = min(LOOPS, key=lambda kind: row[kind][figure])
    return round(row["router"][figure] / row[best][figure], 3), best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="the document alone, without the verdict lines")
    args = parser.parse_args()
    print_report(measure(args.turns), as_json=args.json)


if __name__ == "__main__":
    main()
