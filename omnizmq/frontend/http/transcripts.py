"""What earlier answers said: a later turn may name one's sound by its id. Bounded in number and age; pure."""

from __future__ import annotations

from collections import OrderedDict

KEPT_ANSWERS = 4096
KEPT_CHARS = 1 << 24


class Transcripts:
    """Times are seconds since 1970. `owner`: the name of the API key; nobody else's answers can be named."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, str], tuple[int, str]] = OrderedDict()
        self._chars = 0

    def keep(self, owner: str, audio_id: str, expires_at: int, transcript: str) -> None:
        _, before = self._kept.pop((owner, audio_id), (0, ""))
        self._chars -= len(before)
        self._kept[owner, audio_id] = (expires_at, transcript)
        self._chars += len(transcript)
        while len(self._kept) > KEPT_ANSWERS or self._chars > KEPT_CHARS:
            _, (_, gone) = self._kept.popitem(last=False)
            self._chars -= len(gone)

    def of(self, owner: str, audio_id: str, now: float) -> str | None:
        """None: unknown, or expired."""
        expires_at, transcript = self._kept.get((owner, audio_id), (0, ""))
        return transcript if expires_at > now else None
