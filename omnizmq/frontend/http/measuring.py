"""How long requests take, as their callers meet it. Pure: moments are seconds on one clock, and come in."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from omnizmq.frontend.output import RequestOutput

KEPT_LATENCIES = 256
"""Of so many of the newest requests `/v1/deployment` tells the latencies."""


class Playback:
    """A player that begins with the first sound it gets, and waits where the next has not come in time."""

    def __init__(self) -> None:
        self.underrun_s = 0.0
        self._silent_from_s: float | None = None

    def add(self, now_s: float, sound_s: float) -> None:
        """So many seconds of sound have come."""
        begin_s = now_s if self._silent_from_s is None else max(now_s, self._silent_from_s)
        if self._silent_from_s is not None:
            self.underrun_s += begin_s - self._silent_from_s
        self._silent_from_s = begin_s + sound_s


class Measured:
    """One request, from its being asked on. None: it has not come. `duration_s`: once it has ended."""

    def __init__(self, now_s: float) -> None:
        self._asked_s = now_s
        self._playback = Playback()
        self.first_text_s: float | None = None
        self.first_audio_s: float | None = None
        self.last_audio_s: float | None = None
        self.duration_s = 0.0
        self.audio_s = 0.0

    def take(self, output: RequestOutput, now_s: float) -> None:
        since_s = now_s - self._asked_s
        if output.text and self.first_text_s is None:
            self.first_text_s = since_s
        if output.sound is not None:
            if self.first_audio_s is None:
                self.first_audio_s = since_s
            self.last_audio_s = since_s
            samples, rate = output.sound
            audio_s = len(samples) / rate
            self.audio_s += audio_s
            self._playback.add(now_s, audio_s)

    def end(self, now_s: float) -> None:
        self.duration_s = now_s - self._asked_s

    @property
    def underrun_s(self) -> float:
        return self._playback.underrun_s

    @property
    def rtf(self) -> float | None:
        """Real-time factor: seconds until the last sound had come, for each second of sound. Below 1 it is faster than
        it is heard."""
        return self.last_audio_s / self.audio_s if self.last_audio_s is not None and self.audio_s else None


class Latencies:
    """Of the newest requests that ended well."""

    def __init__(self) -> None:
        self._kept: deque[Measured] = deque(maxlen=KEPT_LATENCIES)

    def add(self, measured: Measured) -> None:
        self._kept.append(measured)

    def document(self) -> dict[str, Any]:
        """Medians and 95th percentiles in seconds; None where no request had such a moment."""
        return {
            "requests": len(self._kept),
            "first_text_s": _quantiles([one.first_text_s for one in self._kept]),
            "first_audio_s": _quantiles([one.first_audio_s for one in self._kept]),
            "duration_s": _quantiles([one.duration_s for one in self._kept]),
        }


def _quantiles(given: Sequence[float | None]) -> dict[str, float] | None:
    """By the nearest rank."""
    values = sorted(value for value in given if value is not None)
    if not values:
        return None
    return {f"p{part}": round(values[(len(values) * part + 99) // 100 - 1], 6) for part in (50, 95)}
