"""Checkpoints of safetensors files with true headers and holes for tensors: of any size, on any disk, without torch."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from omnizmq.workers.engines.hf.checkpoint import INDEX, ITEM_BYTES

Shapes = Mapping[str, Sequence[int]]


def write(folder: Path, config: Mapping[str, Any], shards: Sequence[Shapes], dtype: str = "BF16") -> None:
    """`config.json`, the index, and a file for each of `shards`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "preprocessor_config.json").write_text(json.dumps(IMAGES))
    weight_map = {}
    for number, shapes in enumerate(shards, 1):
        name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        write_holes(folder / name, shapes, dtype)
        weight_map.update(dict.fromkeys(shapes, name))
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))


def write_holes(file: Path, shapes: Shapes, dtype: str) -> None:
    header, end = {}, 0
    for name, shape in shapes.items():
        nbytes = ITEM_BYTES[dtype]
        for length in shape:
            nbytes *= length
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [end, end + nbytes]}
        end += nbytes
    text = json.dumps(header).encode()
    with file.open("wb") as opened:
        opened.write(len(text).to_bytes(8, "little") + text)
        opened.truncate(opened.tell() + end)


# --- Qwen3-Omni-30B-A3B ----------------------------------------------------------------------------------------------

TEXT = {
    "thinker": {
        "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4,
        "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768,
        "vocab_size": 152064,
    },
    "talker": {
        "hidden_size": 1024, "num_hidden_layers": 20, "num_attention_heads": 16, "num_key_value_heads": 2,
        "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 6, "moe_intermediate_size": 384,
        "vocab_size": 3072, "shared_expert_intermediate_size": 768,
    },
}  # fmt: skip
AUDIO = {
    "d_model": 1280, "encoder_layers": 32, "encoder_attention_heads": 20, "encoder_ffn_dim": 5120,
    "downsample_hidden_size": 480, "num_mel_bins": 128, "n_window": 50, "conv_chunksize": 500, "output_dim": 2048,
}  # fmt: skip
VISION = {
    "hidden_size": 1152, "intermediate_size": 4304, "patch_size": 16, "temporal_patch_size": 2, "spatial_merge_size": 2,
    "in_channels": 3, "out_hidden_size": 2048, "deepstack_visual_indexes": [8, 16, 24],
}  # fmt: skip
CODE2WAV = {
    "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 8, "num_attention_heads": 16,
    "num_key_value_heads": 16, "sliding_window": 72, "codebook_size": 2048, "num_quantizers": 16,
    "decoder_dim": 1536, "upsample_rates": [8, 5, 4, 3], "upsampling_ratios": [2, 2],
}  # fmt: skip
REAL: dict[str, Any] = {
    "model_type": "qwen3_omni_moe",
    "dtype": "bfloat16",
    "thinker_config": {"text_config": TEXT["thinker"], "audio_config": AUDIO, "vision_config": VISION},
    "talker_config": {"text_config": TEXT["talker"]},
    "code2wav_config": CODE2WAV,
}
"""What the estimates need of the published config.json, values as there (Qwen/Qwen3-Omni-30B-A3B-Instruct on the hub;
read in a copy, github.com/yangzy39/FuseOmni, models/Qwen3-Omni-30B-A3B-Instruct)."""

IMAGES = {"size": {"shortest_edge": 3136, "longest_edge": 12_845_056}}
EMBEDDINGS = (152064, 2048)
REAL_PARAMETERS = 35_259_818_545
"""`total_parameters` of the published model.safetensors.index.json, in the same copy."""


def real(folder: Path) -> None:
    """The whole model by the names and shapes of its library (transformers 5.24), one key an expert as published, in 15
    files as it is published: 70 GB that take some megabytes of a disk."""
    shapes = {**dict(_thinker()), **dict(_talker()), **dict(_code2wav())}
    names = list(shapes)
    part = -(-len(names) // 15)
    shards = [{name: shapes[name] for name in names[start : start + part]} for start in range(0, len(names), part)]
    write(folder, REAL, shards)


Tensors = Iterator[tuple[str, Sequence[int]]]


def _linear(name: str, outputs: int, inputs: int, bias: bool = False) -> Tensors:
    yield f"{name}.weight", (outputs, inputs)
    if bias:
        yield f"{name}.bias", (outputs,)


def _norm(name: str, size: int, bias: bool = False) -> Tensors:
    yield f"{name}.weight", (size,)
    if bias:
        yield f"{name}.bias", (size,)


def _attention(name: str, hidden: int, heads: int, kv_heads: int, head: int, norms: bool = True) -> Tensors:
    yield from _linear(f"{name}.q_proj", heads * head, hidden)
    yield from _linear(f"{name}.k_proj", kv_heads * head, hidden)
    yield from _linear(f"{name}.v_proj", kv_heads * head, hidden)
    yield from _linear(f"{name}.o_proj", hidden, heads * head)
    if norms:
        yield from _norm(f"{name}.q_norm", head)
        yield from _norm(f"{name}.k_norm", head)


def _mlp(name: str, hidden: int, inner: int) -> Tensors:
    yield from _linear(f"{name}.gate_proj", inner, hidden)
    yield from _linear(f"{name}.up_proj", inner, hidden)
    yield from _linear(f"{name}.down_proj", hidden, inner)


def _language(name: str, text: Mapping[str, int]) -> Tensors:
    hidden = text["hidden_size"]
    for n in range(text["num_hidden_layers"]):
        layer = f"{name}.layers.{n}"
        yield from _attention(
            f"{layer}.self_attn", hidden, text["num_attention_heads"], text["num_key_value_heads"], text["head_dim"]
        )
        yield from _linear(f"{layer}.mlp.gate", text["num_experts"], hidden)
        for expert in range(text["num_experts"]):
            yield from _mlp(f"{layer}.mlp.experts.{expert}", hidden, text["moe_intermediate_size"])
        if shared := text.get("shared_expert_intermediate_size"):
            yield from _mlp(f"{layer}.mlp.shared_expert", hidden, shared)
            yield from _linear(f"{layer}.mlp.shared_expert_gate", 1, hidden)
        yield from _norm(f"{layer}.input_layernorm", hidden)
        yield from _norm(f"{layer}.post_attention_layernorm", hidden)
    yield from _norm(f"{name}.norm", hidden)


def _thinker() -> Tensors:
    text = TEXT["thinker"]
    yield "thinker.model.embed_tokens.weight", (text["vocab_size"], text["hidden_size"])
    yield from _language("thinker.model", text)
    yield "thinker.lm_head.weight", (text["vocab_size"], text["hidden_size"])
    yield from _audio_tower()
    yield from _vision()


def _audio_tower() -> Tensors:
    tower, width, channels = "thinker.audio_tower", AUDIO["d_model"], AUDIO["downsample_hidden_size"]
    for n in range(AUDIO["encoder_layers"]):
        layer = f"{tower}.layers.{n}"
        for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
            yield from _linear(f"{layer}.self_attn.{part}", width, width, bias=True)
        yield from _norm(f"{layer}.self_attn_layer_norm", width, bias=True)
        yield from _linear(f"{layer}.fc1", AUDIO["encoder_ffn_dim"], width, bias=True)
        yield from _linear(f"{layer}.fc2", width, AUDIO["encoder_ffn_dim"], bias=True)
        yield from _norm(f"{layer}.final_layer_norm", width, bias=True)
    yield from _norm(f"{tower}.ln_post", width, bias=True)
    for n, inputs in enumerate((1, channels, channels), 1):
        yield f"{tower}.conv2d{n}.weight", (channels, inputs, 3, 3)
        yield f"{tower}.conv2d{n}.bias", (channels,)
    yield from _linear(f"{tower}.conv_out", width, channels * AUDIO["num_mel_bins"] // 8)
    yield from _linear(f"{tower}.proj1", width, width, bias=True)
    yield from _linear(f"{tower}.proj2", AUDIO["output_dim"], width, bias=True)


def _vision() -> Tensors:
    """27 blocks of 1,152, and mergers of 2 x 2 patches."""
    name, width, inner, merged, out = "thinker.visual", 1152, 4304, 4608, 2048
    yield f"{name}.patch_embed.proj.weight", (width, 3, 2, 16, 16)
    yield f"{name}.patch_embed.proj.bias", (width,)
    yield f"{name}.pos_embed.weight", (2304, width)
    for n in range(27):
        block = f"{name}.blocks.{n}"
        yield from _norm(f"{block}.norm1", width, bias=True)
        yield from _norm(f"{block}.norm2", width, bias=True)
        yield from _linear(f"{block}.attn.qkv", 3 * width, width, bias=True)
        yield from _linear(f"{block}.attn.proj", width, width, bias=True)
        yield from _linear(f"{block}.mlp.linear_fc1", inner, width, bias=True)
        yield from _linear(f"{block}.mlp.linear_fc2", width, inner, bias=True)
    for merger, normed in ((f"{name}.merger", width), *((f"{name}.merger_list.{n}", merged) for n in range(3))):
        yield from _norm(f"{merger}.ln_q", normed, bias=True)
        yield from _linear(f"{merger}.mlp.0", merged, merged, bias=True)
        yield from _linear(f"{merger}.mlp.2", out, merged, bias=True)


def _talker() -> Tensors:
    text, thinker = TEXT["talker"], TEXT["thinker"]["hidden_size"]
    hidden = text["hidden_size"]
    yield from _language("talker.model", text)
    yield "talker.model.codec_embedding.weight", (text["vocab_size"], hidden)
    yield "talker.codec_head.weight", (text["vocab_size"], hidden)
    for name in ("talker.text_projection", "talker.hidden_projection"):
        yield from _linear(f"{name}.linear_fc1", thinker, thinker, bias=True)
        yield from _linear(f"{name}.linear_fc2", hidden, thinker, bias=True)
    predictor = "talker.code_predictor"
    for n in range(5):
        layer = f"{predictor}.model.layers.{n}"
        yield from _attention(f"{layer}.self_attn", hidden, 16, 8, 128)
        yield from _mlp(f"{layer}.mlp", hidden, 3072)
        yield from _norm(f"{layer}.input_layernorm", hidden)
        yield from _norm(f"{layer}.post_attention_layernorm", hidden)
    yield from _norm(f"{predictor}.model.norm", hidden)
    for n in range(CODE2WAV["num_quantizers"] - 1):  # type: ignore[operator]
        yield f"{predictor}.model.codec_embedding.{n}.weight", (CODE2WAV["codebook_size"], hidden)  # type: ignore[misc]
        yield f"{predictor}.lm_head.{n}.weight", (CODE2WAV["codebook_size"], hidden)  # type: ignore[misc]


def _code2wav() -> Tensors:
    hidden, inner = 1024, 3072
    yield "code2wav.code_embedding.weight", (16 * 2048, hidden)
    for n in range(8):
        layer = f"code2wav.pre_transformer.layers.{n}"
        yield from _attention(f"{layer}.self_attn", hidden, 16, 16, 64, norms=False)
        yield from _mlp(f"{layer}.mlp", hidden, inner)
        for part in ("input_layernorm", "post_attention_layernorm"):
            yield from _norm(f"{layer}.{part}", hidden)
        for part in ("self_attn_layer_scale", "mlp_layer_scale"):
            yield f"{layer}.{part}.scale", (hidden,)
    yield from _norm("code2wav.pre_transformer.norm", hidden)
    for n in range(2):
        yield from _convolution(f"code2wav.upsample.{n}.0.conv", hidden, hidden, 2)
        yield from _convolution(f"code2wav.upsample.{n}.1.dwconv.conv", hidden, 1, 7)
        yield from _norm(f"code2wav.upsample.{n}.1.norm", hidden, bias=True)
        yield from _linear(f"code2wav.upsample.{n}.1.pwconv1", 4 * hidden, hidden, bias=True)
        yield from _linear(f"code2wav.upsample.{n}.1.pwconv2", hidden, 4 * hidden, bias=True)
        yield f"code2wav.upsample.{n}.1.gamma", (hidden,)
    yield from _decoder()


def _decoder() -> Tensors:
    yield from _convolution("code2wav.decoder.0.conv", 1536, 1024, 7)
    channels = 1536
    for n, rate in enumerate((8, 5, 4, 3), 1):
        block, half = f"code2wav.decoder.{n}.block", channels // 2
        yield from _snake(f"{block}.0", channels)
        yield f"{block}.1.conv.weight", (channels, half, 2 * rate)  # transposed: inputs come first
        yield f"{block}.1.conv.bias", (half,)
        for unit in (2, 3, 4):
            yield from _snake(f"{block}.{unit}.act1", half)
            yield from _convolution(f"{block}.{unit}.conv1.conv", half, half, 7)
            yield from _snake(f"{block}.{unit}.act2", half)
            yield from _convolution(f"{block}.{unit}.conv2.conv", half, half, 1)
        channels = half
    yield from _snake("code2wav.decoder.5", channels)
    yield from _convolution("code2wav.decoder.6.conv", 1, channels, 7)


def _convolution(name: str, outputs: int, inputs: int, kernel: int) -> Tensors:
    yield f"{name}.weight", (outputs, inputs, kernel)
    yield f"{name}.bias", (outputs,)


def _snake(name: str, channels: int) -> Tensors:
    yield f"{name}.alpha", (channels,)
    yield f"{name}.beta", (channels,)
