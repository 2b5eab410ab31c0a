"""What a caller has of one final stage, kept as the whole content: what a new attempt may add to it, and what it must
not (F2, B1). An independent prediction of `omnizmq.router.delivered`, which keeps a length and a hash.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from omnizmq.protocol import Audio, Content, Text, TextWithLogprobs, TokenLogprob


class MismatchError(Exception):
    """The attempt says something else than the caller has."""


class Share(NamedTuple):
    """The caller's share of an output."""

    content: Content | None
    stage_finished: bool


def units(content: Content | None) -> list[str] | list[int]:
    """Characters, or bytes."""
    if content is None:
        return []
    return list(content.text) if isinstance(content, Text) else list(content.data)


def tokens_of(content: Content | None) -> list[TokenLogprob]:
    return content.logprobs if isinstance(content, TextWithLogprobs) else []


def content_of(some: Sequence[str | int], tokens: list[TokenLogprob], like: Content) -> Content:
    if isinstance(like, TextWithLogprobs):
        return TextWithLogprobs("".join(map(str, some)), tokens)
    if isinstance(like, Text):
        return Text("".join(map(str, some)))
    return Audio(bytes(map(int, some)), like.sample_rate)


class Told:
    """`whole` is all that the caller has, over all attempts; `again` all that the present attempt has said. Of tokens
    the same: which they are is not compared, because their text is."""

    def __init__(self) -> None:
        self.whole: list[str | int] = []
        self.tokens: list[TokenLogprob] = []
        self.tokens_again = 0
        self.rate = 0
        self.ended = False
        self.sent = 0
        self.read = 0
        self.sent_before = 0  # in earlier attempts
        self.passed_over = 0  # outputs of this attempt
        self.again: list[str | int] = []
        self.lost: str | None = None  # the replica with which the last attempt ended

    @property
    def begun(self) -> bool:
        return self.sent > 0 and not self.ended

    @property
    def credit(self) -> int:
        """Of this attempt's outputs, how many count as read; below zero: what is unread of earlier ones."""
        return self.passed_over + self.read - self.sent_before

    def reads(self, deliveries: int) -> bool:
        """Whether it is news."""
        news = self.read < min(deliveries, self.sent)
        if news:
            self.read = min(deliveries, self.sent)
        return news

    def begins_again(self, lost: str | None) -> None:
        self.lost = lost
        self.sent_before, self.passed_over, self.again, self.tokens_again = self.sent, 0, [], 0

    def takes(self, content: Content | None, *, last: bool, cut: bool = False) -> Share | None:
        """What is new to the caller; None: nothing. Raises `MismatchError`, and then it has changed nothing."""
        known = len(self.whole)
        again = self.again + units(content)
        tokens = tokens_of(content)[max(0, len(self.tokens) - self.tokens_again) :]
        repeats = len(self.again) < known
        had_some = repeats or self.tokens_again < len(self.tokens)
        new = again[max(known, len(self.again)) :]
        if repeats and isinstance(content, Audio) and content.sample_rate != self.rate:
            raise MismatchError
        if repeats and len(again) >= known and again[:known] != self.whole:
            raise MismatchError
        if (self.ended and new) or (last and not cut and len(again) < known):
            raise MismatchError
        self.again = again
        self.tokens_again += len(tokens_of(content))
        ends = last and not self.ended
        nothing = content is None or (not new and (self.ended or (had_some and not tokens)))
        if nothing and not ends:
            self.passed_over += 1
            return None
        self.whole += new
        self.tokens += [] if nothing else tokens
        if isinstance(content, Audio) and not nothing:
            self.rate = content.sample_rate
        self.ended |= last
        self.sent += 1
        return Share(None if nothing or content is None else content_of(new, tokens, content), ends)
