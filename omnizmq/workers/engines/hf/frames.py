"""Codec frames from a talker to a code2wav: written and read here, and nowhere else.

Talker -> Code2Wav, frames in order, 12.5 a second:
    meta    start  number of the chunk's first frame
    arrays  codes  int16 [groups, n]
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from omnizmq.errors import StageError
from omnizmq.workers.engine import Chunk


def codes_chunk(start: int, frames: Sequence[Sequence[int]]) -> Chunk:
    """Of frames, each of one code a group."""
    return Chunk({"start": start}, {"codes": np.ascontiguousarray(np.asarray(frames, dtype=np.int16).T)})


def read_codes(chunk: Chunk, start: int, groups: int, codebook: int) -> torch.Tensor:
    """int64 `[1, groups, n]`. Raises `StageError` for anything but the frames that follow the first `start`."""
    codes = chunk.arrays.get("codes")
    if codes is None or codes.dtype != np.int16 or codes.ndim != 2 or codes.shape[0] != groups or not codes.size:
        raise StageError(f"a chunk of the talker has no int16 codes [{groups}, frames]")
    if chunk.meta.get("start") != start:
        raise StageError(f"frames from {chunk.meta.get('start')} came where {start} was next")
    if codes.min() < 0 or codes.max() >= codebook:
        raise StageError(f"a code of the talker is not one of {codebook}")
    return torch.from_numpy(codes.astype(np.int64))[None]
