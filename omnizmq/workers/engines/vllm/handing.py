"""What this engine hands to downstream stages: text for most, token ids for Qwen3-Omni's Talker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from omnizmq.workers.engine import Chunk
from omnizmq.workers.engines.qwen3_omni.rows import tokens_chunk


class Handing(Protocol):
    def prompt(self, ids: Sequence[int]) -> Chunk | None:
        """The first chunk of all, where there is one."""

    def made(self, text: str, ids: Sequence[int]) -> list[Chunk]:
        """Of what was generated since."""


class Texts:
    """`meta["text"]`, deltas."""

    def prompt(self, ids: Sequence[int]) -> Chunk | None:  # noqa: ARG002
        return None

    def made(self, text: str, ids: Sequence[int]) -> list[Chunk]:  # noqa: ARG002
        return [Chunk(meta={"text": text})] if text else []


class TokenIds:
    """As `qwen3_omni.rows` has them: the prompt's, of one that is text alone, then what is generated."""

    def prompt(self, ids: Sequence[int]) -> Chunk | None:
        return tokens_chunk(ids)

    def made(self, text: str, ids: Sequence[int]) -> list[Chunk]:  # noqa: ARG002
        return [tokens_chunk(ids)] if ids else []
