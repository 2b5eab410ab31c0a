"""A sound or an image in a prompt as vLLM carries it: one row for each of its tokens, and with each row its name.

A row is [name | embedding | what an image adds after each of the first layers]. Its name is the number of its request
and its own place among all rows of that request. vLLM cuts prompts into pieces, puts pieces of several requests into
one step and computes some again; whatever it does, a row says whose it is, and nothing has to be known of vLLM's batch.

A name is written as digits to a base that every floating-point type holds exactly.
"""

from __future__ import annotations

import torch

_BASE = 256
_DIGITS = 3
NUMBERS: int = _BASE**_DIGITS
"""Numbers of requests, and places, are below this."""

_NAME = 2 * _DIGITS


def named(rows: torch.Tensor, request: int, first: int) -> torch.Tensor:
    """`rows` `[n, width]` -> `[n, name + width]`, of places from `first` on."""
    places = torch.arange(first, first + len(rows), device=rows.device)
    digits = [*_digits(torch.full_like(places, request)), *_digits(places)]
    return torch.cat((torch.stack(digits, 1).to(rows.dtype), rows), 1)


def split(item: torch.Tensor, hidden: int) -> tuple[torch.Tensor, torch.Tensor, tuple[torch.Tensor, ...]]:
    """Of named rows `[n, …]`: int64 `[n, 2]` request and place; `[n, hidden]` embeddings; as much for each of the first
    layers, none of a sound."""
    digits = item[:, :_NAME].long().view(-1, 2, _DIGITS)
    embeddings, *added = item[:, _NAME:].split(hidden, 1)
    return (digits * _powers(item.device)).sum(-1), embeddings, tuple(added)


def _digits(numbers: torch.Tensor) -> list[torch.Tensor]:
    return [numbers // _BASE**n % _BASE for n in range(_DIGITS)]


def _powers(device: torch.device) -> torch.Tensor:
    return torch.tensor([_BASE**n for n in range(_DIGITS)], device=device)
