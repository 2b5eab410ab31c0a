"""The tiny Qwen3-Omni with its Thinker on vLLM: that in one environment, Talker and Code2Wav in another."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="not installed: the extra `transformers`")
pytest.importorskip("transformers", reason="not installed: the extra `transformers`")

from PIL import Image
from support.noise import sound, wave_file
from support.pictures import file, noise
from support.qwen3_omni import Made, Reference
from support.running import Asking, Running, collect, eventually, launched, text_of

from omnizmq import AsyncClient, RequestOutput
from omnizmq.errors import InvalidRequestError
from omnizmq.workers.engines.qwen3_omni import tiny

pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures("no_leaks")]

PROMPTS = ["Hello!", "One two three", "ba " * 7]
ROUNDING = 1e-4
HALF = "\N{REPLACEMENT CHARACTER}"
GREEDY: dict[str, dict[str, Any]] = {
    "thinker": {"temperature": 0.0},
    "talker": {"temperature": 0.0, "speaker": "ethan"},
}


SHORT = {"thinker": {**GREEDY["thinker"], "max_tokens": 20}, "talker": {**GREEDY["talker"], "max_tokens": 31}}

Asked = tuple[str, tuple[Image.Image, ...], tuple[np.ndarray, ...]]

WITH_ITEMS: list[Asked] = [
    ("Hello!", (), (sound(1.3),)),
    ("Hello!", (), (sound(1.3)[::-1].copy(),)),  # of as many tokens: what is cached of the other is not this one's
    ("What is that?", (noise(200, 130, 1),), ()),
    ("And now?", (noise(96, 250, 2), noise(200, 130, 3)), (sound(1.3), sound(0.4))),
]


def wave_of(outputs: list[RequestOutput]) -> np.ndarray:
    return np.concatenate([output.audio for output in outputs if output.audio is not None])


def turn(asked: Asked) -> list[dict[str, Any]]:
    text, images, sounds = asked
    parts: list[dict[str, Any]] = [{"type": "text", "text": text}]
    parts += [{"type": "image", "data": file(image)} for image in images]
    parts += [{"type": "audio", "data": wave_file(samples)} for samples in sounds]
    return [{"role": "user", "content": parts}]


def whole_model(reference: Reference, asked: Asked) -> tuple[Made, dict[str, int]]:
    """What the library's model makes of it, and how many tokens the prompt has of what."""
    text, images, sounds = asked
    pixels, seen = reference.pixels(images) if images else ({}, [])
    features, heard = reference.features([samples[:, 0] for samples in sounds]) if sounds else ({}, [])
    ids = reference.ids(text, heard, seen)
    counts = {"prompt_tokens": len(ids), "prompt_audio_tokens": sum(heard), "prompt_image_tokens": sum(seen)}
    made = reference.generate(ids, 20, 31, "ethan", **pixels, **features)
    return made, {name: count for name, count in counts.items() if count}


@dataclass
class Expected:
    model: Path
    reference: Reference
    texts: dict[str, Made]
    with_items: list[tuple[Made, dict[str, int]]]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Expected:
    """The model is made here: the library of vLLM's environment may be another version, which draws other weights from
    the same seed."""
    model = tiny.ensure(tmp_path_factory.mktemp("models"), 0)
    reference = Reference(model)
    texts = {text: reference.generate(reference.ids(text), 64, 101, "ethan") for text in PROMPTS}
    with_items = [whole_model(reference, asked) for asked in WITH_ITEMS]
    assert len({tuple(whole.tokens) for whole, _ in with_items}) == len(WITH_ITEMS)
    assert with_items[0][1] == with_items[1][1]
    return Expected(model, reference, texts, with_items)


def check(reference: Reference, whole: Made, outputs: list[RequestOutput]) -> None:
    said = reference.tokenizer.decode(whole.tokens, skip_special_tokens=True)
    assert text_of(outputs) == said.rstrip(HALF), "vLLM leaves out a character that is cut off"
    usage = outputs[-1].usage
    assert usage["thinker"]["completion_tokens"] == len(whole.tokens)
    assert usage["talker"]["frames"] == whole.codes.shape[1]
    wave = wave_of(outputs)
    assert wave.size == whole.wave.size
    assert np.abs(wave - whole.wave).max() < ROUNDING


@pytest.mark.parametrize("tensor_parallel", [1, 2])
def test_tokens_codes_and_wave_are_those_of_the_whole_model(
    vllm_python: Path, expected: Expected, tensor_parallel: int
) -> None:
    """Of text, sounds and images; also where vLLM computes in two processes of its own. Prompts are computed in pieces,
    several in a step, and asked again when they are in the cache."""

    async def scenario(deployment: Running) -> None:
        async with AsyncClient.connect(deployment.name) as client:
            for text, whole in expected.texts.items():
                check(expected.reference, whole, await collect(client, text, params=GREEDY))
            for _ in range(2):
                askings = [collect(client, turn(asked), params=SHORT) for asked in WITH_ITEMS]  # type: ignore[arg-type]
                for outputs, (whole, counts) in zip(await asyncio.gather(*askings), expected.with_items, strict=True):
                    check(expected.reference, whole, outputs)
                    usage = outputs[-1].usage["thinker"]
                    assert {name: usage.get(name) for name in counts} == counts
            spoken = await collect(client, "Hello!", params={**GREEDY, "thinker": {"say": "babebi"}})
            assert text_of(spoken) == "babebi"
            assert wave_of(spoken).size
            nonsense = [{"role": "user", "content": [{"type": "audio", "data": b"RIFF"}]}]
            refused = await Asking(client, nonsense, params=GREEDY).error()  # type: ignore[arg-type]
            assert isinstance(refused, InvalidRequestError)
            assert "a sound cannot be read" in refused.message

    sets = (
        f"model={expected.model}",
        f"stage.thinker.python={vllm_python}",
        f"stage.thinker.options.tensor_parallel_size={tensor_parallel}",
        "stage.thinker.options.max_num_batched_tokens=48",
    )
    with launched("qwen3_omni_tiny_vllm", *sets) as deployment:
        asyncio.run(scenario(deployment))
        assert eventually(deployment.idle)
        assert deployment.stop() == 0


def test_for_text_alone_it_has_no_encoders(vllm_python: Path, expected: Expected) -> None:
    async def scenario(deployment: Running) -> None:
        async with AsyncClient.connect(deployment.name) as client:
            check(expected.reference, expected.texts["Hello!"], await collect(client, "Hello!", params=GREEDY))
            refused = await Asking(client, turn(WITH_ITEMS[0]), params=GREEDY).error()  # type: ignore[arg-type]
            assert isinstance(refused, InvalidRequestError)
            assert "takes text alone" in refused.message

    sets = (
        f"model={expected.model}",
        f"stage.thinker.python={vllm_python}",
        "stage.thinker.options.language_model_only=true",
    )
    with launched("qwen3_omni_tiny_vllm", *sets) as deployment:
        asyncio.run(scenario(deployment))
        assert deployment.stop() == 0
