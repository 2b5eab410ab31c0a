"""What a stage of Qwen3-Omni needs of memory (see `hf.memory`): its own tensors, and its largest steps.

The Talker has the Thinker's table of embeddings besides its own tensors. Of sound, the output of the audio encoder's
first convolution is the largest; of images, a layer of the vision encoder with all patches of a slot at once; of
frames, the widest part of Code2Wav's decoder.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from omnizmq.errors import LaunchError
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
AUDIO_TENSORS = "thinker.audio_tower."
VISION_TENSORS = "thinker.visual."
CONTEXT_FRAMES = 10
"""Which Code2Wav decodes again with each chunk (`wave`)."""

TOKENS_PER_S = 13
"""Of sound in a prompt."""

LARGER_IMAGES = 4
"""How many times the pixels that an image is scaled down to it may have before. With the real model's 12.8 million: 51
million, as much as cameras of phones have."""

SOUND_BYTES_PER_S = 3 * MIB // 4
"""What the audio preprocessor needs of the machine's memory. Measured."""

DECODED_BYTES = 34
SCALED_BYTES = 100
"""What a pixel of an image needs of the machine's memory: where it is decoded and scaled down, and where it becomes
patches. Measured, the most of PNG, JPEG and WebP."""

_VISION_COPIES = 22
_VISION_FLOATS = 5
"""Of a layer's input, alive at once, and in float32 whatever the dtype: the patches, queries and keys as they are
turned, what attention and MLP make of them. Measured on a CPU, with the sizes of the real model's layers."""

SCALED_DOWN_TO = 28 * 28 * 1280
"""Pixels, where `preprocessor_config.json` says nothing: the library's `Qwen2VLImageProcessorPil`."""

_TINY_SIZES = 32, 12_845_056
_TINY_BYTES = 3 * MIB
_TINY = {
    "thinker": Shape(3, 64, 4, 2, 32, experts_per_token=2, expert_hidden=32, vocabulary=355),
    "talker": Shape(2, 64, 4, 2, 32, experts_per_token=2, expert_hidden=32, vocabulary=1088),
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
    tokens = slot_tokens(asked)
    return language(
        asked,
        weights,
        _shape(config, role),
        size,
        tokens,
        encoders=max(_sound(config, tokens, size), _vision(config, tokens, size)),
        images=_layers_of_images(config, tokens, size),
        prepared=_prepared(tokens, *_image_sizes(checkpoint)),
    )


def beside(checkpoint: Checkpoint, tokens: int, size: int) -> tuple[int, int]:
    """Of a Thinker whose language model another library computes: what the encoders need to compute prompts of so many
    tokens, and what those are prepared in. Raises `LaunchError`."""
    config = checkpoint.config
    return max(_sound(config, tokens, size), _vision(config, tokens, size)), _prepared(
        tokens, *_image_sizes(checkpoint)
    )


def of_tiny(asked: MemoryAsked, role: str) -> MemoryNeed:
    """Of the checkpoint that is made on the spot, and is not there yet."""
    if role == "code2wav":
        return vocoder(asked, _TINY_BYTES, 0, 0)
    prepared = _prepared(slot_tokens(asked), *_TINY_SIZES) if role == "thinker" else 0
    return language(asked, _TINY_BYTES, _TINY[role], 4, slot_tokens(asked), prepared=prepared)


def _prepared(tokens: int, side: int, scaled_down_to: int) -> int:
    """Of a sound that fills a slot, while its features are computed; or of images. `side`: pixels of a token's."""
    sound, pixels = tokens * SOUND_BYTES_PER_S // TOKENS_PER_S, tokens * side**2
    larger = LARGER_IMAGES * scaled_down_to * DECODED_BYTES if scaled_down_to <= pixels else 0
    return max(sound, pixels * SCALED_BYTES, larger)


def _image_sizes(checkpoint: Checkpoint) -> tuple[int, int]:
    """The side of a token's square in pixels, and how many pixels an image may have that is not scaled down."""
    path = ("thinker_config", "vision_config")
    side = number(checkpoint.config, *path, "patch_size") * number(checkpoint.config, *path, "spatial_merge_size")
    preprocessor = checkpoint.json("preprocessor_config.json")
    size = preprocessor.get("size")
    key, said = "max_pixels", preprocessor.get("max_pixels")
    if said is None and isinstance(size, dict):
        key, said = "size.longest_edge", size.get("longest_edge")
    pixels = SCALED_DOWN_TO if said is None else said
    if not isinstance(pixels, int) or pixels < 1:
        raise LaunchError(f"{checkpoint.path}/preprocessor_config.json: {key} is {pixels!r}: it must be a number")
    return side, pixels


def _vision(config: Mapping[str, Any], tokens: int, size: int) -> int:
    """The encoder with all patches of a slot at once; and what it gives."""
    path = ("thinker_config", "vision_config")
    patches = tokens * number(config, *path, "spatial_merge_size") ** 2
    layer = number(config, *path, "hidden_size") * (_VISION_COPIES * size + _VISION_FLOATS * 4)
    return patches * layer + _layers_of_images(config, tokens, size)


def _layers_of_images(config: Mapping[str, Any], tokens: int, size: int) -> int:
    """What the encoder gives: rows for the prompt, and as many for each of the Thinker's first layers."""
    path = ("thinker_config", "vision_config")
    layers = 1 + len(numbers(config, *path, "deepstack_visual_indexes", least=0))
    return tokens * layers * number(config, *path, "out_hidden_size") * size


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
