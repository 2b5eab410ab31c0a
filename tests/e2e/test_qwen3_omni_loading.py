"""Loading one stage of a checkpoint of Qwen3-Omni: what is read, and what is refused."""

from __future__ import annotations

import io
import json
import resource
import shutil
from pathlib import Path

import numpy as np
import pytest
import soundfile

pytest.importorskip("torch", reason="not installed: the extra `transformers`")
pytest.importorskip("transformers", reason="not installed: the extra `transformers`")

import torch
from safetensors.torch import load_file, save_file
from support.qwen3_omni import NAMES, Stages, context, make

from omnizmq.errors import ConfigError, LaunchError
from omnizmq.protocol import AudioPart, Message, Prompt, TextPart
from omnizmq.workers.engines.hf import engine as hf
from omnizmq.workers.engines.hf.checkpoint import INDEX
from omnizmq.workers.engines.qwen3_omni import tiny

pytestmark = pytest.mark.transformers

HUGE = 8 << 30

LOST = {
    "thinker": "thinker.model.layers.1.mlp.experts.2.up_proj.weight",
    "talker": "talker.model.layers.1.mlp.experts.3.down_proj.weight",
    "code2wav": "code2wav.decoder.1.block.2.conv1.conv.weight",
}


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return tiny.ensure(tmp_path_factory.mktemp("models"), 1)


@pytest.fixture
def checkpoint(pristine: Path, tmp_path: Path) -> Path:
    """A copy, to be damaged."""
    return Path(shutil.copytree(pristine, tmp_path / "copy"))


def shards(checkpoint: Path) -> dict[str, str]:
    shards: dict[str, str] = json.loads((checkpoint / INDEX).read_bytes())["weight_map"]
    return shards


def rewrite(checkpoint: Path, name: str, tensor: torch.Tensor | None) -> None:
    """Put a tensor into the checkpoint, or take it out."""
    index = shards(checkpoint)
    file = checkpoint / index.get(name, min(index.values()))
    tensors = load_file(file)
    if tensor is None:
        del tensors[name], index[name]
    else:
        tensors[name], index[name] = tensor, file.name
    save_file(tensors, file)
    (checkpoint / INDEX).write_text(json.dumps({"weight_map": index}))


def test_the_same_seed_makes_the_same_checkpoint(pristine: Path, tmp_path: Path) -> None:
    again = tiny.ensure(tmp_path, 1)
    for file in sorted(pristine.iterdir()):
        assert (again / file.name).read_bytes() == file.read_bytes(), file.name
    assert tiny.ensure(tmp_path, 1) == again
    assert load_file(min(tiny.ensure(tmp_path, 2).glob("model-*.safetensors"))).keys()
    assert sum(file.stat().st_size for file in pristine.iterdir()) < 5_000_000


@pytest.mark.parametrize("role", NAMES)
def test_a_stage_loads_without_the_shards_of_the_others(checkpoint: Path, role: str) -> None:
    own = {shard for name, shard in shards(checkpoint).items() if name.startswith(f"{role}.")}
    if role == "talker":
        own.add(shards(checkpoint)["thinker.model.embed_tokens.weight"])
    others = {*shards(checkpoint).values()} - own
    assert others
    for shard in others:
        (checkpoint / shard).unlink()
    make(role, checkpoint).close()


def test_of_a_shared_shard_only_the_stages_own_bytes_are_read(checkpoint: Path) -> None:
    """Another stage's tensor of 8 GiB, a hole in the same file: it would take a fault for each 64 KiB at least."""
    index = shards(checkpoint)
    shard = checkpoint / index["code2wav.code_embedding.weight"]
    content = shard.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header, data = json.loads(content[8 : 8 + length]), content[8 + length :]
    header["thinker.huge"] = {"dtype": "F32", "shape": [HUGE // 4], "data_offsets": [len(data), len(data) + HUGE]}
    text = json.dumps(header).encode()
    with shard.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + data)
        file.truncate(file.tell() + HUGE)
    (checkpoint / INDEX).write_text(json.dumps({"weight_map": {**index, "thinker.huge": shard.name}}))
    before = touched()
    make("code2wav", checkpoint).close()
    assert touched() - before < HUGE / 8


def touched() -> int:
    """Bytes that this process has read or mapped, at most."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    read = int(Path("/proc/self/io").read_text().split()[1])
    return read + (usage.ru_minflt + usage.ru_majflt) * (64 << 10)


@pytest.mark.parametrize("role", NAMES)
def test_a_missing_tensor_is_named(checkpoint: Path, role: str) -> None:
    rewrite(checkpoint, LOST[role], None)
    with pytest.raises(LaunchError, match=rf"the checkpoint lacks .*{LOST[role].removeprefix('code2wav.')}"):
        make(role, checkpoint)


@pytest.mark.parametrize("role", NAMES)
def test_an_unknown_tensor_is_named(checkpoint: Path, role: str) -> None:
    rewrite(checkpoint, f"{role}.extra.weight", torch.zeros(2))
    with pytest.raises(LaunchError, match=r"has unknown tensors: .*extra\.weight"):
        make(role, checkpoint)


def test_a_tensor_of_another_shape_is_named(checkpoint: Path) -> None:
    rewrite(checkpoint, "code2wav.code_embedding.weight", torch.zeros(3, 32))
    with pytest.raises(LaunchError, match=r"has tensors of another shape: code_embedding\.weight"):
        make("code2wav", checkpoint)


def test_another_models_checkpoint_is_refused(checkpoint: Path) -> None:
    (checkpoint / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(ConfigError, match="its model_type is 'llama'"):
        make("thinker", checkpoint)


def configured(checkpoint: Path, key: str, value: object) -> None:
    """Set one value of `config.json`."""
    document = table = json.loads((checkpoint / "config.json").read_bytes())
    *steps, last = key.split(".")
    for step in steps:
        table = table[step]
    table[last] = value
    (checkpoint / "config.json").write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("role", "key", "value", "line"),
    [
        ("thinker", "thinker_config", "x", "cannot be loaded as a thinker: .*thinker_config"),
        ("thinker", "thinker_config.text_config.num_attention_heads", 0, "cannot be loaded as a thinker: ZeroDivision"),
        ("thinker", "thinker_config.text_config.vocab_size", 7, "has tensors of another shape: lm_head.weight"),
        ("thinker", "thinker_config.text_config.num_hidden_layers", 4, r"the checkpoint lacks .*layers\.3\."),
        ("thinker", "talker_config.accept_hidden_layer", 99, "accept_hidden_layer is 99: there is no such layer"),
        ("thinker", "dtype", "floaty", "cannot be loaded as a thinker: .*floaty"),
        ("talker", "talker_config.speaker_id", {}, "it has no speakers"),
        ("talker", "talker_config.speaker_id", {"bob": 9999}, "speaker bob is 9999: there are 1088 embeddings"),
        ("talker", "talker_config.codec_eos_token_id", 9999, "codec_eos_token_id is 9999: there are 1088 embeddings"),
        ("talker", "tts_pad_token_id", -1, "tts_pad_token_id is -1: there are"),
        ("code2wav", "code2wav_config.upsample_rates", [2, 2], r"the checkpoint lacks decoder\.3"),
    ],
)
def test_a_configuration_that_does_not_fit_is_said_in_one_line(
    checkpoint: Path, role: str, key: str, value: object, line: str
) -> None:
    configured(checkpoint, key, value)
    with pytest.raises((LaunchError, ConfigError), match=line) as refused:
        make(role, checkpoint)
    assert "\n" not in refused.value.message


@pytest.mark.parametrize(
    ("file", "content", "line"),
    [
        ("tokenizer.json", "{}", "cannot be loaded as a thinker: KeyError"),
        ("tokenizer.json", '{"model": ', "the tokenizer of .* cannot be used"),
        ("chat_template.json", '{"chat_template": "{% if %}"}', "cannot be loaded as a thinker: TemplateSyntaxError"),
        ("chat_template.json", "{}", "has no chat_template"),
        ("preprocessor_config.json", "[]", "cannot be loaded as a thinker: TypeError"),
    ],
)
def test_a_file_that_cannot_be_used_is_said_in_one_line(checkpoint: Path, file: str, content: str, line: str) -> None:
    (checkpoint / file).write_text(content)
    with pytest.raises(LaunchError, match=line) as refused:
        make("thinker", checkpoint)
    assert "\n" not in refused.value.message


def test_a_thinker_without_a_talker_needs_nothing_of_one(checkpoint: Path) -> None:
    """As with a checkpoint that has no voice. Sounds are heard all the same."""
    document = json.loads((checkpoint / "config.json").read_bytes())
    del document["talker_config"], document["code2wav_config"]
    (checkpoint / "config.json").write_text(json.dumps({**document, "enable_audio_output": False}))
    engine = hf.create(context("thinker", str(checkpoint), Path("/nowhere"), {}, names=["thinker"]))
    file = io.BytesIO()
    soundfile.write(file, np.zeros(16_000, np.float32), 16_000, format="WAV")
    stages = Stages({"thinker": engine})
    prompt = Prompt(None, [Message("user", [TextPart("What?"), AudioPart(file.getvalue())])], None)
    stages.add("one", prompt, thinker={"max_tokens": 3})
    stages.run()
    assert stages.made["one"].usage["thinker"]["completion_tokens"] == 3


def test_a_tokenizer_that_cannot_be_read_is_named(checkpoint: Path) -> None:
    (checkpoint / "tokenizer.json").unlink()
    with pytest.raises(LaunchError, match=r"the tokenizer of .* cannot be used"):
        make("thinker", checkpoint)


def test_a_checkpoint_without_a_tokenizer_is_refused_with_what_is_missing(checkpoint: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (checkpoint / name).unlink()
    line = "a text has no tokens: it has no tokenizer.json, tokenizer_config.json, vocab.json, merges.txt"
    with pytest.raises(LaunchError, match=line):
        make("thinker", checkpoint)


def test_a_tiny_one_is_made_on_the_spot_and_once(tmp_path: Path) -> None:
    for role in ("code2wav", "talker"):
        make(role, "tiny-qwen3-omni:5", private_dir=tmp_path).close()
    made = [path for path in tmp_path.iterdir() if path.is_dir()]
    assert [path.name for path in made] == ["tiny-qwen3-omni-5"]
