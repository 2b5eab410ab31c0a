"""What stages of Qwen3-Omni need of memory: from headers and config.json, without torch, for the real model's shape."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import sparse_checkpoint
from support.running import omnizmq

from omnizmq.errors import ConfigError, LaunchError, ModelNotFoundError, OmnizmqError
from omnizmq.workers.engines.hf import engine
from omnizmq.workers.memory import MemoryAsked, MemoryNeed

GIB = 1 << 30
SOURCES: dict[str, dict[str, Any]] = {
    "thinker": {},
    "talker": {"thinker": {}},
    "code2wav": {"talker": {"chunk_frames": 25}},
}
SMALL = {
    "thinker.model.embed_tokens.weight": (100, 64),
    "thinker.lm_head.weight": (100, 64),
    "talker.model.norm.weight": (32,),
    "code2wav.conv.weight": (8, 4, 3),
}


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """35 billion parameters that take no room."""
    folder = tmp_path_factory.mktemp("models") / "real"
    sparse_checkpoint.real(folder)
    return folder


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A checkpoint of two files with the real one's configuration, to be damaged."""
    half = len(SMALL) // 2
    shards = [dict(list(SMALL.items())[:half]), dict(list(SMALL.items())[half:])]
    sparse_checkpoint.write(tmp_path / "small", sparse_checkpoint.REAL, shards)
    return tmp_path / "small"


def need(model: Path | str, role: str, on_cpu: bool = False, max_inflight: int = 16, **options: Any) -> MemoryNeed:
    device = () if on_cpu else ("cuda:0",)
    return engine.estimate_memory(
        MemoryAsked(role, str(model), {"role": role, **options}, device, max_inflight, 4 * max_inflight, SOURCES[role])
    )


def test_the_real_model_has_as_many_parameters_as_its_index_says(real: Path) -> None:
    """What follows rests on it."""
    index = json.loads((real / sparse_checkpoint.INDEX).read_text())
    assert len(set(index["weight_map"].values())) == 15
    weights = [need(real, role, dtype="float32").weights for role in ("thinker", "talker")]
    table = 4 * math.prod(sparse_checkpoint.EMBEDDINGS)
    assert sum(weights) - table + need(real, "code2wav").weights == 4 * sparse_checkpoint.REAL_PARAMETERS


def test_weights_of_the_real_stages(real: Path) -> None:
    """The Talker has the Thinker's table of embeddings besides its own 6.2 GiB."""
    table = 2 * math.prod(sparse_checkpoint.EMBEDDINGS)
    assert need(real, "thinker").weights / GIB == pytest.approx(59.1, abs=0.05)
    assert (need(real, "talker").weights - table) / GIB == pytest.approx(6.2, abs=0.05)
    assert need(real, "code2wav").weights / GIB == pytest.approx(0.80, abs=0.01)
    assert need(real, "thinker", dtype="float32").weights == 2 * need(real, "thinker").weights


def test_slots_of_the_real_stages(real: Path) -> None:
    """Keys and values of a token: 98,304 bytes, and 20,480."""
    assert need(real, "thinker", slot_tokens=4096).slots == 16 * 4096 * 98_304
    assert need(real, "talker", slot_tokens=8192, slots=3).slots == 3 * 8192 * 20_480
    assert need(real, "talker", slots=64).slot_count == 16  # no more than are let run
    window = 2 * 8 * 1024 * 72 * 4
    assert need(real, "code2wav").slots == 64 * (window + 10 * 1024 * 4)


def test_the_workspace_grows_with_what_a_step_computes(real: Path) -> None:
    assert need(real, "thinker", slot_tokens=8192).workspace > need(real, "thinker", slot_tokens=4096).workspace
    assert need(real, "thinker", slot_tokens=256, max_inflight=2).workspace < 1.2 * GIB
    many = need(real, "thinker", slot_tokens=4096, max_inflight=1024).workspace
    assert many > 2 * 1024 * 4096 * 4 * 128 * 2  # a layer's keys and values of all slots

    def decoding(chunk_frames: int) -> int:
        sources = {"talker": {"chunk_frames": chunk_frames}}
        asked = MemoryAsked("code2wav", str(real), {"role": "code2wav"}, ("cuda:0",), 1, 4, sources)
        return engine.estimate_memory(asked).workspace

    assert decoding(250) > decoding(25)


def test_images_that_fill_a_slot_are_in_the_estimate(small: Path) -> None:
    """All patches of a slot in one step of the encoder, which is the largest where the others are small; and a token's
    32 x 32 pixels, 100 bytes each, while they become patches."""
    config = json.loads((small / "config.json").read_text())
    config["thinker_config"]["text_config"].update(hidden_size=64, num_attention_heads=1, moe_intermediate_size=8)
    config["thinker_config"]["audio_config"].update(downsample_hidden_size=1)
    (small / "config.json").write_text(json.dumps(config))
    one, two = (need(small, "thinker", slot_tokens=tokens) for tokens in (2048, 4096))
    a_patch = 1152 * (22 * 2 + 5 * 4)
    assert two.workspace - one.workspace == 2048 * (4 * a_patch + 4 * 2048 * 2)
    assert two.process - one.process == 2048 * 32 * 32 * 100


def test_an_image_that_is_scaled_down_is_decoded_first(small: Path) -> None:
    """It may have four times the pixels of `preprocessor_config.json`, once a slot holds what becomes of it."""
    enough = 12_845_056 // 1024
    below, above = (need(small, "thinker", slot_tokens=tokens).process for tokens in (enough - 1, enough))
    assert above - below > 4 * 12_845_056 * 34 - enough * 1024 * 100 - 1
    assert above == need(small, "thinker", slot_tokens=enough + 1).process


@pytest.mark.parametrize(("gigabytes", "fits"), [(80, True), (40, False)])
def test_check_says_whether_the_real_configuration_fits(real: Path, gigabytes: int, fits: bool) -> None:
    sets = [f"model={real}", *(f"device_memory_gib.cuda:{n}={gigabytes}" for n in range(2)), "device_memory_gib.cpu=64"]
    done = omnizmq("check", "qwen3_omni", *(part for text in sets for part in ("--set", text)), timeout_s=60)
    assert done.returncode == (0 if fits else 2)
    if fits:
        assert "thinker/0   cuda:0  59.1 GiB  6.0 GiB" in done.stdout
    else:
        assert "cuda:0 has 40.0 GiB of memory, and 67.9 GiB are needed (thinker/0 67.9 GiB: weights 59.1" in done.stderr
        assert done.stderr.count("\n") == 1


def test_neither_torch_nor_transformers_is_imported(real: Path) -> None:
    code = f"""
import sys
from omnizmq.workers.engines.hf import engine
from omnizmq.workers.memory import MemoryAsked
for role, sources in {SOURCES!r}.items():
    engine.estimate_memory(MemoryAsked(role, {str(real)!r}, {{"role": role}}, ("cuda:0",), 16, 64, sources))
print([name for name in ("torch", "transformers", "safetensors", "tokenizers") if name in sys.modules])
"""
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"


def test_the_options_are_checked_without_the_libraries(real: Path) -> None:
    done = omnizmq("check", "qwen3_omni", "--set", f"model={real}", "--set", "stage.talker.options.slotz=3")
    assert done.returncode == 2
    assert "stage.talker.options.slotz is unknown (did you mean slots?)" in done.stderr


def test_slots_that_are_fewer_than_requests_are_told(real: Path) -> None:
    assert need(real, "thinker", slots=16).notes == ()
    (note,) = need(real, "thinker", slots=4).notes
    assert note.startswith("stage thinker has 4 slots and max_inflight = 16: of the requests that are let run, 12 wait")


def test_a_hubs_name_is_found_in_its_cache(real: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    snapshots = tmp_path / "models--Qwen--Qwen3-Omni" / "snapshots"
    snapshots.mkdir(parents=True)
    (snapshots / "0a1b").symlink_to(real)
    assert need("Qwen/Qwen3-Omni", "talker") == need(real, "talker")
    with pytest.raises(ModelNotFoundError, match='"hf download Qwen/Other" brings it there'):
        need("Qwen/Other", "talker")


# --- Damage ----------------------------------------------------------------------------------------------------------

SHARD = "model-00002-of-00002.safetensors"


def lost(folder: Path) -> None:
    (folder / SHARD).unlink()


def cut(folder: Path) -> None:
    with (folder / SHARD).open("r+b") as file:
        file.truncate((folder / SHARD).stat().st_size - 1)


def scrambled(folder: Path) -> None:
    with (folder / SHARD).open("r+b") as file:
        file.seek(8)
        file.write(b"not JSON")


def unknown_shard(folder: Path) -> None:
    index = json.loads((folder / sparse_checkpoint.INDEX).read_text())
    index["weight_map"]["code2wav.more"] = "model-00003-of-00002.safetensors"
    (folder / sparse_checkpoint.INDEX).write_text(json.dumps(index))


def configured(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        change(config)
        (folder / "config.json").write_text(json.dumps(config))

    return damage


def unprocessed(folder: Path) -> None:
    (folder / "preprocessor_config.json").unlink()


def of_no_size(folder: Path) -> None:
    (folder / "preprocessor_config.json").write_text('{"max_pixels": "many"}')


def of_no_edge(folder: Path) -> None:
    (folder / "preprocessor_config.json").write_text('{"size": {"longest_edge": "many"}}')


DAMAGE = [
    (of_no_edge, "thinker", LaunchError, r"preprocessor_config\.json: size\.longest_edge is 'many': it must be a num"),
    (unprocessed, "thinker", LaunchError, r"the checkpoint .* has no preprocessor_config\.json"),
    (of_no_size, "thinker", LaunchError, r"preprocessor_config\.json: max_pixels is 'many': it must be a number"),
    (
        configured(lambda c: c["thinker_config"].pop("vision_config")),
        "thinker",
        LaunchError,
        "has no usable thinker_config.vision_config",
    ),
    (lost, "code2wav", LaunchError, f"{SHARD} cannot be read: No such file"),
    (cut, "code2wav", LaunchError, rf"{SHARD} is damaged: it has \d+ bytes where its header says \d+"),
    (scrambled, "code2wav", LaunchError, f"{SHARD} is damaged: its header is none of a safetensors file"),
    (unknown_shard, "code2wav", LaunchError, "model-00003-of-00002.safetensors cannot be read: No such file"),
    (
        configured(lambda c: c.pop("talker_config")),
        "talker",
        LaunchError,
        "has no usable talker_config.text_config.hidden",
    ),
    (
        configured(lambda c: c["thinker_config"]["text_config"].update(num_hidden_layers=-1)),
        "thinker",
        LaunchError,
        r"has no usable thinker_config.text_config.num_hidden_layers: -1",
    ),
    (
        configured(lambda c: c["code2wav_config"].update(upsample_rates="8")),
        "code2wav",
        LaunchError,
        "has no usable code2wav_config.upsample_rates: '8'",
    ),
    (
        configured(lambda c: c.update(dtype="float8")),
        "thinker",
        LaunchError,
        "dtype 'float8' is none of float32, bfloat16",
    ),
    (configured(lambda c: c.update(model_type="llama")), "thinker", ConfigError, "its model_type is 'llama'"),
]


@pytest.mark.parametrize(("damage", "role", "kind", "line"), DAMAGE)
def test_what_is_damaged_is_said_in_one_line(
    small: Path, damage: Callable[[Path], None], role: str, kind: type[OmnizmqError], line: str
) -> None:
    assert need(small, role).weights > 0
    damage(small)
    with pytest.raises(kind, match=line) as caught:
        need(small, role)
    assert "\n" not in caught.value.message


def test_check_and_launch_refuse_a_damaged_checkpoint_before_anything_loads(small: Path) -> None:
    lost(small)
    for command in (["check"], ["launch", "--config"]):
        done = omnizmq(*command, "qwen3_omni", "--set", f"model={small}")
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == (
            f'omnizmq {command[0]}: --set model={small}: model = "{small}": '
            f"{small / SHARD} cannot be read: No such file or directory\n"
        )
