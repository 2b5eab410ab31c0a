"""Sounds and images of requests, for the Thinker of Qwen3-Omni in vLLM.

The encoders compute in this process, beside vLLM, when a request enters it. Their rows go in as items of the prompt
that are ready (`named_rows`), and what the Talker wants of them, a layer's hidden states, comes out after vLLM's steps.

vLLM keeps what it has computed of prompts, and tells items in them apart by a hash. It is that of their rows. But where
a Talker follows, hidden states are wanted of each request, and what is found in the cache has none: then an item has
the hash of nobody else, and only the text before the first item can be found.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
from vllm.inputs import mm_input
from vllm.multimodal.inputs import MultiModalBatchedField, MultiModalFieldElem, MultiModalKwargsItem, PlaceholderRange

from omnizmq.workers.engine import Chunk
from omnizmq.workers.engines.qwen3_omni.axes import Grid, Placed, placed
from omnizmq.workers.engines.qwen3_omni.encoders import Encoders
from omnizmq.workers.engines.qwen3_omni.prompt import Asked
from omnizmq.workers.engines.qwen3_omni.rows import tokens_chunk
from omnizmq.workers.engines.vllm import prompts
from omnizmq.workers.engines.vllm.named_rows import NUMBERS, named

Kept = tuple[torch.Tensor, torch.Tensor]
"""int64 `[n, 2]` of requests and places, and `[n, hidden]`."""


@dataclass
class _Wanted:
    """Hidden states of one request."""

    request_id: str
    ids: list[int]
    grids: list[Grid]
    missing: torch.Tensor  # bool [n]
    rows: torch.Tensor | None = None  # [n, hidden]

    def got(self, places: torch.Tensor, rows: torch.Tensor) -> None:
        if self.rows is None:
            self.rows = rows.new_empty(len(self.missing), rows.shape[1])
        self.rows[places] = rows
        self.missing[places] = False


class Items:
    """`audio`: the token of sounds; `take`: what vLLM's last step has of items, None without a Talker."""

    def __init__(self, encoders: Encoders, audio: int, take: Callable[[], Kept | None] | None) -> None:
        self._encoders = encoders
        self._audio = audio
        self._take = take
        self._numbers = count()
        self._wanted: dict[int, _Wanted] = {}

    @property
    def for_talker(self) -> bool:
        return self._take is not None

    def prompt(self, request_id: str, asked: prompts.Asked) -> Any:
        """As vLLM takes it, of a request that has items."""
        assert isinstance(asked, Asked)
        number = next(self._numbers)
        kwargs: dict[str, list[Any]] = {}
        hashes: dict[str, list[str]] = {}
        places: dict[str, list[Any]] = {}
        at = 0
        for kind, item, rows in sorted(self._encoded(asked), key=lambda each: each[1].first):
            fields = {"rows": named(rows, number % NUMBERS, at), "grid": torch.tensor((item.rows, item.columns))}
            kwargs.setdefault(kind, []).append(_ready(fields))
            hashes.setdefault(kind, []).append(f"{number}-{at}" if self._take else _hash(kind, item, rows))
            places.setdefault(kind, []).append(PlaceholderRange(offset=item.first, length=item.tokens))
            at += item.tokens
        if self._take is not None:
            grids = [] if asked.patches is None else asked.patches.grids
            missing = torch.ones(at, dtype=torch.bool)
            self._wanted[number % NUMBERS] = _Wanted(request_id, asked.ids, grids, missing)
        return mm_input(asked.ids, kwargs, hashes, places)

    def chunks(self) -> dict[str, Chunk]:
        """After a step of vLLM's: by request, the Talker's first chunk of those whose hidden states are all there."""
        if self._take is None or not self._wanted:
            return {}
        kept = self._take()
        if kept is None:
            return {}
        names, rows = kept
        for number in names[:, 0].unique().tolist():
            if number in self._wanted:  # else it was aborted, or is computed again
                own = names[:, 0] == number
                self._wanted[number].got(names[own, 1], rows[own])
        done = [number for number, wanted in self._wanted.items() if not wanted.missing.any()]
        complete = [self._wanted.pop(number) for number in done]
        return {one.request_id: tokens_chunk(one.ids, one.rows, one.grids) for one in complete}

    def forget(self, request_id: str) -> None:
        """It has ended, whatever is there of it."""
        self._wanted = {number: one for number, one in self._wanted.items() if one.request_id != request_id}

    def _encoded(self, asked: Asked) -> list[tuple[str, Placed, torch.Tensor]]:
        """Each sound and image: its kind, its place, and its rows on the CPU, from where vLLM takes them."""
        made: list[tuple[str, Placed, torch.Tensor]] = []
        with torch.inference_mode():
            if asked.sounds is not None:
                lengths = asked.sounds.tokens
                heard = self._encoders.hear(asked.sounds).cpu().split(lengths)
                where = placed(asked.ids, self._audio, [(1, length) for length in lengths])
                made += [("audio", *each) for each in zip(where, heard, strict=True)]
            if asked.patches is not None:
                seen, added = self._encoders.see(asked.patches)
                rows = torch.cat((seen, *added), 1).cpu().split([image.tokens for image in asked.images])
                made += [("image", *each) for each in zip(asked.images, rows, strict=True)]
        return made


def _ready(fields: dict[str, torch.Tensor]) -> MultiModalKwargsItem:
    """Of one item, what `ThinkerText.embed_multimodal` and its positions are given."""
    return MultiModalKwargsItem(
        {
            name: MultiModalFieldElem(data=data, field=MultiModalBatchedField(keep_on_cpu=name == "grid"))
            for name, data in fields.items()
        }
    )


def _hash(kind: str, item: Placed, rows: torch.Tensor) -> str:
    what = f"{kind} {item.rows} {item.columns}".encode()
    return hashlib.sha256(what + rows.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()
