"""What Qwen3-Omni's stages hand to one another: written and read here, and nowhere else.

Thinker -> Talker. The first chunk is the prompt, each further one what was generated since:
    meta    dtype  "float32", "bfloat16" …: of `rows`, where there are any
    arrays  ids    int32 [n], tokens
            rows   [m, hidden], with the prompt: hidden states of its m positions of sound or images, in order
            grids  int32 [images, 2], with the prompt: rows and columns of each image, in tokens
Ids are enough for text: the Talker speaks from the embeddings of tokens, whose table it has. The last token of an
answer, whatever it is, is not spoken.

Talker -> Code2Wav: frames, as in `hf.frames`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from omnizmq.errors import LaunchError, StageError
from omnizmq.workers.engine import Chunk
from omnizmq.workers.engines.hf.checkpoint import Checkpoint
from omnizmq.workers.engines.qwen3_omni.axes import Grid
from omnizmq.workers.engines.tensors import TensorArray, as_tensor


@dataclass(frozen=True, slots=True)
class Tokens:
    """What one chunk of the Thinker says."""

    ids: list[int]
    rows: torch.Tensor | None
    grids: list[Grid]


def tokens_chunk(ids: Sequence[int], rows: torch.Tensor | None = None, grids: Sequence[Grid] = ()) -> Chunk:
    """Of the prompt, or of what was generated."""
    arrays = {"ids": np.asarray(ids, dtype=np.int32)}
    if grids:
        arrays["grids"] = np.asarray(grids, dtype=np.int32)
    if rows is None:
        return Chunk(arrays=arrays)
    return Chunk({"dtype": str(rows.dtype).removeprefix("torch.")}, arrays, {"rows": TensorArray(rows)})


def read_tokens(chunk: Chunk, device: torch.device) -> Tokens:
    """With a copy of the rows on the device: straight from the ring. Raises `StageError`."""
    ids, rows, grids = (chunk.arrays.get(name) for name in ("ids", "rows", "grids"))
    if ids is None or ids.dtype != np.int32 or ids.ndim != 1:
        raise StageError("a chunk of the thinker has no int32 ids [n]: is it a thinker of Qwen3-Omni?")
    if grids is not None and (grids.dtype != np.int32 or grids.ndim != 2 or grids.shape[1] != 2 or grids.min() < 1):
        raise StageError("a chunk of the thinker has grids that are no int32 [images, 2] of rows and columns")
    sizes = [] if grids is None else [(rows, columns) for rows, columns in grids.tolist()]
    if rows is None:
        return Tokens(ids.tolist(), None, sizes)
    dtype = getattr(torch, str(chunk.meta.get("dtype")), None)
    if not isinstance(dtype, torch.dtype) or dtype.itemsize != rows.dtype.itemsize or rows.ndim != 2:
        raise StageError(f"a chunk of the thinker has rows of {chunk.meta.get('dtype')!r} that cannot be read")
    return Tokens(ids.tolist(), as_tensor(rows, dtype).to(device, copy=True), sizes)


def accepted_layer(config: Any, checkpoint: Checkpoint) -> int:
    """Of which hidden states `rows` are, as the library counts them: what the layer before makes, 0 what goes into the
    first. `config`: that of the whole model. Raises `LaunchError`."""
    accepted: int = config.talker_config.accept_hidden_layer
    if not 0 <= accepted < config.thinker_config.text_config.num_hidden_layers:
        raise LaunchError(f"{checkpoint.path}: accept_hidden_layer is {accepted}: there is no such layer")
    return accepted
