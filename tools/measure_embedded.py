"""Measures the embedded default: start, first text, first audio beside a one-process floor, memory, installed size.

    python tools/measure_embedded.py [--runs 21] [--install] [--json]

The floor is the same three engines in one process: the same splitter, chunk sizes and warm slots, with no sockets, no
processes and no router. Floor and deployment take turns within one run, so their ratio means something on a busy
machine; the single figures are upper bounds. `--install` also makes a fresh environment and times it (needs the
package index).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil

from omnizmq import AsyncClient, config
from omnizmq.protocol import Prompt
from omnizmq.workers.engine import Audio, Engine, EngineContext, EngineRequest

PROMPT = "What is the capital of France?"
ROOT = Path(__file__).resolve().parent.parent
LONG_PROMPT = "the quick brown fox jumps over the lazy dog and runs away " * 100
LONG_ANSWER = "Say exactly: One is a good number. Two is a good number. Three is a good number. Four is a good number."
ABORTS = 7
HEAD = ("first text ms", "first audio ms", "total ms")


class Floor:
    """The pipeline's engines in this process, pumped by one loop."""

    def __init__(self, loaded: config.Config, directory: Path) -> None:
        from importlib.metadata import entry_points

        self._config = loaded
        self._woken = threading.Event()
        self._engines: dict[str, Engine] = {}
        for stage in loaded.stage:
            create = next(iter(entry_points(group="omnizmq.engines", name=stage.engine))).load()
            self._engines[stage.name] = create(self._context(stage, directory))
        self._count = 0

    def _context(self, stage: config.StageConfig, directory: Path) -> EngineContext:
        return EngineContext(
            stage=stage.name,
            model=self._config.model,
            device=(),
            options=stage.options,
            sources=tuple(edge.source for edge in self._config.edge if edge.target == stage.name),
            targets=tuple(edge.target for edge in self._config.edge if edge.source == stage.name),
            final_output=stage.final_output,
            max_inflight=stage.max_inflight,
            private_dir=directory,
            wake=self._woken.set,
            progress=lambda _: None,
        )

    def run(self, prompt: str) -> tuple[float, float, float]:
        """Milliseconds to the first text (NaN: there is none), to the first sound, to the end."""
        self._count += 1
        rid, start = f"floor-{self._count}", time.perf_counter()
        marks: dict[type, float] = {}
        for stage in self._config.stage:
            given = None if any(edge.target == stage.name for edge in self._config.edge) else prompt
            wanted = None if given is None else Prompt(given, None, None)
            self._engines[stage.name].add(EngineRequest(rid, wanted, stage.params))
        running = set(self._engines)
        while running:
            self._woken.clear()
            worked = [self._pump(name, rid, running, marks, start) for name in self._engines]
            if not any(worked):
                self._woken.wait(1)
        return marks.get(str, math.nan), marks[Audio], (time.perf_counter() - start) * 1000

    def _pump(self, name: str, rid: str, running: set[str], marks: dict[type, float], start: float) -> bool:
        engine = self._engines[name]
        if name not in running or not engine.has_work(rid):
            return False
        for output in engine.step([rid]):
            if output.content:
                marks.setdefault(type(output.content), (time.perf_counter() - start) * 1000)
            for target, chunks in output.chunks.items():
                for chunk in chunks:
                    self._engines[target].feed(rid, name, chunk)
            if output.finish_reason is not None:
                running.discard(name)
                for target in output.chunks.keys() | {e.target for e in self._config.edge if e.source == name}:
                    self._engines[target].end_of_input(rid, name)
        return True

    def close(self) -> None:
        for engine in self._engines.values():
            engine.close()


async def deployed(client: AsyncClient, prompt: str) -> tuple[float, float, float]:
    """As `Floor.run`, by way of the deployment."""
    start = time.perf_counter()
    text = audio = 0.0
    async for output in client.generate(prompt):
        now = (time.perf_counter() - start) * 1000
        text = text or (now if output.text else 0.0)
        audio = audio or (now if output.audio is not None else 0.0)
    return text, audio, (time.perf_counter() - start) * 1000


async def abort_ms(client: AsyncClient, run: int, *, in_speech: bool) -> float:
    """From `abort` to the caller's terminal: in the prefill of nearly a whole slot, or after the first sound."""
    name = f"abort-{in_speech}-{run}"
    prompt = LONG_ANSWER if in_speech else f"{run} {LONG_PROMPT}"  # a new beginning: nothing of it is cached
    sounded = asyncio.Event()

    async def caller() -> None:
        async for output in client.generate(prompt, request_id=name):
            if output.audio is not None:
                sounded.set()

    task = asyncio.create_task(caller())
    if in_speech:
        await sounded.wait()
    else:
        while (await client.status())["bindings"] == 0:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
    start = time.perf_counter()
    await client.abort(name)
    await task
    return (time.perf_counter() - start) * 1000


async def measure(runs: int) -> dict[str, Any]:
    loaded = config.load("embedded")
    start = time.perf_counter()
    async with AsyncClient.launch("embedded") as client:
        cold = time.perf_counter() - start
        directory = Path(tempfile.mkdtemp())
        floor = await asyncio.to_thread(Floor, loaded, directory)
        turns: dict[str, list[tuple[float, float, float]]] = {"floor": [], "deployment": []}
        try:
            for run in range(runs + 1):
                one = await asyncio.to_thread(floor.run, PROMPT)
                other = await deployed(client, PROMPT)
                if run:  # the first turn warms both
                    turns["floor"].append(one)
                    turns["deployment"].append(other)
        finally:
            floor.close()
            shutil.rmtree(directory)
        aborts = {
            where: [await abort_ms(client, run, in_speech=speech) for run in range(ABORTS)]
            for where, speech in (("in prefill", False), ("in speech", True))
        }
        memory = _memory(await client.status())
    medians = {
        who: {
            name: round(statistics.median(values), 1)
            for name, values in zip(HEAD, zip(*rows, strict=True), strict=True)
        }
        for who, rows in turns.items()
    }
    ratio = medians["deployment"]["first audio ms"] / medians["floor"]["first audio ms"]
    pairs = [other[1] / one[1] for one, other in zip(turns["floor"], turns["deployment"], strict=True)]
    return {
        "runs": runs,
        "cold_start_s": round(cold, 2),
        "p50": medians,
        "first_audio_ratio": {"of_medians": round(ratio, 3), "median_of_pairs": round(statistics.median(pairs), 3)},
        "abort_ms": {
            where: {"p50": round(statistics.median(ms), 1), "max": round(max(ms), 1)} for where, ms in aborts.items()
        },
        "memory_mib": memory,
    }


def _memory(status: dict[str, Any]) -> dict[str, int]:
    """Resident MiB of each process."""
    workers = {replica["id"]: replica["pid"] for stage in status["stages"].values() for replica in stage["replicas"]}
    pids = {"router": psutil.Process(next(iter(workers.values()))).ppid(), **workers}
    return {name: psutil.Process(pid).memory_info().rss >> 20 for name, pid in pids.items()}


def measure_install() -> dict[str, float]:
    """A fresh environment with the embedded extra: seconds and MiB."""
    directory = Path(tempfile.mkdtemp())
    python = directory / "venv" / "bin" / "python"
    start = time.perf_counter()
    for command in (
        [sys.executable, "-m", "venv", str(directory / "venv")],
        [str(python), "-m", "pip", "install", "--quiet", str(ROOT)],
        [str(python), "-m", "omnizmq", "install", "embedded"],
    ):
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    seconds = time.perf_counter() - start
    size = sum(path.lstat().st_size for path in directory.rglob("*") if path.is_file() and not path.is_symlink())
    shutil.rmtree(directory)
    return {"install_s": round(seconds, 1), "install_mib": round(size / (1 << 20))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=21)
    parser.add_argument("--install", action="store_true")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    result = measure_install() if args.install else {}
    result |= asyncio.run(measure(args.runs))
    if args.json:
        print(json.dumps(result, indent=2))
        return
    for name, value in result.items():
        print(f"{name}: {value}")


if __name__ == "__main__":
    main()
