"""One token from logits, by a request's own parameters and its own generator.

The order is that of the library's `generate`: repetition penalty, suppressed tokens, then, unless greedy, temperature,
top-k, top-p and a draw. A seeded request draws the same whatever it is batched with.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from omnizmq.workers.engines.settings import Setting, number, whole

SETTINGS: dict[str, Setting] = {
    "temperature": number(0.0, 2.0),
    "top_k": whole(0, 1 << 20),
    "top_p": number(0.0, 1.0),
    "repetition_penalty": number(0.01, 10.0),
    "seed": whole(0, (1 << 32) - 1),
}


GREEDY_BELOW = 1e-5
"""Logits that are divided by less leave float32; what is likeliest has nearly all the weight long before."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """`temperature = 0` is greedy, and so is one below `GREEDY_BELOW`; `top_k = 0` and `top_p = 1` switch those off."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW


class Sampler:
    """Of one request. `suppressed`: bool `[vocabulary]`, tokens that are never chosen."""

    def __init__(self, sampling: Sampling, generator: torch.Generator, suppressed: torch.Tensor | None = None) -> None:
        self.draws = generator
        self._sampling = sampling
        self._suppressed = suppressed
        self._seen: torch.Tensor | None = None

    def saw(self, tokens: Iterable[int], vocabulary: int) -> None:
        """Tokens that the repetition penalty is to count."""
        if self._sampling.repetition_penalty != 1.0:
            if self._seen is None:
                self._seen = torch.zeros(vocabulary, dtype=torch.bool, device=self.draws.device)
            self._seen[torch.tensor(list(tokens), dtype=torch.long, device=self._seen.device)] = True

    def choose(self, logits: torch.Tensor) -> torch.Tensor:
        """float32 `[vocabulary]` -> one token, still on the device. It is not counted as seen."""
        if self._sampling.greedy:
            return self._processed(logits).argmax()
        weights = self.weights(logits)
        # The smallest of exponential waiting times is a draw by these weights, without a copy to the host.
        return (weights / torch.empty_like(weights).exponential_(generator=self.draws)).argmax()

    def weights(self, logits: torch.Tensor) -> torch.Tensor:
        """float32 `[vocabulary]` -> the probability of each to be drawn, unless greedy."""
        return _warped(self._processed(logits), self._sampling).softmax(-1)

    def _processed(self, logits: torch.Tensor) -> torch.Tensor:
        penalty = self._sampling.repetition_penalty
        if self._seen is not None:
            logits = torch.where(self._seen, torch.where(logits < 0, logits * penalty, logits / penalty), logits)
        if self._suppressed is not None:
            logits = logits.masked_fill(self._suppressed, -torch.inf)
        return logits


def choose(logits: torch.Tensor, samplers: Sequence[Sampler]) -> torch.Tensor:
    """`[rows, vocabulary]` -> `[rows]`."""
    return torch.stack([sampler.choose(row) for sampler, row in zip(samplers, logits.float(), strict=True)])


def finite(logits: torch.Tensor) -> torch.Tensor:
    """`[rows, vocabulary]` -> bool `[rows]`: whether there is anything to choose from."""
    return logits.isfinite().all(-1)


def taken(tokens: torch.Tensor, fine: torch.Tensor) -> list[int | None]:
    """What `choose` chose, on the host, by one copy; None for a row that is not `finite`."""
    rows = torch.stack((tokens, fine.to(tokens.dtype)), dim=1).tolist()
    return [token if fine else None for token, fine in rows]


def generator(device: torch.device, seed: int | None) -> torch.Generator:
    """A source of randomness. Without a seed each is another one, and draws differ."""
    made = torch.Generator(device=device)
    if seed is None:
        made.seed()
    else:
        made.manual_seed(seed)
    return made


def _warped(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """float32 `[vocabulary]`: -inf where nothing may be drawn."""
    logits = logits / sampling.temperature
    if sampling.top_k:
        kept = min(sampling.top_k, logits.shape[-1])
        logits = logits.masked_fill(logits < logits.topk(kept).values[-1], -torch.inf)
    if sampling.top_p < 1:
        ordered, order = logits.sort(descending=True)
        share = ordered.softmax(-1)
        beyond = share.cumsum(-1) - share >= sampling.top_p  # the most likely token always stays
        beyond[0] = False
        logits = logits.masked_fill(torch.zeros_like(beyond).scatter(0, order, beyond), -torch.inf)
    return logits
