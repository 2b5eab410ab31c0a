"""What omnizmq costs a token beside vLLM's own engine in one process, and what batching gains.

    python tools/bench/vllm_cost.py MODEL [--python .venv-vllm/bin/python] [--turns 5] [--tokens 64] [--json]

A deployment of one stage, and vLLM's `LLMEngine` driven by a loop in a process of its own, with the same options and
one OpenMP thread. Both get the same greedy requests in turns: one, sixteen at once, sixteen one after another. In the
deployment every token goes through worker and router to this process, which reads all streams. The model must fit into
memory twice.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from common import deployment, directories, median, print_report, turns

from omnizmq import AsyncClient

OPTIONS = {"max_model_len": 1024, "dtype": "float32", "kv_cache_memory_bytes": 128 << 20}
PROMPT = "Tell me a long story about the sea."
MANY = 16


@contextmanager
def direct(python: str, model: str) -> Iterator[Callable[[int, int], float]]:
    """Seconds for so many requests at once of so many tokens."""
    command = [python, str(Path(__file__).with_name("vllm_direct.py")), model, json.dumps(OPTIONS)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    asked, told = process.stdin, process.stdout

    def ask(requests: int, tokens: int) -> float:
        asked.write(f"{requests} {tokens} {PROMPT}\n")
        asked.flush()
        return float(_line(told))

    try:
        assert _line(told) == "ready"
        yield ask
    finally:
        process.kill()
        process.wait()


def _line(stream: IO[str]) -> str:
    """The next one that is ours: libraries print, too."""
    for line in stream:
        if line.strip() == "ready" or line.strip().replace(".", "").isdigit():
            return line.strip()
    raise SystemExit("vLLM's own engine ended")


async def ask(client: AsyncClient, tokens: int) -> None:
    params = {"thinker": {"temperature": 0.0, "max_tokens": tokens, "ignore_eos": True}}
    async for output in client.generate(PROMPT, params=params):
        if output.finished:
            assert output.usage["thinker"]["completion_tokens"] == tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a checkpoint's directory")
    parser.add_argument("--python", default=".venv-vllm/bin/python")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    python, model = str(Path(given.python).absolute()), str(Path(given.model).absolute())
    options = ", ".join(f"{key} = {json.dumps(value)}" for key, value in OPTIONS.items())
    sets = (f"model={model}", f"stage.thinker.python={python}", f"stage.thinker.options={{{options}}}")
    with directories(), direct(python, model) as alone, deployment("vllm", *sets) as ready:

        async def at_once(requests: int) -> None:
            async with AsyncClient.connect(ready["name"]) as client:
                await asyncio.gather(*(ask(client, given.tokens) for _ in range(requests)))

        async def in_a_row() -> None:
            async with AsyncClient.connect(ready["name"]) as client:
                for _ in range(MANY):
                    await ask(client, given.tokens)

        def timed(work: Callable[[], object]) -> float:
            began = time.monotonic()
            work()
            return time.monotonic() - began

        for warm in (1, MANY):
            alone(warm, 8)
            asyncio.run(at_once(warm))
        seconds = turns(
            {
                "vllm, 1": lambda: alone(1, given.tokens),
                "omnizmq, 1": lambda: timed(lambda: asyncio.run(at_once(1))),
                f"vllm, {MANY}": lambda: alone(MANY, given.tokens),
                f"omnizmq, {MANY}": lambda: timed(lambda: asyncio.run(at_once(MANY))),
                f"omnizmq, {MANY} in a row": lambda: timed(lambda: asyncio.run(in_a_row())),
            },
            given.turns,
        )
    found = {name: median(values) for name, values in seconds.items()}
    one, many = found["omnizmq, 1"] / found["vllm, 1"], found[f"omnizmq, {MANY}"] / found[f"vllm, {MANY}"]
    gain = found[f"omnizmq, {MANY} in a row"] / found[f"omnizmq, {MANY}"]
    print_report(
        {
            "model": model,
            "tokens": given.tokens,
            "seconds": found,
            "tokens_per_s": {
                name: given.tokens * (1 if name.endswith(" 1") else MANY) / value for name, value in found.items()
            },
            "all": seconds,
            "verdicts": [
                f"a token of one request: {one:.3f} x vLLM's own engine",
                f"a token of {MANY} at once: {many:.3f} x vLLM's own engine",
                f"{MANY} at once: {gain:.1f} times the throughput of {MANY} in a row",
            ],
        },
        as_json=given.json,
    )


if __name__ == "__main__":
    main()
