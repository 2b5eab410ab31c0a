"""What the Talker speaks: which tokens, and what is known of them so far. Pure.

Of a prompt it gets all user turns and the last assistant turn (system and earlier assistant turns are skipped); of the
answer all tokens but the last, which ends it or is one too many. So a token can be spoken when another has followed it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

HEADER = 3
"""Tokens that open an assistant turn: its start, its role, a line break."""


@dataclass(frozen=True, slots=True)
class Turns:
    """The ids that divide a prompt into turns."""

    start: int
    user: int
    assistant: int


@dataclass
class Words:
    """The tokens of one request."""

    prompt: Sequence[int]
    turns: Turns
    ended: bool = False
    answer: list[int] = field(default_factory=list)

    @property
    def user_positions(self) -> list[int]:
        """The prompt's positions in user turns, their openings included."""
        positions, role = [], None
        for n, token in enumerate(self.prompt):
            if token == self.turns.start:
                role = self.prompt[n + 1] if n + 1 < len(self.prompt) else None
            if role == self.turns.user:
                positions.append(n)
        return positions

    @property
    def opening(self) -> int | None:
        """Where the last assistant turn begins; None: there is none, or not all of its header."""
        for n in range(len(self.prompt) - HEADER, -1, -1):
            if self.prompt[n] == self.turns.start and self.prompt[n + 1] == self.turns.assistant:
                return n
        return None

    @property
    def header(self) -> list[int]:
        opening = self.opening
        return [] if opening is None else list(self.prompt[opening : opening + HEADER])

    @property
    def spoken(self) -> list[int]:
        """What of the assistant's turn is known to be spoken; what the prompt has of it already comes first."""
        opening = self.opening
        begun = [] if opening is None else list(self.prompt[opening + HEADER :])
        return begun + self.answer[:-1]
