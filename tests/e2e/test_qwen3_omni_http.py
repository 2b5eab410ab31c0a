"""Images through the bridge, by the official Python client, to the tiny Qwen3-Omni."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="not installed: the extra `transformers`")
pytest.importorskip("transformers", reason="not installed: the extra `transformers`")

import numpy as np
import openai
import soundfile
import torch
from support.bridge import official
from support.pictures import file, noise
from support.qwen3_omni import Reference
from support.running import launched

from omnizmq.workers.engines.qwen3_omni import tiny

pytestmark = [pytest.mark.transformers, pytest.mark.http]

CONFIG = "qwen3_omni_tiny"
PROMPT = "Hello!"


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with launched(CONFIG, "plugins.http.port=0") as running, official(running) as client:
        yield client


def ask(client: Any, data: bytes) -> Any:
    url = f"data:image/png;base64,{base64.b64encode(data).decode()}"
    return ask_about(client, {"type": "image_url", "image_url": {"url": url, "detail": "auto"}})


def ask_about(client: Any, part: dict[str, Any]) -> Any:
    parts = [{"type": "text", "text": PROMPT}, part]
    (model,) = client.models.list().data
    return client.chat.completions.create(model=model.id, messages=[{"role": "user", "content": parts}], max_tokens=20)


def test_an_image_is_seen_and_counted(client: Any, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    reference = Reference(tiny.ensure(tmp_path, 0))
    image = noise(200, 130, 1)
    inputs, counts = reference.pixels([image])
    whole = reference.generate(reference.ids(PROMPT, (), counts), 20, 2, "ethan", **inputs)
    answer = ask(client, file(image))
    expected = reference.tokenizer.decode(whole.tokens, skip_special_tokens=True)
    assert answer.choices[0].message.content == expected
    details = answer.usage.prompt_tokens_details
    assert details.image_tokens == sum(counts) == 24
    assert details.text_tokens == answer.usage.prompt_tokens - 24


def test_a_sound_is_heard_and_counted(client: Any) -> None:
    out = io.BytesIO()
    soundfile.write(out, np.random.default_rng(0).normal(0, 0.1, 16_000), 16_000, format="FLAC")
    sound = {"data": base64.b64encode(out.getvalue()).decode(), "format": "flac"}
    answer = ask_about(client, {"type": "input_audio", "input_audio": sound})
    details = answer.usage.prompt_tokens_details
    assert (details.audio_tokens, details.image_tokens) == (13, 0)  # a second
    assert details.text_tokens == answer.usage.prompt_tokens - 13


def test_what_is_no_image_is_a_bad_request(client: Any) -> None:
    with pytest.raises(openai.BadRequestError, match="an image cannot be read: it is no file of PNG, JPEG, WEBP"):
        ask(client, b"nonsense")
