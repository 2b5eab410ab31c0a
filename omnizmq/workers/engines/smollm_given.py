"""An answer that the request brings along (parameter `say`): nothing is computed, and it comes word by word. Pure."""

from __future__ import annotations

import re
from collections import deque

from omnizmq.workers.engines.smollm_generation import News

_WORD = re.compile(r"\s*\S+(?:\s+\Z)?")


class Given:
    """`text` is not blank. A word of it counts as a token."""

    def __init__(self, text: str) -> None:
        self._words = deque(_WORD.findall(text))
        self._handed = 0

    @property
    def has_news(self) -> bool:
        return bool(self._words)

    def take(self) -> News:
        """The next word, with the blanks before it, and after the last."""
        text = self._words.popleft() if self._words else ""
        self._handed += bool(text)
        usage: dict[str, int | float] = {
            "prompt_tokens": 0,
            "completion_tokens": self._handed,
            "cached_tokens": 0,
        }
        return News(text, None if self._words else "stop", None, usage)

    def cancel(self) -> None:
        self._words.clear()
