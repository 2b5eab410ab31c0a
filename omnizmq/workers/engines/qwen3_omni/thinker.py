"""The Thinker: a prompt of text, sound and images to text, several requests in each step (continuous batching).

A step computes the prompt of one new request, then one token of each that runs. Tokens go to the Talker as they are
chosen, text to the caller. A request fails alone (`attempt`).

Options: `slots` (the stage's `max_inflight`): requests computed at once (`hf.requests`); `slot_tokens` (4096): prompt
and answer of one request together; `dtype` (the checkpoint's); `threads` (1) on a CPU.
Parameters: `max_tokens` (2048), `temperature` (0: greedy), `top_k`, `top_p`, `repetition_penalty`, `seed`, `stop`;
`say`: the answer is that text, a token each step, whatever the others say. Only its prompt is computed then, since of
an answer the Talker gets the tokens alone (`rows`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from omnizmq.errors import InvalidRequestError, StageError
from omnizmq.workers.engine import Chunk, EngineContext, EngineRequest, FinishReason, StageOutput
from omnizmq.workers.engines.hf.checkpoint import Checkpoint
from omnizmq.workers.engines.hf.requests import Held, Requests, attempt, not_finite
from omnizmq.workers.engines.hf.sampling import (
    SETTINGS,
    Sampler,
    Sampling,
    choose,
    finite,
    generator,
    taken,
)
from omnizmq.workers.engines.hf.stage import Stage
from omnizmq.workers.engines.hf.text import Text
from omnizmq.workers.engines.pinned import ring_memory
from omnizmq.workers.engines.qwen3_omni import axes
from omnizmq.workers.engines.qwen3_omni.prompt import Asked, Prompts
from omnizmq.workers.engines.qwen3_omni.rows import tokens_chunk
from omnizmq.workers.engines.qwen3_omni.thinker_model import ThinkerModel
from omnizmq.workers.engines.settings import SAY_CHARS, read_params, text, texts, whole
from omnizmq.workers.engines.torch_errors import told_by_failure_of

PARAMS = {**SETTINGS, "max_tokens": whole(1, 1 << 20), "stop": texts(16), "say": text(SAY_CHARS)}
MAX_TOKENS = 2048


def create_thinker(context: EngineContext, options: Mapping[str, Any], checkpoint: Checkpoint) -> Thinker:
    """Raises `ConfigError`, `LaunchError`."""
    stage = Stage(context, options, checkpoint)
    context.progress("loading the thinker")
    model = ThinkerModel(stage, for_talker=bool(context.targets))
    return Thinker(context, stage, model, Prompts(stage.checkpoint, stage.config.thinker_config, stage.slot_tokens))


@dataclass(kw_only=True)
class _Answer(Held):
    """One request. `tokens`: what was generated, all but the last of them in the slot once the prompt is; of an answer
    that is `given` (else empty) none are."""

    asked: Asked | None  # until it is in the slot
    prompt: list[int]
    prompt_usage: dict[str, int | float]
    text: Text
    most: int
    given: list[int]
    shift: int  # of positions, by images in the prompt
    tokens: list[int] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)  # of the prompt, until they are handed on

    @property
    def length(self) -> int:
        if not self.tokens:
            return 0
        return len(self.prompt) + (0 if self.given else len(self.tokens) - 1)

    @property
    def usage(self) -> dict[str, int | float]:
        return {**self.prompt_usage, "completion_tokens": len(self.tokens)}


class Thinker:
    """See the module."""

    def __init__(self, context: EngineContext, stage: Stage, model: ThinkerModel, prompts: Prompts) -> None:
        self._context = context
        self._device = stage.device
        self.ring_memory = ring_memory(stage.device)
        self._model = model
        self._prompts = prompts
        self._end = stage.config.im_end_token_id
        self._vocabulary: int = stage.config.thinker_config.text_config.vocab_size
        self._requests: Requests[_Answer] = Requests(model.slots)

    # --- Engine ----------------------------------------------------------------------------------------------------

    def add(self, request: EngineRequest) -> None:
        """Raises `InvalidRequestError`, and what `failure_of` makes of memory that is short."""
        stop = request.params.get("stop")
        params = read_params({**request.params, "stop": [stop]} if isinstance(stop, str) else request.params, PARAMS)
        with told_by_failure_of(request.request_id):
            asked = self._prompts.read(request.prompt)
            given = [*self._prompts.answer(params["say"]), self._end] if "say" in params else []
        prompt = asked.ids
        room = self._room(prompt, given)
        sampler = Sampler(
            Sampling(**{key: value for key, value in params.items() if key in Sampling.__slots__}),
            generator(self._device, params.get("seed")),
        )
        self._requests.add(
            _Answer(
                request_id=request.request_id,
                sampler=sampler,
                asked=asked,
                prompt=prompt,
                prompt_usage=asked.usage,
                text=Text(self._prompts.vocabulary, [] if given else params.get("stop", [])),
                most=len(given) or min(params.get("max_tokens", MAX_TOKENS), room),
                given=given,
                shift=axes.shift(asked.images),
            )
        )

    def feed(self, request_id: str, edge: str, chunk: Chunk) -> None:  # noqa: ARG002
        raise StageError(f"a thinker takes no chunks; one came from {edge}")

    def end_of_input(self, request_id: str, edge: str) -> None:  # noqa: ARG002
        raise StageError(f"a thinker takes no chunks; {edge} ended")

    def abort(self, request_id: str) -> list[StageOutput]:
        """Immediate. Text that was held back, because a stop text could have begun, is returned."""
        answer = self._requests.get(request_id)
        if answer is None:
            return []
        self._requests.forget(answer)
        content = answer.text.finish() if self._context.final_output else None
        return [StageOutput(request_id, content or None, ended=True, finish_reason="abort", usage=answer.usage)]

    def has_work(self, request_id: str) -> bool:
        return self._requests.get(request_id) is not None

    def step(self, ready: Sequence[str]) -> list[StageOutput]:
        answers = self._requests.seat(ready)
        new = [answer for answer in answers if not answer.tokens][:1]
        running = sorted((answer for answer in answers if answer.tokens), key=lambda answer: answer.own_slot)
        attempt(new, self._begin)
        attempt([answer for answer in running if not answer.given], self._continue)
        for answer in running:
            if answer.given:
                answer.tokens.append(answer.given[len(answer.tokens)])
        return [self._output(answer) for answer in new + running]

    def close(self) -> None:
        self._requests.clear()

    # --- Inside ----------------------------------------------------------------------------------------------------

    def _room(self, prompt: list[int], given: list[int]) -> int:
        """Tokens that an answer may have. Raises `InvalidRequestError` where that is none, or fewer than are given."""
        holds = self._model.slots.tokens
        room = holds - len(prompt)
        if not prompt or room < 1:
            raise InvalidRequestError(f"the prompt has {len(prompt)} tokens: a slot holds {holds}, the answer included")
        if len(given) > room:
            raise InvalidRequestError(
                f"the prompt has {len(prompt)} tokens and the text to say {len(given)}: a slot holds {holds}"
            )
        return room

    def _begin(self, answers: Sequence[_Answer]) -> None:
        """Of one request alone."""
        (answer,) = answers
        assert answer.asked is not None
        answer.sampler.saw(answer.prompt, self._vocabulary)
        logits, rows = self._model.prefill(answer.own_slot, answer.asked)
        self._choose(answers, logits)
        grids = answer.asked.patches.grids if answer.asked.patches is not None else ()
        answer.asked = None
        answer.chunks.append(tokens_chunk(answer.prompt, rows, grids))

    def _continue(self, answers: Sequence[_Answer]) -> None:
        logits = self._model.decode(
            [answer.own_slot for answer in answers],
            [answer.length for answer in answers],
            [answer.shift for answer in answers],
            [answer.tokens[-1] for answer in answers],
        )
        self._choose(answers, logits)

    def _choose(self, answers: Sequence[_Answer], logits: torch.Tensor) -> None:
        for answer in answers:  # again, where this is computed again: it changes nothing then
            answer.sampler.saw(answer.tokens[-1:], self._vocabulary)
        tokens = taken(choose(logits, [answer.sampler for answer in answers]), finite(logits))
        for answer, token in zip(answers, tokens, strict=True):
            if token is None:
                answer.failure = not_finite()
            else:
                answer.tokens.append(answer.given[0] if answer.given else token)

    def _output(self, answer: _Answer) -> StageOutput:
        if answer.failure is not None:
            self._requests.forget(answer)
            return StageOutput(answer.request_id, error=answer.failure)
        token = answer.tokens[-1]
        text = "" if token == self._end else answer.text.push(token)
        reason: FinishReason | None = None
        if token == self._end or answer.text.stopped:
            reason = "stop"
        elif len(answer.tokens) == answer.most:
            reason = "length"
        if reason is not None:
            text += answer.text.finish()
            self._requests.forget(answer)
        chunks, answer.chunks = [*answer.chunks, tokens_chunk([token])], []
        return StageOutput(
            answer.request_id,
            content=text if text and self._context.final_output else None,
            chunks=dict.fromkeys(self._context.targets, chunks),
            ended=reason is not None,
            finish_reason=reason,
            usage=answer.usage if reason is not None else {},
        )
