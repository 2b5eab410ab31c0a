"""What a stage of Qwen3-Omni needs of memory (see `hf.memory`): its own tensors, and its largest steps.

The Talker has the Thinker's table of embeddings besides its own tensors. Of sound, the output of the audio encoder's
first convolution is the largest; of frames, the widest part of Code2Wav's decoder.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from omnizmq.workers.engines.hf.checkpoint import Checkpoint
from omnizmq.workers.engines.hf.memory import (
    MIB,
    Shape,
    chunk_frames,
    element_bytes,
    language,
    number,
    numbers,
    slot_tokens,
    vocoder,
    weights_bytes,
    widest,
)
from omnizmq.workers.memory import MemoryAsked, MemoryNeed

EMBEDDINGS = "thinker.model.embed_tokens.weight"
PREFIXES = {"thinker": ("thinker.",), "talker": ("talker.", EMBEDDINGS), "code2wav": ("code2wav.",)}
CONTEXT_FRAMES = 10
"""Which Code2Wav decodes again with each chunk (`wave`)."""

TOKENS_PER_S = 13
"""Of sound in a prompt."""

LARGER_IMAGES = 4
"""How many times the pixels that an image is scaled down to it may have before. With the real model's 12.8 million: 51
million, as much as cameras of phones have."""

SOUND_BYTES_PER_S = 3 * MIB // 4
"""What the audio preprocessor needs of the machine's memory. Measured."""

_TINY_BYTES = 3 * MIB
_TINY = {
    "thinker": Shape(3, 64, 4, 2, 16, experts_per_token=2, expert_hidden=32, vocabulary=355),
    "talker": Shape(2, 64, 4, 2, 16, experts_per_token=2, expert_hidden=32, vocabulary=1088),
}
"""Of `tiny`, which imports torch. Tests compare them."""


def estimate(asked: MemoryAsked, role: str, checkpoint: Checkpoint) -> MemoryNeed:
    """Raises `LaunchError` for a damaged checkpoint, one without the stage's tensors, or a value that is missing."""
    size = 4 if role == "code2wav" else element_bytes(asked, checkpoint)
    weights = weights_bytes(checkpoint, PREFIXES[role], size)
    config = checkpoint.config
    if role == "code2wav":
        return vocoder(asked, weights, _kept(config), _widest(config, chunk_frames(asked)))
    if role == "talker":
        return language(asked, weights, _shape(config, role), size, slot_tokens(asked))
    sound, prepared = _sound(config, slot_tokens(asked), size), _prepared(asked)
    return language(asked, weights, _shape(config, role), size, slot_tokens(asked), sound=sound, prepared=prepared)


def of_tiny(asked: MemoryAsked, role: str) -> MemoryNeed:
    """Of the checkpoint that is made on the spot, and is not there yet."""
    if role == "code2wav":
        return vocoder(asked, _TINY_BYTES, 0, 0)
    prepared = _prepared(asked) if role == "thinker" else 0
    return language(asked, _TINY_BYTES, _TINY[role], 4, slot_tokens(asked), prepared=prepared)


def _prepared(asked: MemoryAsked) -> int:
    """Of a sound that fills a slot, while its features are computed."""
    return slot_tokens(asked) * SOUND_BYTES_PER_S // TOKENS_PER_S


def _sound(config: Mapping[str, Any], tokens: int, size: int) -> int:
    """What the encoder's first convolution makes, which halves bins and frames, before and after its activation."""
    path = ("thinker_config", "audio_config")
    window = 2 * number(config, *path, "n_window")
    windows = math.ceil(tokens / TOKENS_PER_S * 100 / window)  # of frames, 100 a second
    at_once = min(windows, number(config, *path, "conv_chunksize"))
    area = math.ceil(number(config, *path, "num_mel_bins") / 2) * math.ceil(window / 2)
    return 2 * at_once * number(config, *path, "downsample_hidden_size") * area * size


def _widest(config: Mapping[str, Any], frames: int) -> int:
    path = ("code2wav_config",)
    length = (frames + CONTEXT_FRAMES) * math.prod(numbers(config, *path, "upsampling_ratios"))
    return widest(number(config, *path, "decoder_dim"), length, numbers(config, *path, "upsample_rates"))


def _kept(config: Mapping[str, Any]) -> int:
    """Values of one request: keys and values of its window, and hidden states of the frames that are decoded again."""
    path = ("code2wav_config",)
    hidden = number(config, *path, "hidden_size")
    head = hidden // number(config, *path, "num_attention_heads")
    window = 2 * number(config, *path, "num_hidden_layers") * number(config, *path, "num_key_value_heads") * head
    return window * number(config, *path, "sliding_window") + CONTEXT_FRAMES * hidden


def _shape(config: Mapping[str, Any], role: str) -> Shape:
    path = (f"{role}_config", "text_config")
    hidden, heads = number(config, *path, "hidden_size"), number(config, *path, "num_attention_heads")
    return Shape(
        layers=number(config, *path, "num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=number(config, *path, "num_key_value_heads"),
        head=number(config, *path, "head_dim", otherwise=hidden // heads),
        experts_per_token=number(config, *path, "num_experts_per_tok"),
        expert_hidden=number(config, *path, "moe_intermediate_size"),
        vocabulary=number(config, *path, "vocab_size"),
    )
