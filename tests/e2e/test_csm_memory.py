"""What is estimated of CSM's memory before anything loads, beside the loaded stages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="not installed: the extra `transformers`")
pytest.importorskip("transformers", reason="not installed: the extra `transformers`")

import torch
from support.csm import make

from omnizmq.errors import ConfigError
from omnizmq.workers.engines.csm import memory, tiny
from omnizmq.workers.engines.hf import engine
from omnizmq.workers.memory import MemoryAsked, MemoryNeed

pytestmark = pytest.mark.transformers


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return tiny.ensure(tmp_path_factory.mktemp("models"), 1)


def need(role: str, model: Path | str, **options: Any) -> MemoryNeed:
    sources: dict[str, dict[str, Any]] = {"talker": {}} if role == "code2wav" else {}
    return engine.estimate_memory(MemoryAsked(role, str(model), {"role": role, **options}, (), 8, 32, sources))


@pytest.mark.parametrize("slot_tokens", [100, 4096])
def test_weights_and_slots_are_those_of_the_loaded_talker(checkpoint: Path, slot_tokens: int) -> None:
    """No slot has more positions than the model."""
    options = {"slots": 3, "slot_tokens": slot_tokens}
    model = make("talker", checkpoint, **options)._model  # type: ignore[attr-defined]
    estimated = need("talker", checkpoint, **options)
    assert estimated.slots == sum(cached.nbytes for cached in (*model.slots.keys, *model.slots.values))
    parameters = sum(parameter.nbytes for parameter in model._model.parameters())
    assert parameters <= estimated.weights < 1.1 * parameters


def test_weights_and_context_are_those_of_the_loaded_code2wav(checkpoint: Path) -> None:
    vocoder = make("code2wav", checkpoint)._model  # type: ignore[attr-defined]
    network = vocoder.network
    loaded = sum(tensor.nbytes for tensor in (*network.parameters(), *network.buffers()))
    assert 0.9 * loaded <= need("code2wav", checkpoint).weights <= 1.1 * loaded
    assert vocoder.context <= 2 * memory.CONTEXT_FRAMES


@pytest.mark.parametrize("role", ["talker", "code2wav"])
def test_the_one_that_is_made_on_the_spot_is_as_large_as_when_it_is_there(checkpoint: Path, role: str) -> None:
    there, made = need(role, checkpoint), need(role, "tiny-csm:1")
    assert there.weights <= made.weights
    if role == "talker":
        assert (there.slots, there.slot_count) == (made.slots, made.slot_count)


def test_a_role_that_the_model_does_not_have(checkpoint: Path) -> None:
    for model in (checkpoint, "tiny-csm"):
        with pytest.raises(ConfigError, match=r'options\.role = "thinker": CSM has talker and code2wav'):
            need("thinker", model)
