"""What the trace costs the router: CPU a request and a message, beside a deployment that records nothing.

    python tools/bench/trace_cost.py [--rounds 9] [--json]

Two deployments of the same three stages (synthetic engines, text and audio), one with `router.trace` on and one with it
off, run side by side and get the same load in turns; every turn begins with the other one. CPU is user and system time
of the router's whole process, its writer's thread and SQLite included, from before the first request of a turn until
the last has ended and a writer has had the time to store it.

Requests: some callers ask for a few outputs again and again. What tracing costs a request is the median over the turns
of the difference. Messages: a few callers read many outputs; a message is one output that the router receives and sends
on. The ratio is the median over the turns of the ratio. About three minutes.

Of what a request costs more, `router` is the share of the router's own thread, which makes the facts, and `writer` that
of the other Python threads, one of which packs and stores them. The rest is ZeroMQ's, and chance.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import cpu_ns, deployment, directories, median, print_report, verdict

from omnizmq import AsyncClient

REQUEST_AIM_US = 50.0
MESSAGE_AIM = 1.1
SETTLE_S = 1.0
"""Longer than facts are gathered before they are written."""

SETS = ("stage.thinker.options={chunks = 100000, chunk_bytes = 64}", "stage.talker.options={chunk_bytes = 64}")


@dataclass(frozen=True)
class Load:
    """`at_once` callers ask `requests` times each, for `outputs` of text and as many of audio."""

    at_once: int
    requests: int
    outputs: int


REQUESTS = Load(at_once=16, requests=25, outputs=2)
MESSAGES = Load(at_once=4, requests=1, outputs=1500)


@dataclass(frozen=True)
class Turn:
    """CPU in nanoseconds: of the whole process, of its main thread, and of its other Python threads."""

    requests: int
    messages: int
    cpu_ns: int
    router_ns: int
    writer_ns: int


class Opponent:
    """A deployment and its client."""

    def __init__(self, pid: int, client: AsyncClient) -> None:
        self._pid = pid
        self._client = client

    async def turn(self, load: Load) -> Turn:
        before = self._used()
        messages = sum(await asyncio.gather(*(self._caller(load) for _ in range(load.at_once))))
        await asyncio.sleep(SETTLE_S)
        used = (now - then for now, then in zip(self._used(), before, strict=True))
        return Turn(load.at_once * load.requests, messages, *used)

    def _used(self) -> tuple[int, int, int]:
        return cpu_ns(self._pid), *threads_ns(self._pid)

    async def _caller(self, load: Load) -> int:
        outputs = 0
        for _ in range(load.requests):
            params = {"thinker": {"max_tokens": load.outputs}}
            async for _ in self._client.generate("speak", modalities=["text", "audio"], params=params):
                outputs += 1
        return outputs


def threads_ns(pid: int) -> tuple[int, int]:
    """CPU of the process's main thread, and of its other Python threads; ZeroMQ's bear names of their own."""
    main = others = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        used = int((task / "schedstat").read_text().split()[0])
        if task.name == str(pid):
            main = used
        elif not (task / "comm").read_text().startswith("ZMQ"):
            others += used
    return main, others


async def measure(rounds: int, ready: dict[str, dict[str, Any]]) -> dict[str, Any]:
    async with AsyncExitStack() as stack:
        opponents = {}
        for name, one in ready.items():
            client = await stack.enter_async_context(AsyncClient.connect(one["name"]))
            opponents[name] = Opponent(one["pid"], client)
        found: dict[Load, dict[str, list[Turn]]] = {}
        for load in (REQUESTS, MESSAGES):
            await in_turns(opponents, load, 1)  # warm
            found[load] = await in_turns(opponents, load, rounds)
    return report(rounds, found[REQUESTS], found[MESSAGES])


async def in_turns(opponents: dict[str, Opponent], load: Load, rounds: int) -> dict[str, list[Turn]]:
    found: dict[str, list[Turn]] = {name: [] for name in opponents}
    for number in range(rounds):
        for name in sorted(opponents, reverse=bool(number % 2)):
            found[name].append(await opponents[name].turn(load))
    return found


def report(rounds: int, requests: dict[str, list[Turn]], messages: dict[str, list[Turn]]) -> dict[str, Any]:
    a_request = {name: [turn.cpu_ns / turn.requests / 1000 for turn in turns] for name, turns in requests.items()}
    a_message = {name: [turn.cpu_ns / turn.messages / 1000 for turn in turns] for name, turns in messages.items()}
    more = {
        part: [
            (getattr(on, f"{part}_ns") - getattr(off, f"{part}_ns")) / on.requests / 1000
            for on, off in zip(requests["on"], requests["off"], strict=True)
        ]
        for part in ("cpu", "router", "writer")
    }
    ratios = [on / off for on, off in zip(a_message["on"], a_message["off"], strict=True)]
    return {
        "bench": "trace_cost",
        "rounds": rounds,
        "request_us": {name: spread(found) for name, found in a_request.items()},
        "more_a_request_us": {part: spread(found) for part, found in more.items()},
        "message_us": {name: spread(found) for name, found in a_message.items()},
        "message_ratio": spread(ratios, digits=3),
        "verdicts": [
            verdict("tracing, CPU a request", median(more["cpu"]), REQUEST_AIM_US, "us more"),
            verdict("tracing, CPU a message", median(ratios), MESSAGE_AIM, "x"),
        ],
    }


def spread(values: Sequence[float], digits: int = 1) -> dict[str, float]:
    return {
        "median": round(median(values), digits),
        "least": round(min(values), digits),
        "most": round(max(values), digits),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true", help="the document alone, without the verdict lines")
    args = parser.parse_args()
    with ExitStack() as stack:
        stack.enter_context(directories())
        ready = {
            name: stack.enter_context(deployment("synthetic", f"name={name!r}", f"router.trace={value}", *SETS))
            for name, value in (("on", "true"), ("off", "false"))
        }
        print_report(asyncio.run(measure(args.rounds, ready)), as_json=args.json)


if __name__ == "__main__":
    main()
