"""The tiny Qwen3-Omni in three processes, and what goes wrong with it: an answer all the same, or one clear line."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

pytest.importorskip("torch", reason="not installed: the extra `transformers`")
pytest.importorskip("transformers", reason="not installed: the extra `transformers`")

from support.running import Asking, Running, collect, launched, text_of, until
from support.stress import visible

from omnizmq import AsyncClient, RequestOutput
from omnizmq.errors import ReplicaLostError

pytestmark = [pytest.mark.transformers, pytest.mark.usefixtures("no_leaks")]

CONFIG = "qwen3_omni_tiny"
PROMPT = "Hello!"
GREEDY = {"thinker": {"temperature": 0.0}, "talker": {"temperature": 0.0, "max_tokens": 60}}
LOST = "its GPU cannot be used any more: CUDA error: an illegal memory access was encountered"


def sound_of(outputs: list[RequestOutput]) -> np.ndarray:
    return np.concatenate([output.audio for output in outputs if output.audio is not None])


def losing(stage: str, method: str, redrive: str) -> list[str]:
    return [
        f'stage.{stage}.engine="lost_gpu"',
        f'stage.{stage}.options.fails="{method}"',
        f'router.redrive="{redrive}"',
        "router.redrive_wait_s=60",
        "router.restart_delay_s=0.05",
    ]


class TestALostGpu:
    def test_f2_its_worker_is_replaced_and_the_request_driven_again_to_the_same_end(self) -> None:
        async def use(deployment: Running) -> None:
            async with AsyncClient.connect(deployment.name) as client:
                struck = await collect(client, PROMPT, params=GREEDY)
                after = await collect(client, PROMPT, params=GREEDY)
                assert text_of(struck) == text_of(after)
                assert np.array_equal(sound_of(struck), sound_of(after))

        with visible(), launched(CONFIG, *losing("talker", "advance", "wait")) as deployment:
            asyncio.run(use(deployment))
            assert deployment.status()["counters"]["redriven"] == 1
            assert deployment.replica("talker/0")["restarts"] == 1
            assert deployment.replica("thinker/0")["restarts"] == 0

    def test_f2_or_else_it_ends_with_replica_lost_and_the_reason(self) -> None:
        async def use(deployment: Running) -> None:
            async with AsyncClient.connect(deployment.name) as client:
                error = await Asking(client, PROMPT, params=GREEDY).error()
                assert isinstance(error, ReplicaLostError)
                assert LOST in error.message
                await until(lambda: deployment.replica("thinker/0")["state"] == "ready", timeout_s=60)

        with visible(), launched(CONFIG, *losing("thinker", "decode", "never")) as deployment:
            asyncio.run(use(deployment))
