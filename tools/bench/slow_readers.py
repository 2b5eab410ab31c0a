"""What many slow readers cost one fast one, and how much memory the router holds for them.

    python tools/bench/slow_readers.py [--readers 64] [--rounds 5]

One deployment (synthetic engine, one stage, its outputs as fast as it makes them). A fast caller asks again and again;
in turns, alone and beside so many callers that read one output a second, of requests that would make outputs for ever.
These are in a process of their own, as slow callers are. Printed: the fast one's outputs a second, the median of the
rounds' ratios, the router's resident memory, and how many of the slow ones the router has ended with an error when
their grace is over (they themselves hear of it when they have read what came before).
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import time

import psutil

from omnizmq import AsyncClient, runtime

GRACE_S = 12
CHUNK_BYTES = 1024
SETS = (
    f"stage.thinker.options={{chunks=1000000, chunk_bytes={CHUNK_BYTES}}}",
    "stage.thinker.max_inflight=8",
    "stage.thinker.max_registered=256",
    f"router.slow_reader_grace_s={GRACE_S}",
)
FAST_OUTPUTS = 3000


async def fast(client: AsyncClient, seconds: float) -> float:
    """Outputs a second of requests that follow each other."""
    outputs, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        async for _ in client.generate("x", modalities=["text"], params={"thinker": {"max_tokens": FAST_OUTPUTS}}):
            outputs += 1
    return outputs / (time.perf_counter() - started)


async def read_slowly(name: str, readers: int) -> None:
    """In the process of the slow ones, until it is killed."""

    async def one(client: AsyncClient) -> None:
        async for _ in client.generate("x", modalities=["text"]):
            await asyncio.sleep(1)

    async with AsyncClient.connect(name) as client:
        await asyncio.gather(*(one(client) for _ in range(readers)))


async def all_paused(client: AsyncClient, readers: int) -> None:
    while (await client.status())["paused"] < readers:
        await asyncio.sleep(0.1)


async def all_ended(client: AsyncClient) -> int:
    """How many requests have failed so far, when none lives any more."""
    while (status := await client.status())["live_requests"]:
        await asyncio.sleep(0.2)
    failed: int = status["counters"]["failed"]
    return failed


async def measure(readers: int, rounds: int, seconds: float) -> None:
    async with AsyncClient.launch("synthetic", sets=SETS) as client:
        router = psutil.Process(runtime.find(client.name).pid)
        await fast(client, seconds)
        ratios, memory = [], []
        for number in range(1, rounds + 1):
            before = router.memory_info().rss
            alone = await fast(client, seconds)
            slow = subprocess.Popen([sys.executable, __file__, "--slowly", client.name, "--readers", str(readers)])
            await all_paused(client, readers)
            beside = await fast(client, seconds)
            memory.append((router.memory_info().rss - before) / (1 << 20))
            ratios.append(alone / beside)
            print(
                f"round {number}: alone {alone:6.0f} outputs/s, beside {readers} slow readers {beside:6.0f} "
                f"({alone / beside:.3f} x), router {memory[-1]:+.1f} MiB"
            )
            failed = await all_ended(client)
            slow.kill()
            slow.wait()
        limit = client_window_mib(readers)
        print(f"median {statistics.median(ratios):.3f} x; the router grew by {max(memory):.1f} MiB at most")
        print(f"({readers} windows are {limit:.0f} MiB); {failed} of {rounds * readers} slow ones ended with an error")


def client_window_mib(readers: int) -> float:
    """What the windows of so many requests hold at most, in outputs of this size."""
    return readers * 1024 * CHUNK_BYTES / (1 << 20)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--readers", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--slowly", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.slowly:
        asyncio.run(read_slowly(options.slowly, options.readers))
    else:
        asyncio.run(measure(options.readers, options.rounds, options.seconds))
