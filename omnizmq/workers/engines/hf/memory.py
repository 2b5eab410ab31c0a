"""What stages of any model by `transformers` need of memory, from headers and `config.json` alone: no torch.

Weights: the stage's own tensors in the dtype in which they are computed. Slots: keys and values of all slots, as
`hf.slots` takes them at the start.

Workspace: the largest step's intermediate results, by what the library's layers hold at once (transformers 5.24): a
prompt of a whole slot, or a step of all slots. On top comes what the runtime keeps on a device.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from omnizmq.errors import LaunchError
from omnizmq.workers.engines.hf.options import CHUNK_FRAMES, SLOT_TOKENS, held_slots
from omnizmq.workers.memory import MemoryAsked, MemoryNeed

if TYPE_CHECKING:
    from omnizmq.workers.engines.hf.checkpoint import Checkpoint

MIB = 1 << 20
_DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_PROCESS_BYTES = 380 * MIB
"""Python, torch and transformers on a CPU, before a model. Measured."""

_HEAP_BYTES = 32 * MIB
"""What torch's small buffers and the heap between them come to on a CPU. Measured."""

_DECODER_COPIES = 14
"""Of the decoder's widest part, alive at once: residual, input and steps of its activation, a convolution's output.
Measured."""

_CUDA_DEVICE_BYTES = 1024 * MIB
"""The CUDA context with the kernels of torch, the workspaces of its libraries, and what lies between its blocks. Not
measured: contexts take some 500 MiB, and as much again is left for the others."""

_CUDA_PROCESS_BYTES = 3072 * MIB
"""CUDA's libraries in the machine's memory. Not measured."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Layers of a stage that makes tokens. Without experts: one of them a token, of three times the MLP's width, since
    nothing of it is added up."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head: int
    experts_per_token: int
    expert_hidden: int
    vocabulary: int


def language(
    asked: MemoryAsked,
    weights: int,
    shape: Shape,
    size: int,
    tokens: int,
    *,
    encoders: int = 0,
    images: int = 0,
    prepared: int = 0,
) -> MemoryNeed:
    """Of a stage that makes tokens. `size`: bytes of an element; `tokens`: of a slot; `encoders`: what those of sound
    and images take; `images`: what a prompt has of images besides; `prepared`: what prompts are prepared in, of the
    machine's memory."""
    slots = held_slots(asked.options, asked.max_inflight)
    return MemoryNeed(
        weights=weights,
        slots=slots * tokens * 2 * shape.layers * shape.kv_heads * shape.head * size,
        workspace=max(_prompt(shape, tokens, size) + images, _batch(shape, slots, tokens, size), encoders)
        + _on_device(asked),
        process=_process(asked) + prepared,
        slot_count=slots,
        notes=_notes(asked, slots),
    )


def vocoder(asked: MemoryAsked, weights: int, kept: int, widest: int) -> MemoryNeed:
    """Of a stage that makes sound, in float32. `kept`: values that it keeps of a request; `widest`: values of its
    decoder's widest part. On a CPU the library of its convolutions has a second copy of the weights."""
    second = weights if asked.on_cpu else 0
    return MemoryNeed(
        weights=weights,
        slots=asked.max_registered * kept * 4,
        workspace=_DECODER_COPIES * widest * 4 + second + _on_device(asked),
        process=_process(asked),
    )


def widest(channels: int, length: int, rates: Iterable[int]) -> int:
    """Values of a decoder's widest part: each block halves the channels and lengthens what goes through them."""
    most = channels * length
    for rate in rates:
        channels, length = channels // 2, length * rate
        most = max(most, channels * length)
    return most


def weights_bytes(checkpoint: Checkpoint, prefixes: Iterable[str], size: int) -> int:
    """Of all tensors whose names begin so. Raises `LaunchError`."""
    return size * sum(math.prod(entry.shape) for entry in checkpoint.find(prefixes).values())


def chunk_frames(asked: MemoryAsked) -> int:
    """The largest chunk that its talker is told to make."""
    options = next(iter(asked.sources.values()), {})
    return max(int(options.get("chunk_frames", CHUNK_FRAMES)), int(options.get("initial_chunk_frames", 0)))


def slot_tokens(asked: MemoryAsked) -> int:
    """The option, or its default."""
    return int(asked.options.get("slot_tokens", SLOT_TOKENS))


def _on_device(asked: MemoryAsked) -> int:
    return _HEAP_BYTES if asked.on_cpu else _CUDA_DEVICE_BYTES


def _process(asked: MemoryAsked) -> int:
    return _PROCESS_BYTES if asked.on_cpu else _CUDA_PROCESS_BYTES


def _notes(asked: MemoryAsked, slots: int) -> tuple[str, ...]:
    if slots >= asked.max_inflight:
        return ()
    return (
        f"stage {asked.stage} has {slots} slots and max_inflight = {asked.max_inflight}: of the requests that are let "
        f"run, {asked.max_inflight - slots} wait inside its engine; with max_inflight = {slots} they wait in sight",
    )


def element_bytes(asked: MemoryAsked, checkpoint: Checkpoint) -> int:
    """Of the dtype that the stage will choose; older checkpoints call it `torch_dtype`. Raises `LaunchError`."""
    config = checkpoint.config
    named = asked.options.get("dtype") or config.get("dtype") or config.get("torch_dtype") or "float32"
    if named not in _DTYPE_BYTES:
        raise LaunchError(f"{checkpoint.path}/config.json: dtype {named!r} is none of {', '.join(_DTYPE_BYTES)}")
    return _DTYPE_BYTES[named]


def _prompt(shape: Shape, tokens: int, size: int) -> int:
    """One prompt of `tokens`. Attention and experts take turns; both go on top of the hidden states.

    Experts: the tokens' rows, once an expert that a token goes to, with what is made of them before they are added up.
    Attention: queries, keys and values of all heads, its output, and the mask as numbers.
    """
    rows = tokens * shape.experts_per_token
    experts = rows * (3 * shape.hidden + shape.expert_hidden)
    attention = 6 * tokens * shape.heads * shape.head + tokens * tokens
    return (4 * tokens * shape.hidden + max(experts, attention)) * size + tokens * tokens


def _batch(shape: Shape, slots: int, tokens: int, size: int) -> int:
    """One token of each slot, all of them full: a layer's keys and values, gathered where the slots do not lie side by
    side, or logits in the model's dtype and in float32."""
    gathered = 2 * slots * tokens * shape.kv_heads * shape.head * size
    logits = slots * shape.vocabulary * (size + 2 * 4) + 8 * 4 * shape.vocabulary
    return max(gathered, logits)


def number(config: Mapping[str, Any], *path: str, otherwise: int | None = None) -> int:
    """A whole number, at least 1. Raises `LaunchError`."""
    value = _at(config, path)
    if value is None and otherwise is not None:
        return otherwise
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise LaunchError(f"the checkpoint's config.json has no usable {'.'.join(path)}: {value!r}")
    return value


def numbers(config: Mapping[str, Any], *path: str, least: int = 1) -> list[int]:
    """A list of whole numbers, each at least `least`. Raises `LaunchError`."""
    value = _at(config, path)
    if not isinstance(value, list) or not all(isinstance(number, int) and number >= least for number in value):
        raise LaunchError(f"the checkpoint's config.json has no usable {'.'.join(path)}: {value!r}")
    return list(value)


def _at(config: Any, path: Iterable[str]) -> Any:
    for key in path:
        config = config.get(key) if isinstance(config, dict) else None
    return config
