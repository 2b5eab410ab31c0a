"""The tiny Qwen3-Omni in three processes, and what goes wrong with it: an answer all the same, or one clear line."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="not installed: the extra `transformers`")
pytest.importorskip("transformers", reason="not installed: the extra `transformers`")

from support.running import Asking, Running, collect, eventually, kill, launched, omnizmq, text_of, until
from support.stress import visible

from omnizmq import AsyncClient, RequestOutput
from omnizmq.errors import InvalidRequestError, ReplicaLostError, UnavailableError
from omnizmq.workers.engines.qwen3_omni import tiny

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


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.ensure(tmp_path_factory.mktemp("models"), 0)


@pytest.fixture
def checkpoint(pristine: Path, tmp_path: Path) -> Path:
    """A copy, to be damaged."""
    return Path(shutil.copytree(pristine, tmp_path / "copy"))


def shard(checkpoint: Path) -> Path:
    """One in the middle."""
    return checkpoint / "model-00004-of-00008.safetensors"


def write(file: str, content: str) -> Callable[[Path], object]:
    return lambda checkpoint: (checkpoint / file).write_text(content)


class TestACheckpoint:
    """Each of the three processes finds its own part of the damage; the first to do so ends the start."""

    @pytest.mark.parametrize(
        ("damage", "line"),
        [
            (write("config.json", '{"model_type": "llama"}'), "its model_type is 'llama'; this engine knows"),
            (lambda checkpoint: shard(checkpoint).unlink(), "model-00004-of-00008.safetensors cannot be read"),
            (lambda checkpoint: os.truncate(shard(checkpoint), 5000), "model-00004-of-00008.safetensors is damaged"),
            (lambda checkpoint: (checkpoint / "tokenizer.json").unlink(), "the tokenizer of "),
        ],
        ids=["another model", "missing shard", "short shard", "no tokenizer"],
    )
    def test_f5_what_cannot_be_loaded_is_said_in_one_line_and_nothing_stays(
        self, checkpoint: Path, damage: Callable[[Path], object], line: str
    ) -> None:
        damage(checkpoint)
        done = omnizmq("chat", PROMPT, "--config", CONFIG, "--set", f"model={checkpoint}", "--json", timeout_s=100)
        assert done.returncode in (1, 2), done.stdout
        message = json.loads(done.stdout)["error"]["message"]
        assert line in message.splitlines()[0]

    def test_f4_one_that_is_damaged_while_it_serves_keeps_a_dead_stage_from_coming_back(self, checkpoint: Path) -> None:
        """Who asks is told at once, every time, and a text alone is answered."""

        async def use(deployment: Running) -> None:
            async with AsyncClient.connect(deployment.name) as client:
                before = await collect(client, PROMPT, params=GREEDY)
                write("config.json", "nothing")(checkpoint)
                kill(deployment.worker_pid("code2wav/0"))
                await until(lambda: deployment.replica("code2wav/0")["restarts"] >= 1, timeout_s=60)
                for _ in range(3):
                    assert isinstance(await Asking(client, PROMPT, params=GREEDY).error(), UnavailableError)
                after = await collect(client, PROMPT, params=GREEDY, modalities=["text"])
                assert text_of(after) == text_of(before)

        with launched(CONFIG, f"model={checkpoint}", "router.restart_delay_s=0.05") as deployment:
            asyncio.run(use(deployment))


class TestPrompts:
    """An answer that has no words is silent, in good order, and says why."""

    def test_what_cannot_be_said_or_asked(self) -> None:
        system = [{"role": "system", "content": "Be kind."}]

        async def use(deployment: Running) -> None:
            async with AsyncClient.connect(deployment.name) as client:
                for prompt, params, note in (
                    (system, {}, "the prompt has no user turn"),
                    ([5, 6, 7], {}, "the prompt opens no assistant turn"),
                    (PROMPT, {"thinker": {"max_tokens": 1}}, "the answer is empty"),
                ):
                    outputs = await collect(client, prompt, params=params)
                    assert text_of(outputs) or params
                    assert all(output.audio is None for output in outputs)
                    assert note in outputs[-1].notes["talker"]
                for prompt, params, line in (
                    (PROMPT, {"talker": {"speaker": "bob"}}, 'speaker "bob" is unknown; there are aiden, chelsie'),
                    ("word " * 60, {}, "tokens: a slot of the talker holds 128 with its speech"),
                    ("word " * 3000, {}, "a slot holds 2048, the answer included"),
                    ([5, 9999], {}, "token id 9999 is none of this model's"),
                ):
                    error = await Asking(client, prompt, params=params).error()
                    assert isinstance(error, InvalidRequestError)
                    assert line in error.message
                outputs = await collect(client, PROMPT, params=GREEDY)
                assert sound_of(outputs).size == 1920 * outputs[-1].usage["talker"]["frames"] - 555

        with launched(CONFIG, "stage.talker.options.slot_tokens=128") as deployment:
            asyncio.run(use(deployment))
            assert eventually(deployment.idle)
