"""A tiny CSM with random weights, in the layout of the real checkpoint: for tests, and to try a deployment out.

About 1 MB; built in a second. The same seed makes the same weights. What it says is noise.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import CsmConfig, CsmForConditionalGeneration, PreTrainedTokenizerFast

from omnizmq.workers.engines.hf import on_the_spot
from omnizmq.workers.engines.hf.byte_tokens import BYTE_CHARACTERS

BEGIN, END, AUDIO, AUDIO_END = "<|begin_of_text|>", "<|end_of_text|>", "<|AUDIO|>", "<|audio_eos|>"
SPECIAL = (BEGIN, END, AUDIO, AUDIO_END)

CODES = 64
"""Entries of a codebook. Three ids above them are special, as in the real model."""

GROUPS = 4
HIDDEN = 64

CHAT_TEMPLATE = """\
{%- for message in messages -%}
{%- for part in message.content -%}
<|begin_of_text|>[{{ message.role }}]{{ part.text }}<|end_of_text|>
{%- endfor -%}
{%- endfor -%}"""


def ensure(folder: Path, seed: int) -> Path:
    """The checkpoint of this seed in `folder`, built unless it is there. Processes may call this side by side."""
    return on_the_spot.ensure(folder, f"tiny-csm-{seed}", seed, build)


def build(folder: Path, seed: int = 0) -> None:
    """Write the checkpoint into `folder`."""
    tokenizer = make_tokenizer()
    model = CsmForConditionalGeneration(make_config(tokenizer)).train(False)
    with torch.no_grad():
        _draw(model, torch.Generator().manual_seed(seed))
    model.save_pretrained(folder, max_shard_size=500_000)
    tokenizer.save_pretrained(folder)


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Bytes, then the special tokens."""
    vocabulary = {character: n for n, character in enumerate(BYTE_CHARACTERS)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=BEGIN, eos_token=END, pad_token=END)
    made.chat_template = CHAT_TEMPLATE
    return made


def make_config(tokenizer: PreTrainedTokenizerFast) -> CsmConfig:
    """The real model's shape, small: 1,920 samples a frame, and a codec with two positions a frame."""
    ids = {token: tokenizer.convert_tokens_to_ids(token) for token in SPECIAL}
    layers: dict[str, Any] = {"num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 16}
    rope = {"rope_type": "default", "rope_theta": 1e4}
    decoder = {**layers, "vocab_size": CODES + 3, "num_codebooks": GROUPS, "num_key_value_heads": 2}
    return CsmConfig(
        **decoder,
        text_vocab_size=len(tokenizer),
        hidden_size=HIDDEN,
        intermediate_size=64,
        max_position_embeddings=2048,
        rope_parameters=rope,
        bos_token_id=ids[BEGIN],
        pad_token_id=ids[AUDIO],
        audio_token_id=ids[AUDIO],
        audio_eos_token_id=ids[AUDIO_END],
        codebook_pad_token_id=CODES + 2,
        codebook_eos_token_id=0,
        depth_decoder_config={
            **decoder,
            "backbone_hidden_size": HIDDEN,
            "hidden_size": 32,
            "intermediate_size": 64,
            "max_position_embeddings": GROUPS + 1,
            "rope_parameters": rope,
        },
        codec_config={
            **layers,
            "model_type": "mimi",
            "codebook_size": CODES,
            "codebook_dim": 16,
            "vector_quantization_hidden_dimension": 16,
            "num_quantizers": GROUPS,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_key_value_heads": 4,
            "num_filters": 4,
            "upsample_groups": 32,
            "sliding_window": 16,
        },
        dtype="float32",
    )


def _draw(model: CsmForConditionalGeneration, generator: torch.Generator) -> None:
    """Draw all weights anew: the library's own small ones repeat one frame for ever, and a nearly silent wave."""
    for name, weight in sorted((*model.named_parameters(), *model.named_buffers())):
        if name.endswith(("embed_sum", "embed_tokens.weight", "embed_audio_tokens.weight", "embed_text_tokens.weight")):
            weight.normal_(0, 1, generator=generator)
        elif weight.dim() >= 2:
            fan_in = weight.shape[1] if "codebooks_head" in name else math.prod(weight.shape[1:])
            weight.normal_(0, 1 / math.sqrt(fan_in), generator=generator)
        elif name.endswith("layer_scale.scale"):
            weight.fill_(0.5)
        elif name.endswith("bias"):
            weight.normal_(0, 0.1, generator=generator)
    model.lm_head.weight[CODES:] = 0  # what no codebook has is never the likeliest
    model.depth_decoder.codebooks_head.weight[:, :, CODES:] = 0
    model.codec_model.decoder.decoder_seanet.layers[-1].conv.weight *= 0.2  # far from the limits of a wave
