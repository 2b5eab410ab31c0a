"""One request as this engine keeps it: what vLLM has made of it and nobody was handed yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from omnizmq.errors import InvalidRequestError, OmnizmqError, StageError
from omnizmq.protocol import TokenLogprob
from omnizmq.workers.engine import Chunk, FinishReason

if TYPE_CHECKING:
    from vllm import RequestOutput, SamplingParams
    from vllm.logprobs import Logprob

    from omnizmq.workers.engines.hf.byte_tokens import Vocabulary
    from omnizmq.workers.engines.hf.text import Text
    from omnizmq.workers.engines.vllm.prompts import Asked

_REASONS: dict[str, FinishReason] = {"stop": "stop", "length": "length", "repetition": "stop"}


@dataclass(kw_only=True)
class Answer:
    """`prompt` is empty until all input is there, and `asked` is what was read of it until it is begun; `inner` is
    vLLM's own name of the request while vLLM has it. An answer that is `given` vLLM does not make, at most it computes
    its prompt: its tokens are handed out one a step."""

    request_id: str
    params: SamplingParams
    priority: int
    given: list[int]
    prompt: list[int] = field(default_factory=list)
    prompt_usage: dict[str, int | float] = field(default_factory=dict)
    asked: Asked | None = None
    spoken: Text | None = None  # of what is given
    open_edges: set[str] = field(default_factory=set)  # whose input goes on
    heard: dict[str, list[str]] = field(default_factory=dict)  # over edges
    inner: str | None = None
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_chunk: Chunk | None = None  # until it is handed on
    awaits_rows: bool = False  # and with them that chunk
    completion_tokens: int = 0
    cached_tokens: int = 0
    reason: FinishReason | None = None
    note: str | None = None
    error: OmnizmqError | None = None

    @property
    def ended(self) -> bool:
        return self.reason is not None or self.error is not None

    @property
    def has_news(self) -> bool:
        return bool(self.text or self.tokens or self.ended)

    @property
    def usage(self) -> dict[str, int | float]:
        cached = {"cached_tokens": self.cached_tokens} if self.cached_tokens else {}
        return {**self.prompt_usage, "completion_tokens": self.completion_tokens, **cached}

    def took(self, output: RequestOutput, vocabulary: Vocabulary) -> None:
        """What one of vLLM's steps made."""
        made = output.outputs[0]
        self.cached_tokens = output.num_cached_tokens or 0
        if self.given:
            self.inner = None if made.finish_reason is not None else self.inner
            return
        self.text += made.text
        self.tokens += made.token_ids
        if made.logprobs is not None:
            each = zip(made.token_ids, made.logprobs, strict=True)
            self.logprobs += [_logprob(token, among, self.params.logprobs, vocabulary) for token, among in each]
        self.completion_tokens += len(made.token_ids)
        if made.finish_reason is None:
            return
        self.inner = None
        self.reason = _REASONS.get(made.finish_reason)
        if made.finish_reason == "error" and self.params.structured_outputs is not None:
            self.error = InvalidRequestError("vLLM ended the request: no answer can be as structured_outputs wants it")
        elif self.reason is None:
            self.error = StageError(f"vLLM ended the request: {made.finish_reason}")
        elif made.finish_reason == "repetition":
            self.note = "the answer repeated itself and was ended (repetition_detection)"
        elif isinstance(made.stop_reason, str):
            where = "with" if self.params.include_stop_str_in_output else "before"
            self.note = f'the answer ended {where} the stop text "{made.stop_reason}"'
        elif made.stop_reason is not None:
            self.note = f"the answer ended with the stop token {made.stop_reason}"

    def say(self) -> None:
        """The next token of what is given."""
        assert self.spoken is not None
        token = self.given[self.completion_tokens]
        self.completion_tokens += 1
        self.tokens.append(token)
        last = self.completion_tokens == len(self.given)
        self.text += self.spoken.finish() if last else self.spoken.push(token)
        if last:
            self.reason = "stop"


def _logprob(token: int, among: Mapping[int, Logprob], most: int, vocabulary: Vocabulary) -> TokenLogprob:
    """vLLM has the chosen token `among` the likeliest, of whom `most` were asked for."""

    def spelled(one: int) -> bytes:
        return vocabulary.bytes_of(one) or (among[one].decoded_token or "").encode()

    likeliest = sorted(among, key=lambda each: among[each].rank)[:most]
    top = [(spelled(each), among[each].logprob) for each in likeliest]
    return TokenLogprob(spelled(token), among[token].logprob, top)
