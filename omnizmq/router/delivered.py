"""What the caller of a request has of one final stage, over all its attempts (B1, F2). Pure.

A new attempt makes everything anew. What the caller has already is skipped by its offset in the content, however it is
cut into outputs, and compared by a hash: an attempt that says something else than what was delivered cannot go on.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, NamedTuple

from omnizmq.errors import ReplicaLostError
from omnizmq.protocol import Audio, Content, Text, TextWithLogprobs

_DIGEST_BYTES = 16


class Passed(NamedTuple):
    """What goes to the caller of one output."""

    content: Content | None
    stage_finished: bool


class Delivered:
    """`sent` deliveries, of which the caller has `consumed` so many. `hashed`: another attempt may follow. Tokens that
    come with their logprobs are skipped by their number alone: it is their text that is compared."""

    __slots__ = (
        "_again",
        "_ahead",
        "_base",
        "_hash",
        "_lost",
        "_rate",
        "_skipped",
        "_tokens",
        "_tokens_ahead",
        "_units",
        "another",
        "broken",
        "consumed",
        "ended",
        "sent",
        "stage",
    )

    def __init__(self, stage: str, *, hashed: bool) -> None:
        self.stage = stage
        self.sent = 0
        self.consumed = 0
        self.ended = False
        self._units = 0  # characters of text, bytes of sound
        self._tokens = 0  # with their logprobs
        self._rate = 0  # of sound, in Hz
        self._hash: Any = blake2b(digest_size=_DIGEST_BYTES) if hashed else None
        self._base = 0  # sent before this attempt
        self._skipped = 0  # outputs of this attempt that the caller has already
        self._ahead = 0  # units of this attempt that it has already, and that have not come yet
        self._tokens_ahead = 0  # and tokens, which come when they are generated, not with their text
        self._again: Any = None  # the hash of what comes again
        self._lost: str | None = None  # the replica that this attempt makes good
        self.broken = False  # this attempt says something else
        self.another = False  # by its content, not by its length

    @property
    def begun(self) -> bool:
        """Whether the caller has something of it, and not its end."""
        return self.sent > 0 and not self.ended

    @property
    def unread(self) -> int:
        return self.sent - self.consumed

    @property
    def skipped(self) -> int:
        """The first so many outputs of this attempt did not go to the caller: it has them already."""
        return self._skipped

    @property
    def credit(self) -> int:
        """How many of this attempt's outputs are consumed; negative: so many of earlier ones are not."""
        return self._skipped + self.consumed - self._base

    def consume(self, deliveries: int) -> bool:
        """`deliveries` of all are consumed. Whether that is news; a credit for what was never sent counts for none."""
        before = self.consumed
        self.consumed = max(before, min(deliveries, self.sent))
        return self.consumed != before

    def begin_attempt(self, lost: str | None) -> None:
        """`lost`: the replica with which the last one ended."""
        self._lost = lost
        self._base, self._skipped, self._ahead, self._tokens_ahead = self.sent, 0, self._units, self._tokens
        self._again = blake2b(digest_size=_DIGEST_BYTES)

    def pass_on(self, content: Content | None, *, last: bool, cut: bool) -> Passed | None:
        """What of this output the caller does not have yet; None: it has all of it.

        Raises `ReplicaLostError` for an attempt that differs from what was delivered; of it, nothing passes any more.
        """
        if self.broken and not cut:
            return None
        if content is not None and (self._ahead or self._tokens_ahead):
            content = self._rest(content)
        if content is not None and self.ended and not _units(content):
            content = None
        if content is not None and self.ended:
            raise self._differs("goes on where it had ended")
        if last and self._ahead and not cut:
            raise self._differs(f"ends {self._ahead} characters or bytes too soon")
        if content is not None:
            self._count(content)
        ends = last and not self.ended
        if content is None and not ends:
            self._skipped += 1
            return None
        self.ended = self.ended or last
        self.sent += 1
        return Passed(content, ends)

    def _rest(self, content: Content) -> Content | None:
        """What comes behind that which the caller has; None: nothing."""
        if self._ahead and isinstance(content, Audio) and content.sample_rate != self._rate:
            raise self._differs(f"has {content.sample_rate} Hz instead of {self._rate}")
        known, rest = _split(content, self._ahead, self._tokens_ahead)
        again = self._again.copy()
        again.update(_bytes(known))
        if self._ahead and self._ahead == _units(known) and again.digest() != self._hash.digest():
            self.another = True
            raise self._differs("is another one")
        self._ahead -= _units(known)
        self._tokens_ahead -= _tokens(known)
        self._again = again
        return rest

    def _count(self, content: Content) -> None:
        self._units += _units(content)
        self._tokens += _tokens(content)
        self._rate = content.sample_rate if isinstance(content, Audio) else 0
        if self._hash is not None:
            self._hash.update(_bytes(content))

    def _differs(self, how: str) -> ReplicaLostError:
        self.broken = True
        return ReplicaLostError(
            f"{self._lost or 'a replica'} was lost after {self.sent} outputs of {self.stage} had been delivered, and "
            f"the output of the next attempt {how}: it cannot be continued",
            stage=self.stage,
            replica=self._lost,
        )


def _units(content: Content) -> int:
    return len(content.text) if isinstance(content, Text) else len(content.data)


def _tokens(content: Content) -> int:
    return len(content.logprobs) if isinstance(content, TextWithLogprobs) else 0


def _bytes(content: Content) -> bytes:
    return content.text.encode() if isinstance(content, Text) else content.data


def _split(content: Content, units: int, tokens: int) -> tuple[Content, Content | None]:
    """The first so many units and tokens, and the rest."""
    if units >= _units(content) and tokens >= _tokens(content):
        return content, None
    if isinstance(content, TextWithLogprobs):
        text, logprobs = content.text, content.logprobs
        known = TextWithLogprobs(text[:units], logprobs[:tokens])
        return known, TextWithLogprobs(text[units:], logprobs[tokens:])
    if isinstance(content, Text):
        return Text(content.text[:units]), Text(content.text[units:])
    return Audio(content.data[:units], content.sample_rate), Audio(content.data[units:], content.sample_rate)
