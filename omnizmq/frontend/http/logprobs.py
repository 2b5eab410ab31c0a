"""Logprobs as OpenAI's chat completions have them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from omnizmq.protocol import TokenLogprob

LEAST = -9999.0
"""Stands for a probability of nearly nothing in OpenAI's API; JSON has no infinity."""


def logprobs_of(tokens: Sequence[TokenLogprob]) -> dict[str, Any] | None:
    """Of a choice, or of its delta; None where there are none."""
    if not tokens:
        return None
    return {"content": [_content(each) for each in tokens], "refusal": None}


def _content(each: TokenLogprob) -> dict[str, Any]:
    top = [_token(token, logprob) for token, logprob in each.top]
    return {**_token(each.token, each.logprob), "top_logprobs": top}


def _token(token: bytes, logprob: float) -> dict[str, Any]:
    text = token.decode(errors="replace")
    return {"token": text, "logprob": max(LEAST, logprob), "bytes": list(token)}
