"""Codec frames to samples, in increments: what a vocoder is, and the stream of one request.

A vocoder has two parts. The first is a network over positions (one a frame, or several) that looks back by itself: it
keeps its own state of a stream. The second, convolutions, makes samples of positions. It is causal but for a fixed
number of last samples that may be missing, and looks back over a few positions, which are kept and go through it again
with the next chunk.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray


class Vocoder(Protocol):
    """`groups` codes a frame, each below `codebook`. `context`: positions of the past that the second part sees from
    the sample before which the last decode ended."""

    groups: int
    codebook: int
    sample_rate: int
    samples_per_position: int
    context: int

    def begin(self) -> Any:
        """The first part's state at the beginning of a stream."""

    def hidden(self, codes: torch.Tensor, state: Any) -> torch.Tensor:
        """int64 codes `[1, groups, n]` that follow those in the state -> `[1, hidden, positions]`."""

    def wave(self, hidden: torch.Tensor) -> NDArray[np.float32]:
        """`[1, hidden, positions]` -> float32 `[samples_per_position x positions]`, less what is missing at the end."""


class WaveStream:
    """The sound of one request. `frames` that came, `samples` that were made of them."""

    def __init__(self, vocoder: Vocoder) -> None:
        self._vocoder = vocoder
        self._state = vocoder.begin()
        self._hidden: torch.Tensor | None = None  # of the last positions, at most `context`
        self._positions = 0
        self.frames = 0
        self.samples = 0

    def push(self, codes: torch.Tensor) -> NDArray[np.float32]:
        """int64 `[1, groups, n]` -> the samples that they complete."""
        with torch.inference_mode():
            return self._push(codes)

    def _push(self, codes: torch.Tensor) -> NDArray[np.float32]:
        vocoder = self._vocoder
        hidden = vocoder.hidden(codes, self._state)
        self.frames += codes.shape[2]
        self._positions += hidden.shape[2]
        if self._hidden is not None:
            hidden = torch.cat((self._hidden, hidden), dim=2)
        first = (self._positions - hidden.shape[2]) * vocoder.samples_per_position
        made = vocoder.wave(hidden)[self.samples - first :]
        self._hidden = hidden[:, :, -vocoder.context :]
        self.samples += made.size
        return made
