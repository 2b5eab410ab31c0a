"""An answer's tokens as text for the caller, up to the first stop text. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from omnizmq.workers.engines.hf.byte_tokens import Detokenizer, Vocabulary


class Text:
    """`push` each token, `finish` at the end; both return what may be shown by now. After `stopped` nothing follows."""

    def __init__(self, vocabulary: Vocabulary, stops: Sequence[str]) -> None:
        self._detokenizer = Detokenizer(vocabulary)
        self._stops = stops
        self._held = ""  # may be the beginning of a stop text
        self.stopped = False

    def push(self, token: int) -> str:
        return self._show(self._detokenizer.push(token), last=False)

    def finish(self) -> str:
        return self._show(self._detokenizer.finish(), last=True)

    def _show(self, text: str, *, last: bool) -> str:
        if self.stopped:
            return ""
        text = self._held + text
        found = [at for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)]
        kept = 0 if last else max((_overlap(text, stop) for stop in self._stops), default=0)
        shown = len(text) - kept
        self._held = text[shown:]
        return text[:shown]


def _overlap(text: str, stop: str) -> int:
    """How many characters at the end of `text` are the beginning of `stop`."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
