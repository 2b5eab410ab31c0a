"""What a stage of CSM needs of memory (see `hf.memory`)."""

from __future__ import annotations

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

PREFIXES = {
    "talker": ("backbone_model.", "depth_decoder.", "embed_text_tokens.", "lm_head."),
    "code2wav": tuple(f"codec_model.{part}." for part in ("quantizer", "upsample", "decoder_transformer", "decoder")),
}
CONTEXT_FRAMES = 12
"""Which Code2Wav decodes again with each chunk: an upper bound. At Mimi's published sizes (the defaults of the
library's `MimiConfig`) `code2wav` finds 8 positions, 4 frames."""

_TINY_BYTES = 2 * MIB
_TINY = Shape(2, 64, 4, 2, 16, experts_per_token=1, expert_hidden=3 * 64, vocabulary=67)
_TINY_POSITIONS = 2048
"""Of `tiny`, which imports torch. Tests compare them."""


def estimate(asked: MemoryAsked, role: str, checkpoint: Checkpoint) -> MemoryNeed:
    """Raises `LaunchError` for a damaged checkpoint, one without the stage's tensors, or a value that is missing."""
    size = 4 if role == "code2wav" else element_bytes(asked, checkpoint)
    weights = weights_bytes(checkpoint, PREFIXES[role], size)
    config = checkpoint.config
    if role == "code2wav":
        return vocoder(asked, weights, _kept(config), _widest(config, chunk_frames(asked)))
    tokens = min(slot_tokens(asked), number(config, "max_position_embeddings"))
    return language(asked, weights, _shape(config), size, tokens)


def of_tiny(asked: MemoryAsked, role: str) -> MemoryNeed:
    """Of the checkpoint that is made on the spot, and is not there yet."""
    if role == "code2wav":
        return vocoder(asked, _TINY_BYTES, 0, 0)
    return language(asked, _TINY_BYTES, _TINY, 4, min(slot_tokens(asked), _TINY_POSITIONS))


def _shape(config: Mapping[str, Any]) -> Shape:
    hidden, heads = number(config, "hidden_size"), number(config, "num_attention_heads")
    return Shape(
        layers=number(config, "num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=number(config, "num_key_value_heads"),
        head=number(config, "head_dim", otherwise=hidden // heads),
        experts_per_token=1,
        expert_hidden=3 * number(config, "intermediate_size"),
        vocabulary=number(config, "vocab_size"),
    )


def _kept(config: Mapping[str, Any]) -> int:
    """Values of one request: keys and values of its window, and the frames that are decoded again."""
    path = ("codec_config",)
    hidden, heads = number(config, *path, "hidden_size"), number(config, *path, "num_attention_heads")
    head = number(config, *path, "head_dim", otherwise=hidden // heads)
    window = 2 * number(config, *path, "num_hidden_layers") * number(config, *path, "num_key_value_heads") * head
    return window * number(config, *path, "sliding_window") + 2 * CONTEXT_FRAMES * hidden


def _widest(config: Mapping[str, Any], frames: int) -> int:
    """Two positions a frame go into the decoder, whose first part has twice the filters for each block that follows."""
    rates = numbers(config, "codec_config", "upsampling_ratios")
    channels = number(config, "codec_config", "num_filters") * 2 ** len(rates)
    return widest(channels, 2 * (frames + CONTEXT_FRAMES), rates)
