"""What the engine `vllm` says of a stage before anything loads, without vLLM: its options, its place, its memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import sparse_checkpoint

from omnizmq.errors import ConfigError
from omnizmq.workers.engines.vllm.engine import check_options, estimate_memory
from omnizmq.workers.engines.vllm.options import CPU_CACHE_BYTES, check_parallel
from omnizmq.workers.memory import MemoryAsked

ASKED = MemoryAsked("thinker", "", {}, (), 16, 64, {}, (), "text")
SHAPES: Mapping[str, Mapping[str, tuple[int, ...]]] = {
    "llama": {"model.embed_tokens.weight": (1000, 64), "model.norm.weight": (64,)},
    "qwen3_omni_moe": {
        "thinker.model.norm.weight": (64,),
        "thinker.lm_head.weight": (1000, 64),
        "thinker.visual.patch": (5000, 64),
        "thinker.audio_tower.conv": (3000, 64),
        "talker.norm": (5000, 64),
    },
}
THINKER: Mapping[str, Mapping[str, Any]] = {
    "text_config": {"max_position_embeddings": 4096},
    "audio_config": {"n_window": 50, "conv_chunksize": 500, "num_mel_bins": 128, "downsample_hidden_size": 480},
    "vision_config": {
        "patch_size": 16,
        "spatial_merge_size": 2,
        "hidden_size": 1152,
        "out_hidden_size": 2048,
        "deepstack_visual_indexes": [8, 16, 24],
    },
}
TEXT = {"language_model_only": True}


def asked(folder: Path, model_type: str, dtype: str = "BF16", **changed: Any) -> MemoryAsked:
    sparse_checkpoint.write(folder, {"model_type": model_type, "thinker_config": THINKER}, [SHAPES[model_type]], dtype)
    return replace(ASKED, model=str(folder), **changed)


@pytest.mark.parametrize("model_type", sorted(SHAPES))
@pytest.mark.parametrize(("dtype", "size"), [("auto", 2), ("float32", 4), ("half", 2)])
def test_its_weights_are_those_of_the_language_model_in_its_dtype(
    tmp_path: Path, model_type: str, dtype: str, size: int
) -> None:
    need = estimate_memory(asked(tmp_path, model_type, options={**TEXT, "dtype": dtype}))
    assert need.weights == size * (1000 * 64 + 64)
    assert need.slots == CPU_CACHE_BYTES
    assert need.notes == ()


@pytest.mark.parametrize(("dtype", "size"), [("auto", 2), ("float32", 4)])
def test_a_thinkers_encoders_are_beside_it_unless_it_takes_text_alone(tmp_path: Path, dtype: str, size: int) -> None:
    kind = "qwen3_omni_moe"
    text = estimate_memory(asked(tmp_path, kind, options={**TEXT, "dtype": dtype}))
    needs = [
        estimate_memory(asked(tmp_path, kind, options={"dtype": dtype, **length}))
        for length in ({"max_model_len": 2048}, {"max_model_len": 4096}, {})
    ]
    assert {need.weights - text.weights for need in needs} == {size * 8000 * 64}
    assert text.workspace == 0 < needs[0].workspace < needs[1].workspace == needs[2].workspace
    assert text.process < needs[0].process <= needs[1].process


def test_a_thinker_in_a_pipeline_takes_text_alone(tmp_path: Path) -> None:
    stages = {"pipeline_parallel_size": 2}
    with pytest.raises(ConfigError) as refused:
        estimate_memory(asked(tmp_path, "qwen3_omni_moe", options=stages))
    line = "stage.thinker.options.pipeline_parallel_size cannot be set for a Thinker that takes sounds and images: use"
    assert refused.value.message.startswith(line)
    estimate_memory(asked(tmp_path, "qwen3_omni_moe", options={**stages, **TEXT}))
    estimate_memory(asked(tmp_path, "llama", options=stages))


def test_quantised_weights_stay_as_they_are(tmp_path: Path) -> None:
    assert estimate_memory(asked(tmp_path, "llama", "I8", options={"dtype": "float32"})).weights == 1000 * 64 + 64


def test_a_gpu_is_filled_by_its_share_unless_the_cache_has_a_size(tmp_path: Path) -> None:
    on = asked(tmp_path, "llama", device=("cuda:0", "cuda:1"))
    assert "vLLM fills 0.92 of each of its GPUs" in estimate_memory(on).notes[0]
    filled = replace(on, options={"gpu_memory_utilization": 0.5})
    assert "vLLM fills 0.5 of each" in estimate_memory(filled).notes[0]
    sized = estimate_memory(replace(on, options={"kv_cache_memory_bytes": 1000}))
    assert (sized.slots, sized.notes) == (2000, ())


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"final_output": "audio"}, 'stage.thinker.final_output = "audio": vllm makes "text"'),
        (
            {"options": {"data_parallel_size": 2}},
            "stage.thinker.options.data_parallel_size cannot be set: `replicas` says",
        ),
        (
            {"options": {"tensor_parallel_size": 4}, "device": ("cuda:0", "cuda:1")},
            "stage.thinker.options: tensor_parallel_size = 4 and pipeline_parallel_size = 1 take 4 GPUs: a replica of",
        ),
    ],
)
def test_what_it_cannot_be_is_refused_in_one_line(changed: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError) as refused:
        estimate_memory(replace(ASKED, model="tiny-qwen3-omni:0", **changed))
    assert refused.value.message.startswith(line)


@pytest.mark.parametrize(
    ("own", "devices", "sizes"),
    [
        ({}, 0, (1, 1)),
        ({}, 4, (4, 1)),
        ({"pipeline_parallel_size": 2}, 4, (2, 2)),
        ({"tensor_parallel_size": 2}, 0, (2, 1)),
    ],
)
def test_as_many_processes_as_devices(own: dict[str, int], devices: int, sizes: tuple[int, int]) -> None:
    assert check_parallel("thinker", own, devices) == sizes


def test_options_of_vllm_are_its_own_to_check() -> None:
    check_options("thinker", {"max_model_len": 8, "threads": 2, "anything": {"else": 1}})
    with pytest.raises(
        ConfigError, match=r"^stage\.thinker\.options\.model cannot be set: the configuration's `model`"
    ):
        check_options("thinker", {"model": "x"})
