"""A text model on vLLM as a caller meets it: the stage has a Python of its own, and the router another one."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest
from support.running import (
    OMNIZMQ,
    Asking,
    Held,
    Running,
    alive,
    collect,
    eventually,
    kill,
    launched,
    omnizmq,
    text_of,
    until,
)
from support.stress import visible
from support.vllm_lost import REASON, STEP

from omnizmq import AsyncClient
from omnizmq.errors import InvalidRequestError, ReplicaLostError

pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures("no_leaks", "no_files")]

THEIRS = ("vllm", "torch", "nccl", "pymp-", "psm_", "sem.mp-")
FRANCE = "What is the capital of France?"
LONG = {"thinker": {"max_tokens": 400, "ignore_eos": True, "temperature": 0.0}}
NARROW = "router.output_window=8"


def files() -> set[str]:
    """What vLLM, torch and `multiprocessing` put where everybody does."""
    folders = ("/tmp", "/dev/shm")
    return {f"{at}/{name}" for at in folders for name in os.listdir(at) if name.startswith(THEIRS)}


@pytest.fixture
def no_files(home: Path) -> Iterator[None]:  # noqa: ARG001 (which is one of them)
    """Nothing is there that was not there before."""
    before = files()
    yield
    assert eventually(lambda: not files() - before), files() - before


@pytest.fixture
def sets(vllm_python: Path, smollm: Path) -> tuple[str, ...]:
    return (
        f"stage.thinker.python={vllm_python}",
        f"model={smollm}",
        "stage.thinker.options.dtype=float32",
        "stage.thinker.options.max_model_len=1024",
        "stage.thinker.options.kv_cache_memory_bytes=134217728",
        "router.restart_delay_s=0.1",
    )


def of_group(pid: int) -> list[int]:
    """The processes of the group that it leads, itself among them."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and _group(int(name)) == pid]


def _group(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


def greedy(**params: Any) -> dict[str, dict[str, Any]]:
    return {"thinker": {"temperature": 0.0, **params}}


def test_it_streams_what_vllm_says_offline_and_is_explained(sets: tuple[str, ...], offline: Any) -> None:
    (expected,) = offline([(FRANCE, {"temperature": 0.0, "max_tokens": 20})])

    async def scenario(deployment: Running) -> None:
        async with AsyncClient.connect(deployment.name) as client:
            outputs = await collect(client, FRANCE, params=greedy(max_tokens=20), request_id="france")
            assert text_of(outputs) == expected["text"]
            assert len([output for output in outputs if output.text]) >= 5
            assert outputs[-1].finish_reason == expected["reason"]
            assert outputs[-1].usage["thinker"]["completion_tokens"] == len(expected["tokens"])
            together = [Asking(client, FRANCE, params=greedy(max_tokens=20)) for _ in range(16)]
            assert [await one.error() for one in together] == [None] * 16
            assert {text_of(one.outputs) for one in together} == {expected["text"]}
            wrong = await Asking(client, FRANCE, params=greedy(top_p=3)).error()
            assert isinstance(wrong, InvalidRequestError)
            assert "top_p must be in (0, 1], got 3.0" in wrong.message
            long = Held(client, FRANCE, after=3, params=LONG, request_id="long")
            await long.has(3)
            assert await client.abort("long") == 1
            assert await long.error() is None
            assert long.outputs[-1].finish_reason == "abort"

    with launched("vllm", *sets, NARROW) as deployment:
        asyncio.run(scenario(deployment))
        assert eventually(deployment.idle)
        assert deployment.trace("france")["terminal"]["finish_reason"] == expected["reason"]
        assert deployment.stop() == 0


@pytest.mark.parametrize(
    ("victim", "processes"),
    [("worker", 1), ("launcher", 1), ("worker", 3), ("launcher", 3), ("a process of vLLM's", 3)],
)
def test_f2_a_kill_leaves_nothing_of_vllms(sets: tuple[str, ...], victim: str, processes: int) -> None:
    """Of `launch`, which is the router too; or of the worker, or of one that computes for it: its requests end with
    `replica_lost`."""
    with launched("vllm", *sets, NARROW, f"stage.thinker.options.tensor_parallel_size={processes}") as deployment:
        worker = deployment.worker_pid("thinker/0")
        inside = of_group(worker)
        assert worker in inside
        assert len(inside) > processes if processes > 1 else len(inside) == 1

        async def scenario(kills: Callable[[], None]) -> None:
            async with AsyncClient.connect(deployment.name) as client:
                asking = Held(client, FRANCE, after=3, params=LONG)
                await asking.has(3)
                kills()
                await until(lambda: not any(map(alive, inside)), 20)
                if victim != "launcher":
                    assert isinstance(await asking.error(), ReplicaLostError)
                    await until(lambda: deployment.replica("thinker/0")["state"] == "ready", 300)
                    assert text_of(await collect(client, FRANCE, params=greedy(max_tokens=4)))
                asking.task.cancel()

        victims = {"worker": worker, "launcher": deployment.pid, "a process of vLLM's": inside[-1]}
        asyncio.run(scenario(lambda: kill(victims[victim])))
        if victim == "launcher":
            assert deployment.process.wait(20) == -signal.SIGKILL
        else:
            assert deployment.stop() == 0


def test_f2_a_process_of_vllms_that_dies_while_nobody_asks_is_made_good_at_once(sets: tuple[str, ...]) -> None:
    """Also before the first request of all: none meets a replica that cannot compute."""
    with launched("vllm", *sets, "stage.thinker.options.tensor_parallel_size=3") as deployment:
        kill(of_group(deployment.worker_pid("thinker/0"))[-1])
        assert eventually(lambda: deployment.replica("thinker/0")["state"] != "ready", 20)
        assert eventually(lambda: deployment.replica("thinker/0")["state"] == "ready", 300)

        async def scenario() -> None:
            async with AsyncClient.connect(deployment.name) as client:
                assert text_of(await collect(client, FRANCE, params=greedy(max_tokens=4)))

        asyncio.run(scenario())
        assert deployment.replica("thinker/0")["restarts"] == 1
        assert deployment.stop() == 0


@pytest.mark.parametrize("victim", ["worker", "launcher"])
def test_f2_a_kill_while_they_load_leaves_nothing_of_vllms(sets: tuple[str, ...], victim: str) -> None:
    """As soon as there are several: they share memory then. The model's heads can be shared among three."""
    options = [
        option for setting in (*sets, "stage.thinker.options.tensor_parallel_size=3") for option in ("--set", setting)
    ]
    before = files()
    process = subprocess.Popen([*OMNIZMQ, "launch", "--config", "vllm", *options], stdout=DEVNULL, stderr=DEVNULL)
    launcher = psutil.Process(process.pid)
    several: list[int] = []

    def loading() -> bool:
        several[:] = [child.pid for child in launcher.children() if len(of_group(child.pid)) > 1]
        assert process.poll() is None
        return bool(several) and any("/psm_" in name for name in files() - before)

    try:
        assert eventually(loading, 120)
        (worker,) = several
        kill(worker if victim == "worker" else process.pid)
        assert process.wait(60) == (1 if victim == "worker" else -signal.SIGKILL)
        assert eventually(lambda: not alive(worker))
    finally:
        process.kill()
        process.wait()


def test_f2_a_failure_inside_vllm_ends_its_requests_with_the_reason_and_the_replica_is_replaced(
    sets: tuple[str, ...],
) -> None:
    async def scenario(deployment: Running) -> None:
        async with AsyncClient.connect(deployment.name) as client:
            struck = [Asking(client, FRANCE, params=LONG) for _ in range(3)]
            for error in [await one.error() for one in struck]:
                assert isinstance(error, ReplicaLostError)
                assert REASON in error.message
                assert "details" not in error.message
            assert all(0 < len(one.outputs) <= STEP for one in struck)
            await until(lambda: deployment.replica("thinker/0")["state"] == "ready", 300)
            assert deployment.replica("thinker/0")["incarnation"] == 2
            assert text_of(await collect(client, FRANCE, params=greedy(max_tokens=20)))

    with visible(), launched("vllm", *sets, "stage.thinker.engine=vllm_lost") as deployment:
        asyncio.run(scenario(deployment))
        assert deployment.stop() == 0


def test_an_interpreter_without_vllm_is_refused_in_one_line(sets: tuple[str, ...]) -> None:
    options = [option for setting in sets for option in ("--set", setting)]
    done = omnizmq("launch", "--config", "vllm", *options, "--set", f"stage.thinker.python={sys.executable}")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert f"needs torch, transformers, vllm, which are not installed for {sys.executable}" in done.stderr or (
        f"needs vllm, which is not installed for {sys.executable}" in done.stderr
    )
