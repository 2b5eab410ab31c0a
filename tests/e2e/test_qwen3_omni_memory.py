"""What is estimated of Qwen3-Omni's memory before anything loads, beside what its processes have."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="not installed: the extra `transformers`")
pytest.importorskip("transformers", reason="not installed: the extra `transformers`")

import torch
from support.qwen3_omni import NAMES, make
from support.running import Running, document, launched, omnizmq
from transformers import Qwen3OmniMoeForConditionalGeneration

from omnizmq import Client
from omnizmq.workers.engines.hf import engine
from omnizmq.workers.engines.qwen3_omni import memory, tiny
from omnizmq.workers.memory import MemoryAsked, MemoryNeed

pytestmark = pytest.mark.transformers

MIB = 1 << 20


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return tiny.ensure(tmp_path_factory.mktemp("models"), 1)


@pytest.fixture(scope="module")
def larger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny one with wide experts: 126 million parameters, half a gigabyte."""
    folder = tmp_path_factory.mktemp("models") / "larger"
    torch.set_num_threads(1)
    config = tiny.make_config(tiny.make_tokenizer())
    for part in (config.thinker_config.text_config, config.talker_config.text_config):
        part.num_experts, part.moe_intermediate_size = 16, 8192
    tiny.build(folder)
    Qwen3OmniMoeForConditionalGeneration(config).save_pretrained(folder, max_shard_size="100MB")
    return folder


def need(role: str, model: Path | str, **options: Any) -> MemoryNeed:
    sources: dict[str, dict[str, Any]] = {} if role == "thinker" else {"before": {}}
    asked = MemoryAsked(role, str(model), {"role": role, **options}, (), 8, 32, sources)
    return engine.estimate_memory(asked)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_and_slots_are_those_of_the_loaded_stage(checkpoint: Path, dtype: str) -> None:
    for role in ("thinker", "talker"):
        options = {"slots": 3, "slot_tokens": 100, "dtype": dtype}
        model = make(role, checkpoint, **options)._model  # type: ignore[attr-defined]
        estimated = need(role, checkpoint, **options)
        table = model._table.nbytes if role == "talker" else 0
        assert estimated.weights == bytes_of(model._model.parameters()) + table
        assert estimated.slots == bytes_of(model.slots.keys) + bytes_of(model.slots.values)


def test_code2wav_is_in_float32_and_keeps_a_window(checkpoint: Path) -> None:
    engine = make("code2wav", checkpoint)
    network = engine._model.network  # type: ignore[attr-defined]
    assert need("code2wav", checkpoint).weights == bytes_of(network.parameters())
    assert engine._model.context == memory.CONTEXT_FRAMES  # type: ignore[attr-defined]


def bytes_of(tensors: Any) -> int:
    return sum(tensor.nbytes for tensor in tensors)


@pytest.mark.parametrize("role", NAMES)
def test_the_one_that_is_made_on_the_spot_is_as_large_as_when_it_is_there(checkpoint: Path, role: str) -> None:
    there, made = need(role, checkpoint), need(role, "tiny-qwen3-omni:1")
    assert there.weights <= made.weights
    if role != "code2wav":
        assert (there.slots, there.slot_count, there.process) == (made.slots, made.slot_count, made.process)


def test_real_processes_have_what_was_estimated(larger: Path) -> None:
    """But for the pages of the checkpoint itself, which are the page cache's. The estimate has the largest steps in it,
    and slots as if they were full, so it is the upper one."""
    model = f"model={larger}"
    told = document(omnizmq("check", "qwen3_omni_tiny", "--json", "--set", model))
    estimated = {one["id"]: one["sum_bytes"] + one["process_bytes"] for one in told["memory"]["replicas"]}
    with launched("qwen3_omni_tiny", model) as running:
        speak(running)
        for replica, upper in estimated.items():
            resident = resident_bytes(running.worker_pid(replica))
            assert 0.6 * upper < resident < upper, f"{replica}: {resident / MIB:.0f} of {upper / MIB:.0f} MiB"


def speak(running: Running) -> None:
    with Client.connect(running.name) as client:
        assert list(client.generate("ba de " * 200, modalities=["text", "audio"]))[-1].finished


def resident_bytes(pid: int) -> int:
    return sum(nbytes for path, nbytes in _mappings(pid) if not path.endswith(".safetensors"))


def _mappings(pid: int) -> Iterator[tuple[str, int]]:
    """What is mapped, and how much of it is resident."""
    path = ""
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if match := re.fullmatch(r"[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ \d+\s*(.*)", line):
            path = match[1]
        elif line.startswith("Rss:"):
            yield path, int(line.split()[1]) << 10
