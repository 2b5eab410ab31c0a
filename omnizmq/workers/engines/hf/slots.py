"""Keys and values of several requests at once: one slot a request, of a fixed number of tokens.

A batch has rows of different lengths. Each writes at its own position and sees its own past alone, so what a row
computes does not depend on its neighbours (but for the rounding of larger matrix products).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


class Slots:
    """Memory: layers x slots x tokens x 2 x key-value heads x head size x size of an element."""

    def __init__(self, config: Any, slots: int, tokens: int, dtype: torch.dtype, device: torch.device) -> None:
        """`config`: the text configuration, which says how many layers, heads and elements a head there are."""
        head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        shape = (slots, config.num_key_value_heads, tokens, head)
        layers = range(config.num_hidden_layers)
        self.tokens = tokens
        self.keys = [torch.zeros(shape, dtype=dtype, device=device) for _ in layers]
        self.values = [torch.zeros(shape, dtype=dtype, device=device) for _ in layers]
        self.device = device
        self._free = list(range(slots - 1, -1, -1))

    @property
    def any_free(self) -> bool:
        return bool(self._free)

    def take(self) -> int:
        """A slot. What it held before is never seen: every position is written before it is read."""
        return self._free.pop()

    def give_back(self, slot: int) -> None:
        self._free.append(slot)

    def save(self, slot: int, tokens: int) -> list[torch.Tensor]:
        """What the first `tokens` positions of a slot hold, as a copy on the host."""
        return [held[slot, :, :tokens].to("cpu", copy=True) for held in (*self.keys, *self.values)]

    def restore(self, slot: int, saved: Sequence[torch.Tensor]) -> None:
        """What `save` gave, into the same positions of this slot."""
        for held, kept in zip((*self.keys, *self.values), saved, strict=True):
            held[slot, :, : kept.shape[1]].copy_(kept)

    def wipe(self, slot: int) -> None:
        """What it holds can harm nobody: values of no weight count, when they are no numbers."""
        for held in (*self.keys, *self.values):
            held[slot].zero_()

    def rows(self, slots: Sequence[int], starts: Sequence[int], count: int) -> Rows:
        """For one forward pass: row n appends `count` tokens to slot `slots[n]`, which holds `starts[n]`."""
        return Rows(self, slots, starts, count)


class Rows:
    """One batch: stands where the library expects a cache, and has the mask and positions that go with it."""

    def __init__(self, cache: Slots, slots: Sequence[int], starts: Sequence[int], count: int) -> None:
        self._cache = cache
        self._count = count
        self._longest = max(starts) + count
        self._slots = torch.tensor(slots, device=cache.device)
        first = torch.tensor(starts, device=cache.device)
        self._positions = first[:, None] + torch.arange(count, device=cache.device)  # [rows, count]
        in_order = list(slots) == list(range(slots[0], slots[0] + len(slots)))
        # A view where the slots lie side by side; else the rows are gathered.
        self._chosen = slice(slots[0], slots[0] + len(slots)) if in_order else self._slots

    @property
    def mask(self) -> torch.Tensor:
        """Bool `[rows, 1, count, longest]`: which keys each token sees."""
        keys = torch.arange(self._longest, device=self._cache.device)
        return (keys <= self._positions[:, :, None])[:, None]

    @property
    def positions(self) -> torch.Tensor:
        """`[3, rows, count]`: the three axes differ for images and videos alone."""
        return self._positions.expand(3, -1, -1)

    def shifted(self, by: Sequence[int]) -> torch.Tensor:
        """`positions`, those of row n moved by `by[n]`: after images, which take fewer positions than tokens."""
        if not any(by):
            return self.positions
        return self.positions + torch.tensor(by, device=self._cache.device)[:, None]

    def update(
        self,
        keys: torch.Tensor,
        values: torch.Tensor,
        layer: int,
        **_: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Take in `[rows, heads, count, head]` of a layer; give back all that these rows hold, `[rows, heads, longest,
        head]`."""
        held = self._cache.keys[layer], self._cache.values[layer]
        for cached, new in zip(held, (keys, values), strict=True):
            cached[self._slots[:, None], :, self._positions] = new.transpose(1, 2)
        return held[0][self._chosen, :, : self._longest], held[1][self._chosen, :, : self._longest]
