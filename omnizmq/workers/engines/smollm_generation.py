"""One answer of the language model: a call that blocks in a thread of its own, and what it has made so far.

The server calls back with dictionaries in the style of OpenAI's streamed chat completions. Text waits in a bounded
queue until a step takes it; a full queue blocks the callback, and with it this answer alone. `cancel` ends the call at
its next callback, which comes at least once for every 16 tokens of prompt.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from omnizmq.errors import InvalidRequestError, OmnizmqError, StageError
from omnizmq.workers.engine import FinishReason

QUEUED_DELTAS = 64
"""Text deltas that may wait for a step."""

_FINISH_REASONS: dict[str, FinishReason] = {"stop": "stop", "length": "length"}


class ChatServer(Protocol):
    """The part of `xllamacpp.Server` that is used."""

    def handle_chat_completions(self, body: Mapping[str, Any], callback: Callable[[Any], bool]) -> object: ...


@dataclass(frozen=True, slots=True)
class News:
    """What came since the last look. `text` may be empty; the rest is set once the answer has ended."""

    text: str
    finish_reason: FinishReason | None
    error: OmnizmqError | None
    usage: dict[str, int | float]


@dataclass
class _Made:
    deltas: deque[str] = field(default_factory=deque)
    finish_reason: FinishReason | None = None
    error: OmnizmqError | None = None
    ended: bool = False
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0


class Generation:
    """`run` belongs to the answer's own thread, everything else to the engine thread; `goes_on` is read from any.

    In the answer's thread, `wake` is called whenever there is news, and `prefilled` at every callback that comes once
    the prompt has been computed.
    """

    def __init__(
        self, body: Mapping[str, Any], wake: Callable[[], None], prefilled: Callable[[Generation], None]
    ) -> None:
        self._body = body
        self._wake = wake
        self._prefilled = prefilled
        self._changed = threading.Condition()
        self._cancelled = False
        self._made = _Made()

    # --- The engine thread -----------------------------------------------------------------------------------------

    @property
    def has_news(self) -> bool:
        with self._changed:
            return bool(self._made.deltas) or self._made.ended

    @property
    def goes_on(self) -> bool:
        """It is queued or computed: it has not ended, and does not wait for a step to take what it has made."""
        with self._changed:
            return not self._made.ended and len(self._made.deltas) < QUEUED_DELTAS

    def take(self) -> News:
        """All that has come, and room for more."""
        with self._changed:
            made = self._made
            text = "".join(made.deltas)
            made.deltas.clear()
            self._changed.notify_all()
            usage: dict[str, int | float] = {
                "prompt_tokens": made.prompt_tokens,
                "completion_tokens": made.completion_tokens,
                "cached_tokens": made.cached_tokens,
            }
            if not made.ended:
                return News(text, None, None, usage)
            return News(text, made.finish_reason, made.error, usage)

    def cancel(self) -> None:
        with self._changed:
            self._cancelled = True
            self._changed.notify_all()

    # --- The answer's own thread -----------------------------------------------------------------------------------

    def run(self, server: ChatServer, slot: int) -> None:
        """Blocks until the answer has ended, failed or been cancelled. Never raises: errors become `News.error`."""
        request = {
            **self._body,
            "id_slot": slot,
            "stream": True,
            "stream_options": {"include_usage": True},
            "cache_prompt": True,
            "return_progress": True,
        }
        try:
            if not self._cancelled:
                server.handle_chat_completions(request, self._came)
        except Exception as error:  # noqa: BLE001 (whatever the library raises ends this answer alone)
            self._failed(error)
        self._end()

    def _came(self, item: Any) -> bool:
        """The server's callback: True stops the call. The library swallows exceptions, so none may leave here."""
        try:
            return self._take_in(item)
        except Exception as error:  # noqa: BLE001 (see above)
            self._failed(error)
            return True

    def _take_in(self, item: Mapping[str, Any]) -> bool:
        with self._changed:
            if "error" in item:
                self._made.error = self._made.error or _refusal(item["error"])
                return True
            self._count(item)
            progress = item.get("prompt_progress")
            if progress is None or progress["processed"] == progress["total"]:
                self._prefilled(self)
            for choice in item["choices"]:
                if choice["finish_reason"] is not None:
                    self._made.finish_reason = _FINISH_REASONS[choice["finish_reason"]]
                self._put(choice["delta"].get("content") or "")
            return self._cancelled

    def _count(self, item: Mapping[str, Any]) -> None:
        made = self._made
        if progress := item.get("prompt_progress"):
            made.prompt_tokens = progress["total"]
            made.cached_tokens = progress["cache"]
        if usage := item.get("usage"):
            made.prompt_tokens = usage["prompt_tokens"]
            made.completion_tokens = usage["completion_tokens"]
            made.cached_tokens = usage["prompt_tokens_details"]["cached_tokens"]

    def _put(self, delta: str) -> None:
        """Waits for room. Called with the lock, which waiting gives up."""
        if not delta:
            return
        self._changed.wait_for(lambda: len(self._made.deltas) < QUEUED_DELTAS or self._cancelled)
        self._made.deltas.append(delta)
        self._made.completion_tokens += 1
        self._wake()

    def _failed(self, error: Exception) -> None:
        with self._changed:
            self._made.error = self._made.error or StageError(f"llama.cpp: {type(error).__name__}: {error}")

    def _end(self) -> None:
        with self._changed:
            made = self._made
            if made.finish_reason is None and made.error is None and not self._cancelled:
                made.error = StageError("llama.cpp ended an answer without saying why")
            made.ended = True
        self._wake()


def _refusal(error: Mapping[str, Any]) -> OmnizmqError:
    """An error that the server reports as an item of the stream."""
    if error.get("type") == "exceed_context_size_error":
        return InvalidRequestError(
            f"the prompt is too long: it has {error['n_prompt_tokens']} tokens with its system line and examples, "
            f"and a slot holds {error['n_ctx']}; shorten it, or raise slot_tokens in the stage's options"
        )
    kind = InvalidRequestError if error.get("code") == 400 else StageError
    return kind(f"llama.cpp: {error.get('message', error)}")
