"""The tiny CSM as a caller meets it: two processes, from the shipped configuration."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile

pytest.importorskip("torch", reason="not installed: the extra `transformers`")
pytest.importorskip("transformers", reason="not installed: the extra `transformers`")

import torch
from support.csm import Reference
from support.running import Asking, Held, Running, collect, eventually, omnizmq, samples_of, shared

from omnizmq import AsyncClient
from omnizmq.errors import InvalidRequestError
from omnizmq.workers.engines.csm import tiny

pytestmark = pytest.mark.transformers

CONFIG = "csm_tiny"
TEXT = "Hello!"
GREEDY = {"talker": {"temperature": 0.0}}
ROUNDING = 1e-4


@pytest.fixture(scope="module")
def deployment() -> Iterator[Running]:
    with shared(CONFIG, "router.output_window=1") as running:
        yield running


def test_two_processes_make_what_the_whole_model_makes(deployment: Running, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    reference = Reference(tiny.ensure(tmp_path, 0))
    whole = reference.generate(reference.ids(TEXT), 100)

    async def use() -> None:
        async with AsyncClient.connect(deployment.name) as client:
            outputs = await collect(client, TEXT, params=GREEDY)
            waves = [output.audio for output in outputs if output.audio is not None]
            assert len(waves) == 5  # 4 frames, then 25 at a time
            assert np.abs(np.concatenate(waves) - whole.wave).max() < ROUNDING
            assert outputs[-1].usage["talker"]["frames"] == 100

    asyncio.run(use())


def test_one_of_several_is_aborted_and_the_others_are_heard(deployment: Running) -> None:
    async def use() -> None:
        async with AsyncClient.connect(deployment.name) as client:
            alone = await collect(client, TEXT, params=GREEDY)
            cut = Held(client, "ba " * 30, after=1, request_id="cut")
            others = [Asking(client, TEXT, params=GREEDY) for _ in range(3)]
            await cut.has(1)
            await client.abort("cut")
            assert await cut.error() is None
            assert cut.outputs[-1].finish_reason == "abort"
            for asking in others:
                assert await asking.error() is None
                assert samples_of(asking.outputs) == samples_of(alone) == 100 * 1920

    asyncio.run(use())
    assert eventually(deployment.idle)


def test_what_cannot_be_said_is_refused_in_one_line(deployment: Running) -> None:
    async def use() -> None:
        async with AsyncClient.connect(deployment.name) as client:
            with pytest.raises(InvalidRequestError, match="the text has 1205 tokens: a slot holds 1024") as refused:
                await collect(client, "ba " * 400)
            assert refused.value.stage == "talker"
            seen = [{"role": "user", "content": [{"type": "text", "text": TEXT}, {"type": "image", "data": b"PNG"}]}]
            with pytest.raises(InvalidRequestError, match="the last message must be the user's, of text alone"):
                await collect(client, seen)
            with pytest.raises(InvalidRequestError, match="unknown modality 'text': this deployment has audio"):
                await collect(client, TEXT, modalities=["text"])

    asyncio.run(use())


@pytest.mark.usefixtures("deployment")
def test_a_text_is_written_as_a_sound_file(tmp_path: Path) -> None:
    wav = tmp_path / "said.wav"
    done = omnizmq("chat", TEXT, "--modalities", "audio", "--output", str(wav), "--seed", "7", "--json")
    assert done.returncode == 0, done.stderr
    frames = json.loads(done.stdout)["usage"]["talker"]["frames"]
    sound, rate = soundfile.read(wav)
    assert (len(sound), rate) == (1920 * frames, 24_000)


@pytest.mark.parametrize("config", ["csm_tiny", "qwen3_omni_tiny"])
def test_a_checkpoint_of_a_model_that_is_not_known_is_said_at_the_start(home: Path, config: str) -> None:
    (home / "llama").mkdir()
    (home / "llama" / "config.json").write_text('{"model_type": "llama"}')
    done = omnizmq("chat", TEXT, "--modalities", "audio", "--config", config, "--set", f"model={home}/llama", "--json")
    assert done.returncode != 0
    message = json.loads(done.stdout)["error"]["message"]
    assert 'its model_type is \'llama\'; this engine knows "qwen3_omni_moe" (Qwen3-Omni), "csm" (CSM)' in message
