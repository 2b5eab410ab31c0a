"""The caller's end of a final stage: outputs that it has not read yet, and those that wait until it has (B1). Pure.

To a gate the caller is one more consumer, with a window of its own: outputs may go while fewer than `window` of them,
and less than `window_bytes` of content, are unread. So one output may always go, however large, and whoever has read
an eighth of a window is never waited for in vain.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from omnizmq import protocol as wire


class Waiting(NamedTuple):
    """An output that is not out yet. `last`: the stage's output ends with it."""

    content: wire.Content | None
    last: bool


@dataclass
class CallerEdge:
    """Of one attempt of one request. `consumed` is negative while outputs of earlier attempts are unread."""

    window: int
    window_bytes: int
    consumed: int = 0
    sent: int = 0
    waiting: deque[Waiting] = field(default_factory=deque)
    ended: bool = False  # the last output is out
    paused: bool = False  # as the router was told
    since_ns: int = 0  # of the pause, or of the last credit that came in it
    unread_bytes: int = 0
    _sizes: deque[int] = field(default_factory=deque)  # of this attempt's unread outputs

    @classmethod
    def of(cls, submit: wire.SubmitStage) -> CallerEdge | None:
        """None: the stage is not final, nothing of it is delivered (P4)."""
        if not submit.final:
            return None
        return cls(max(1, submit.window), max(1, submit.window_bytes), consumed=-max(0, submit.unread))

    @property
    def open(self) -> bool:
        return not self.ended

    @property
    def unread(self) -> int:
        return self.sent - self.consumed

    @property
    def full(self) -> bool:
        """Nothing more may go, and so nothing more may be made, until the caller has read."""
        full = self.sent - self.consumed >= self.window or self.unread_bytes >= self.window_bytes
        return full and not self.ended

    def put(self, content: wire.Content | None, *, last: bool) -> None:
        self.waiting.append(Waiting(content, last))

    def pop(self) -> Waiting | None:
        """The next output that may go, counted as sent. None: there is none, or the window is full."""
        if not self.waiting or self.full:
            return None
        output = self.waiting.popleft()
        size = wire.content_bytes(output.content)
        self.sent += 1
        self.ended = output.last
        self.unread_bytes += size
        self._sizes.append(size)
        return output

    def credit(self, consumed: int, now_ns: int, skipped: int = 0) -> None:
        """Cumulative; an older one, or one for what was never sent, frees nothing. Each is a sign that the caller
        reads, if only from another stage. The first `skipped` outputs are none that it has to read."""
        self.since_ns = now_ns
        self.consumed = max(self.consumed, min(consumed, self.sent))
        while len(self._sizes) > self.sent - max(self.consumed, min(skipped, self.sent)):
            self.unread_bytes -= self._sizes.popleft()

    def turned(self, now_ns: int) -> bool:
        """Whether the pause has begun, or ended, since this was asked last."""
        if self.full == self.paused:
            return False
        self.paused = self.full
        self.since_ns = now_ns
        return True

    def discard(self) -> int:
        """Whatever waits will never go. Returns how many outputs that were."""
        count = len(self.waiting)
        self.waiting.clear()
        return count
