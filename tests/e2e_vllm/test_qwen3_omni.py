"""The tiny Qwen3-Omni with its Thinker on vLLM: that in one environment, Talker and Code2Wav in another."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="not installed: the extra `transformers`")
pytest.importorskip("transformers", reason="not installed: the extra `transformers`")

from support.qwen3_omni import Reference
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


def sound_of(outputs: list[RequestOutput]) -> np.ndarray:
    return np.concatenate([output.audio for output in outputs if output.audio is not None])


@pytest.mark.parametrize("tensor_parallel", [1, 2])
def test_tokens_codes_and_wave_are_those_of_the_whole_model(
    vllm_python: Path, tmp_path: Path, tensor_parallel: int
) -> None:
    """Also where vLLM computes in two processes of its own. The model is made here: the library of vLLM's environment
    may be another version, which draws other weights from the same seed."""
    model = tiny.ensure(tmp_path, 0)
    reference = Reference(model)
    expected = {text: reference.generate(reference.ids(text), 64, 101, "ethan") for text in PROMPTS}

    async def scenario(deployment: Running) -> None:
        async with AsyncClient.connect(deployment.name) as client:
            for text, whole in expected.items():
                outputs = await collect(client, text, params=GREEDY)
                said = reference.tokenizer.decode(whole.tokens, skip_special_tokens=True)
                assert text_of(outputs) == said.rstrip(HALF), "vLLM leaves out a character that is cut off"
                usage = outputs[-1].usage
                assert usage["thinker"]["completion_tokens"] == len(whole.tokens)
                assert usage["talker"]["frames"] == whole.codes.shape[1]
                wave = sound_of(outputs)
                assert wave.size == whole.wave.size
                assert np.abs(wave - whole.wave).max() < ROUNDING
            turn = [{"role": "user", "content": [{"type": "audio", "data": b"RIFF"}]}]
            heard = await Asking(client, turn, params=GREEDY).error()  # type: ignore[arg-type]
            assert isinstance(heard, InvalidRequestError)
            assert "takes text alone" in heard.message
            spoken = await collect(client, "Hello!", params={**GREEDY, "thinker": {"say": "babebi"}})
            assert text_of(spoken) == "babebi"
            assert sound_of(spoken).size

    sets = (
        f"model={model}",
        f"stage.thinker.python={vllm_python}",
        f"stage.thinker.options.tensor_parallel_size={tensor_parallel}",
    )
    with launched("qwen3_omni_tiny_vllm", *sets) as deployment:
        asyncio.run(scenario(deployment))
        assert eventually(deployment.idle)
        assert deployment.stop() == 0
