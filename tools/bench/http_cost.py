"""What the HTTP bridge costs beside a bare uvicorn that streams the same bytes, and whether its memory stays flat.

    python tools/bench/http_cost.py [--turns 5] [--at-once 200] [--rounds 40] [--json]

A deployment of the synthetic engine with the bridge, and uvicorn with an application that sends recorded answers of the
bridge, piece by piece. So many streaming requests at once go to either in turns, with few and with many pieces; CPU is
user and system time of the whole server process, so that the callers' own does not count. What a chunk costs is the
difference of many and few, a chunk; what a request costs is what is left of few. The bridge's CPU has its connection to
the router in it, JSON and base64, and what `/metrics` counts; router and workers are not in it. Memory: resident, of
router and bridge, after each of `--rounds` more rounds of such requests, with few pieces. About five minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
from common import cpu_ns, deployment, directories, median, print_report, turns
from http_load import Load, Server, ask, at_once

BARE = Path(__file__).parent / "http_bare.py"
CHAT = "/v1/chat/completions"
FEW, MANY = 2, 52
KINDS = {"text": False, "sound": True}
SETS = (
    "plugins.http.port=0",
    "stage.thinker.options={chunks = 100000, chunk_bytes = 16}",
    "stage.talker.options={chunk_bytes = 64}",
    "stage.code2wav.options={chunk_bytes = 9600}",  # 0.1 s
)


def bridge_of(ready: dict[str, Any]) -> Server:
    """Of a deployment's ready line."""
    children = psutil.Process(ready["pid"]).children()
    (pid,) = (child.pid for child in children if "omnizmq.plugin" in child.cmdline())
    return Server(int(ready["plugins"]["http"].rpartition(":")[2]), pid)


@contextmanager
def bare(answers: dict[str, list[bytes]]) -> Iterator[Server]:
    with TemporaryDirectory(prefix="ozb-") as folder:
        file = Path(folder, "answers.json")
        text = {path: [f"{event.decode()}\n\n" for event in events] for path, events in answers.items()}
        file.write_text(json.dumps(text))
        process = subprocess.Popen([sys.executable, str(BARE), str(file)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        try:
            yield Server(int(process.stdout.readline()), process.pid)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


class Opponent:
    """A server and how it is asked."""

    def __init__(self, server: Server, model: str | None, count: int) -> None:
        self._server = server
        self._model = model
        self._count = count

    def turn(self, sound: bool) -> tuple[float, float]:
        """CPU in µs that a request takes, and that a chunk takes."""
        few_us, few = self._run(Load(FEW, sound))
        many_us, many = self._run(Load(MANY, sound))
        chunk = (many_us - few_us) / (many - few)
        return (few_us - chunk * few) / self._count, chunk

    def _run(self, load: Load) -> tuple[float, int]:
        """CPU in µs, and how many chunks came."""
        path = CHAT if self._model else load.path
        before = cpu_ns(self._server.pid)
        chunks = asyncio.run(at_once(self._count, self._server.port, path, load.body(self._model or "")))
        return (cpu_ns(self._server.pid) - before) / 1000, chunks


def recorded(bridge: Server, model: str) -> dict[str, list[bytes]]:
    loads = [Load(outputs, sound) for outputs in (FEW, MANY) for sound in KINDS.values()]
    return {load.path: asyncio.run(ask(bridge.port, CHAT, load.body(model))) for load in loads}


def costs(n: int, count: int, bridge: Server, model: str) -> dict[str, Any]:
    with bare(recorded(bridge, model)) as other:
        opponents = {"bridge": Opponent(bridge, model, count), "uvicorn": Opponent(other, None, count)}
        found = {}
        for kind, sound in KINDS.items():
            for opponent in opponents.values():
                opponent.turn(sound)  # warm
            ran = turns({name: lambda one=one, sound=sound: one.turn(sound) for name, one in opponents.items()}, n)  # type: ignore[misc]
            found[kind] = {what: compared(ran, at) for at, what in enumerate(("request", "chunk"))}
        return found


def compared(ran: dict[str, list[tuple[float, float]]], at: int) -> dict[str, Any]:
    ratios = [bridge[at] / uvicorn[at] for bridge, uvicorn in zip(ran["bridge"], ran["uvicorn"], strict=True)]
    return {
        **{f"{name}_us": round(median([turn[at] for turn in found]), 1) for name, found in ran.items()},
        "ratio": round(median(ratios), 2),
        "ratios": [round(min(ratios), 2), round(max(ratios), 2)],
    }


def memory(rounds: int, count: int, bridge: Server, router_pid: int, model: str) -> dict[str, list[float]]:
    """Resident MiB after each round."""
    pids = {"router": router_pid, "bridge": bridge.pid}
    held: dict[str, list[float]] = {name: [] for name in pids}
    for number in range(rounds):
        load = Load(FEW, sound=bool(number % 2))
        asyncio.run(at_once(count, bridge.port, CHAT, load.body(model)))
        for name, pid in pids.items():
            held[name].append(round(psutil.Process(pid).memory_info().rss / (1 << 20), 1))
    return held


def measure(n: int, count: int, rounds: int) -> dict[str, Any]:
    with directories(), deployment("synthetic", *SETS) as ready:
        bridge, model = bridge_of(ready), ready["name"]
        found = costs(n, count, bridge, model)
        held = memory(rounds, count, bridge, ready["pid"], model)
    lines = [
        f"{kind}, CPU a {what}: bridge {one['bridge_us']} us, uvicorn {one['uvicorn_us']} us: {one['ratio']} x (no aim)"
        for kind, whats in found.items()
        for what, one in whats.items()
    ]
    half = rounds // 2
    lines += [
        f"{name}, resident: {one[half]} MiB after {half + 1} rounds, {one[-1]} after {rounds}"
        for name, one in held.items()
    ]
    return {"bench": "http_cost", "turns": n, "at_once": count, "cost": found, "resident_mib": held, "verdicts": lines}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--at-once", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--json", action="store_true", help="the document alone, without the verdict lines")
    args = parser.parse_args()
    print_report(measure(args.turns, args.at_once, args.rounds), as_json=args.json)


if __name__ == "__main__":
    main()
