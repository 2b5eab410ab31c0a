"""A tiny Qwen3-Omni with random weights, in the layout of the real checkpoint: for tests, and to try a deployment out.

Every part is there (experts, multimodal positions, encoders of sound and images, code groups, sliding window,
convolutions) and every file has its real name and form: shards with an index, one key an expert, configuration,
tokenizer with chat template, preprocessor. About 3 MB; it is built in a second or two. The same seed makes the same
weights, in one version of the library. What it says is noise.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    PreTrainedTokenizerFast,
    Qwen3OmniMoeConfig,
    Qwen3OmniMoeForConditionalGeneration,
    WhisperFeatureExtractor,
)

from omnizmq.workers.engines.hf import on_the_spot
from omnizmq.workers.engines.hf.byte_tokens import BYTE_CHARACTERS

ROLES = ("system", "user", "assistant")
SYLLABLES = tuple(a + b for a in "bdfgklmnprstvz" for b in "aeiou")
SPECIAL = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|audio_start|>", "<|audio_end|>", "<|audio_pad|>",
    "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>", "<tts_pad>", "<tts_text_bos>",
    "<tts_text_eod>",
)  # fmt: skip
SPEAKERS = ("chelsie", "ethan", "aiden")

CODES = 64
"""Entries of a codebook. The ids above them, 1,024 as in the real model, are special."""

GROUPS = 4
HIDDEN = 64
MELS = 16
SHARD_BYTES = 500_000

IMAGES = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "min_pixels": 3136,
    "max_pixels": 12_845_056,
    "patch_size": 16,
    "temporal_patch_size": 2,
    "merge_size": 2,
}
"""As the real model has it in `preprocessor_config.json`, beside what is of sound."""

CHAT_TEMPLATE = """\
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{% if message.content is string -%}
{{ message.content }}
{%- else -%}
{%- for part in message.content -%}
{%- if part.type == 'audio' -%}<|audio_start|><|audio_pad|><|audio_end|>
{%- elif part.type == 'image' -%}<|vision_start|><|image_pad|><|vision_end|>
{%- else -%}{{ part.text }}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%}"""


def ensure(folder: Path, seed: int) -> Path:
    """The checkpoint of this seed in `folder`, built unless it is there. Processes may call this side by side."""
    return on_the_spot.ensure(folder, f"tiny-qwen3-omni-{seed}", seed, build)


def build(folder: Path, seed: int = 0) -> None:
    """Write the checkpoint into `folder`."""
    tokenizer = make_tokenizer()
    model = Qwen3OmniMoeForConditionalGeneration(make_config(tokenizer)).train(False)
    with torch.no_grad():
        _draw(model, torch.Generator().manual_seed(seed), tokenizer)
    model.save_pretrained(folder, max_shard_size=SHARD_BYTES)
    tokenizer.save_pretrained(folder)
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": CHAT_TEMPLATE}))
    preprocessors = WhisperFeatureExtractor(feature_size=MELS, n_fft=400, hop_length=160, chunk_length=30).to_dict()
    (folder / "preprocessor_config.json").write_text(json.dumps({**preprocessors, **IMAGES}, indent=2))


# --- Tokenizer -------------------------------------------------------------------------------------------------------


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE: bytes, the role words and some syllables as one token each, then the special tokens."""
    vocabulary = {character: n for n, character in enumerate(BYTE_CHARACTERS)}
    merges: list[tuple[str, str]] = []
    for word in (*ROLES, *SYLLABLES):
        for end in range(2, len(word) + 1):
            if word[:end] not in vocabulary:
                merges.append((word[: end - 1], word[end - 1]))
                vocabulary[word[:end]] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        clean_up_tokenization_spaces=False,
    )


# --- Configuration ---------------------------------------------------------------------------------------------------


def make_config(tokenizer: PreTrainedTokenizerFast) -> Qwen3OmniMoeConfig:
    """The real model's shape, small. Special codec ids keep their distances from the end of the codebook."""
    ids = {token: tokenizer.convert_tokens_to_ids(token) for token in (*SPECIAL, *ROLES)}
    media = {
        "audio_token_id": ids["<|audio_pad|>"],
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"],
        "audio_start_token_id": ids["<|audio_start|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
    }
    return Qwen3OmniMoeConfig(
        thinker_config=_thinker(len(tokenizer), ids, media),
        talker_config=_talker(media),
        code2wav_config=_code2wav(),
        im_start_token_id=ids["<|im_start|>"],
        im_end_token_id=ids["<|im_end|>"],
        tts_pad_token_id=ids["<tts_pad>"],
        tts_bos_token_id=ids["<tts_text_bos>"],
        tts_eos_token_id=ids["<tts_text_eod>"],
        system_token_id=ids["system"],
        user_token_id=ids["user"],
        assistant_token_id=ids["assistant"],
        dtype="float32",
    )


def _layers(count: int) -> dict[str, Any]:
    return {
        "hidden_size": HIDDEN,
        "num_hidden_layers": count,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 4096,
    }


def _experts() -> dict[str, Any]:
    return {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "intermediate_size": 64}


_ROPE = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [8, 4, 4], "mrope_interleaved": True}


def _thinker(tokens: int, ids: dict[str, int], media: dict[str, int]) -> dict[str, Any]:
    return {
        **media,
        "user_token_id": ids["user"],
        "text_config": {**_layers(3), **_experts(), "vocab_size": tokens, "rope_parameters": _ROPE},
        "audio_config": {
            "num_mel_bins": MELS,
            "encoder_layers": 2,
            "encoder_attention_heads": 2,
            "encoder_ffn_dim": 64,
            "d_model": 32,
            "output_dim": HIDDEN,
            "downsample_hidden_size": 8,
        },
        "vision_config": {
            "depth": 3,
            "hidden_size": 32,
            "intermediate_size": 32,
            "num_heads": 2,
            "out_hidden_size": HIDDEN,
            "num_position_embeddings": 16,
            "deepstack_visual_indexes": [0, 1],
        },
    }


def _talker(media: dict[str, int]) -> dict[str, Any]:
    text = {
        **_layers(2),
        **_experts(),
        "vocab_size": CODES + 1024,
        "shared_expert_intermediate_size": 32,
        "rope_parameters": _ROPE,
    }
    return {
        **media,
        "text_config": text,
        "code_predictor_config": {
            **_layers(2),
            "vocab_size": CODES,
            "intermediate_size": 64,
            "num_code_groups": GROUPS,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
        },
        "num_code_groups": GROUPS,
        "thinker_hidden_size": HIDDEN,
        "accept_hidden_layer": 2,
        "spatial_merge_size": 2,
        "codec_pad_id": CODES + 100,
        "codec_bos_id": CODES + 101,
        "codec_eos_token_id": CODES + 102,
        "codec_nothink_id": CODES + 107,
        "codec_think_bos_id": CODES + 108,
        "codec_think_eos_id": CODES + 109,
        "speaker_id": {name: CODES + 253 + n for n, name in enumerate(SPEAKERS)},
    }


def _code2wav() -> dict[str, Any]:
    return {
        "codebook_size": CODES,
        "num_quantizers": GROUPS,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "sliding_window": 8,
        "decoder_dim": 32,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
    }


# --- Weights ---------------------------------------------------------------------------------------------------------


def _draw(
    model: Qwen3OmniMoeForConditionalGeneration, generator: torch.Generator, tokenizer: PreTrainedTokenizerFast
) -> None:
    """Draw all weights anew: the library's own small ones make one token for ever, and a nearly silent wave."""
    for name, weight in sorted(model.named_parameters()):
        if weight.dim() >= 2:
            fan_in = weight.shape[-1] if "experts" in name else math.prod(weight.shape[1:])
            table = "embed" in name and weight.dim() == 2
            weight.normal_(0, 1 if table else 1 / math.sqrt(fan_in), generator=generator)
        elif name.endswith(("scale", "gamma")):
            weight.fill_(0.5)
        elif name.endswith((".alpha", ".beta")):
            weight.zero_()
        elif name.endswith("bias"):
            weight.normal_(0, 0.1, generator=generator)
        else:  # Sharp attention: what comes next depends on the whole text, so that nothing repeats soon.
            weight.normal_(3 if name.endswith(("q_norm.weight", "k_norm.weight")) else 1, 0.1, generator=generator)
    _prefer_syllables(model.thinker.lm_head.weight, tokenizer)
    model.talker.codec_head.weight[model.config.talker_config.codec_eos_token_id] *= 0.8
    model.code2wav.decoder[-1].conv.weight *= 0.01  # far from the limits of a wave


def _prefer_syllables(head: torch.Tensor, tokenizer: PreTrainedTokenizerFast) -> None:
    """An answer is mostly made of syllables, with a stray byte; among the special tokens only its end can be drawn."""
    head[: len(BYTE_CHARACTERS)] *= 0.6
    head[ord(" ")] /= 0.6
    for token in SPECIAL:
        head[tokenizer.convert_tokens_to_ids(token)] *= 0.8 if token == "<|im_end|>" else 0.0
