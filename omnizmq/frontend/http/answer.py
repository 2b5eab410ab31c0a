"""One answer as OpenAI's chat completions have it: whole, or chunk by chunk. Pure: outputs in, documents out.

One choice joins text and sound. With sound, the text is its transcript. A client joins every string that it gets, so an
id or a role is said once.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from omnizmq.frontend.http.logprobs import logprobs_of
from omnizmq.frontend.http.problems import ABORTED, BridgeError
from omnizmq.frontend.http.sound import Base64Stream, Encoder
from omnizmq.frontend.output import RequestOutput
from omnizmq.protocol import TokenLogprob

Usage = Mapping[str, Mapping[str, int | float]]

CHAT_ID = "chatcmpl-"
"""Stands before the request's id in that of a chat answer, as OpenAI's API has it."""

EXPIRES_S = 3600
"""How long an answer's sound can be named in a later turn."""


@dataclass(frozen=True)
class Head:
    """What all documents of an answer have in common. `created`: seconds since 1970; `text_stage`: None where no stage
    makes text."""

    id: str
    model: str
    created: int
    text_stage: str | None

    @property
    def audio_id(self) -> str:
        return f"audio_{self.id.removeprefix(CHAT_ID)}"

    @property
    def expires_at(self) -> int:
        return self.created + EXPIRES_S

    def usage(self, counted: Usage) -> dict[str, Any]:
        tokens = tokens_of(counted, self.text_stage)
        made = tokens.text + tokens.audio
        return {
            "prompt_tokens": tokens.prompt,
            "completion_tokens": made,
            "total_tokens": tokens.prompt + made,
            "prompt_tokens_details": {
                "audio_tokens": tokens.prompt_audio,
                "text_tokens": tokens.prompt - tokens.prompt_audio - tokens.prompt_image,
                "image_tokens": tokens.prompt_image,
                "cached_tokens": tokens.cached,
            },
            "completion_tokens_details": {
                "audio_tokens": tokens.audio,
                "text_tokens": tokens.text,
                "reasoning_tokens": 0,
            },
        }

    def document(self, kind: str, **more: Any) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model, **more}


class Transcript:
    """The text of an answer, as it comes."""

    def __init__(self) -> None:
        self._parts: list[str] = []

    def add(self, text: str) -> None:
        self._parts.append(text)

    def __str__(self) -> str:
        return "".join(self._parts)


class Whole:
    """An answer that is given at its end. `encoder`: None where no sound was asked for."""

    def __init__(self, head: Head, encoder: Encoder | None) -> None:
        self._head = head
        self._encoder = encoder
        self._end: RequestOutput | None = None
        self._logprobs: list[TokenLogprob] = []
        self.transcript = Transcript()

    def take(self, output: RequestOutput) -> None:
        self._logprobs += output.logprobs
        if output.text:
            self.transcript.add(output.text)
        if output.sound is not None and self._encoder is not None:
            self._encoder.add(*output.sound)
        if output.finished:
            self._end = output

    def document(self) -> dict[str, Any]:
        """Raises `BridgeError` where the request was aborted."""
        assert self._end is not None
        message: dict[str, Any] = {"role": "assistant", "content": str(self.transcript), "refusal": None}
        if self._encoder is not None:
            message["content"] = None
            message["audio"] = {
                "id": self._head.audio_id,
                "data": b64encode(self._encoder.end()).decode(),
                "expires_at": self._head.expires_at,
                "transcript": str(self.transcript),
            }
        choice = {
            "index": 0,
            "message": message,
            "logprobs": logprobs_of(self._logprobs),
            "finish_reason": finish_reason(self._end),
        }
        usage = self._head.usage(self._end.usage)
        return self._head.document("chat.completion", choices=[choice], usage=usage, **notes_of(self._end))


class Streamed:
    """An answer's chunks. `include_usage`: a last one has the usage, and no choice."""

    def __init__(self, head: Head, encoder: Encoder | None, *, include_usage: bool) -> None:
        self._head = head
        self._encoder = encoder
        self._include_usage = include_usage
        self._base64 = Base64Stream()
        self._named = False
        self.transcript = Transcript()

    def begin(self) -> dict[str, Any]:
        return self._chunk({"role": "assistant", "content": "" if self._encoder is None else None, "refusal": None})

    def take(self, output: RequestOutput) -> Iterator[dict[str, Any]]:
        """Raises `BridgeError` where the request was aborted."""
        if output.text or output.logprobs:
            text = output.text or ""
            self.transcript.add(text)
            delta = {"content": text} if self._encoder is None else {"audio": self._audio(transcript=text)}
            yield self._chunk(delta, logprobs=output.logprobs)
        if output.sound is not None and self._encoder is not None:
            yield from self._sound(self._base64.add(self._encoder.add(*output.sound)))
        if output.finished:
            yield from self._end(output)

    def _end(self, output: RequestOutput) -> Iterator[dict[str, Any]]:
        reason = finish_reason(output)
        if self._encoder is not None:
            yield from self._sound(self._base64.add(self._encoder.end()) + self._base64.end())
            yield self._chunk({"audio": self._audio(expires_at=self._head.expires_at)})
        yield self._chunk({}, reason) | notes_of(output)
        if self._include_usage:
            yield self._document(choices=[], usage=self._head.usage(output.usage))

    def _sound(self, data: str) -> Iterator[dict[str, Any]]:
        if data:
            yield self._chunk({"audio": self._audio(data=data)})

    def _audio(self, **part: Any) -> dict[str, Any]:
        if self._named:
            return part
        self._named = True
        return {"id": self._head.audio_id, **part}

    def _chunk(
        self, delta: dict[str, Any], reason: str | None = None, logprobs: Sequence[TokenLogprob] = ()
    ) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": logprobs_of(logprobs), "finish_reason": reason}
        return self._document(choices=[choice])

    def _document(self, **more: Any) -> dict[str, Any]:
        usage = {"usage": None} if self._include_usage else {}
        return self._head.document("chat.completion.chunk", **{**usage, **more})


def notes_of(end: RequestOutput) -> dict[str, Any]:
    """What stages have to say of their part, by their names; nothing where none has."""
    return {"notes": dict(end.notes)} if end.notes else {}


def check_ended(end: RequestOutput) -> None:
    """Raises `BridgeError` where the request was aborted: OpenAI's API has no word for that."""
    if end.finish_reason == "abort":
        aborted = BridgeError(ABORTED, "aborted", "the request was aborted")
        aborted.request_id = end.request_id
        raise aborted


def finish_reason(end: RequestOutput) -> str:
    """`stop` or `length`. Raises as `check_ended`."""
    check_ended(end)
    return end.finish_reason or "stop"


@dataclass(frozen=True)
class Tokens:
    """Of one request: what its first stage read, and of that what was sound, images or kept from before; what was
    made."""

    prompt: int
    prompt_audio: int
    prompt_image: int
    cached: int
    text: int
    audio: int


def tokens_of(usage: Usage, text_stage: str | None) -> Tokens:
    """Each stage's counts, in the stages' order."""
    first = next(iter(usage.values()), {})
    made = {stage: int(counts.get("completion_tokens", 0)) for stage, counts in usage.items()}
    return Tokens(
        prompt=int(first.get("prompt_tokens", 0)),
        prompt_audio=int(first.get("prompt_audio_tokens", 0)),
        prompt_image=int(first.get("prompt_image_tokens", 0)),
        cached=int(first.get("cached_tokens", 0)),
        text=made.pop(text_stage, 0) if text_stage is not None else 0,
        audio=sum(made.values()),
    )
