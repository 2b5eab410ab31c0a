"""Requests in vLLM's engine: one of its steps for each of ours.

A request enters vLLM when it is let run for the first time (R1); how many of them share a step, and which waits for
blocks of the cache, is vLLM's to decide. One that may not go on (its caller does not read, an edge is full) is computed
along with those that may, to its own end and no further: vLLM has no way to set one aside that cannot also keep its
blocks from the others. What it makes waits here. There is room for as many of these as for those that run
(`options.INSIDE`); behind more of them a request waits until one has been computed. When nobody may go on, nothing is
computed.

Sounds and images of a prompt are encoded when it enters vLLM, and its chunk for a Talker is there when vLLM has
computed it (`items`).

An exception of vLLM's own step leaves its scheduler in a state that nobody knows: the worker is replaced.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vllm.exceptions import VLLMClientError

from omnizmq.errors import InvalidRequestError, OmnizmqError, StageError
from omnizmq.protocol import Prompt
from omnizmq.workers.engine import Chunk, EngineBrokenError, EngineContext, EngineRequest, StageOutput
from omnizmq.workers.engines.hf.text import Text
from omnizmq.workers.engines.settings import SAY_CHARS, read_params, text
from omnizmq.workers.engines.torch_errors import failure_of, told_by_failure_of
from omnizmq.workers.engines.vllm import options, params
from omnizmq.workers.engines.vllm.answer import Answer
from omnizmq.workers.engines.vllm.handing import Handing
from omnizmq.workers.engines.vllm.prompts import Asked, Reading

if TYPE_CHECKING:
    from vllm import RequestOutput
    from vllm.v1.engine.llm_engine import LLMEngine

    from omnizmq.workers.engines.vllm.items import Items

log = logging.getLogger(__name__)

_SAY = {"say": text(SAY_CHARS)}


class Generation:
    """See the module. `handing`: what goes to downstream stages; `end`: the token that ends a given answer, which is
    not said; `items`: those of prompts, where the model takes any."""

    def __init__(
        self,
        context: EngineContext,
        engine: LLMEngine,
        prompts: Reading,
        handing: Handing,
        end: int,
        items: Items | None = None,
    ) -> None:
        self._context = context
        self._engine = engine
        self._prompts = prompts
        self._handing = handing
        self._end = end
        self._items = items
        self._defaults: dict[str, Any] = engine.model_config.get_diff_sampling_param()
        self._room: int = engine.model_config.max_model_len
        self._most_inside = options.INSIDE * context.max_inflight
        self._answers: dict[str, Answer] = {}

    # --- Engine ----------------------------------------------------------------------------------------------------

    def add(self, request: EngineRequest) -> None:
        """Raises `InvalidRequestError`."""
        asked = dict(request.params)
        said = read_params({"say": asked.pop("say", None)}, _SAY)
        given = [*self._prompts.answer(said["say"]), self._end] if said else []
        answer = Answer(
            request_id=request.request_id,
            params=params.read(asked, self._defaults),
            priority=self._rank(request.priority),
            given=given,
            spoken=Text(self._prompts.vocabulary, []) if given else None,
            open_edges=set(self._context.sources),
            heard={source: [] for source in self._context.sources},
        )
        if not self._context.sources:
            self._asked(answer, request.prompt)
        self._answers[request.request_id] = answer

    def feed(self, request_id: str, edge: str, chunk: Chunk) -> None:
        """A text is what one says to this stage, all of it before the answer begins. Raises `StageError`."""
        said = chunk.meta.get("text")
        if not isinstance(said, str):
            raise StageError(f"a chunk from {edge} has no text: it must have it as meta['text']")
        self._answers[request_id].heard[edge].append(said)

    def end_of_input(self, request_id: str, edge: str) -> None:
        """Raises `InvalidRequestError` for a text that is too long."""
        answer = self._answers[request_id]
        answer.open_edges.discard(edge)
        if not answer.open_edges:
            heard = (text for edge in self._context.sources for text in answer.heard[edge])
            self._asked(answer, Prompt("".join(heard), None, None))

    def abort(self, request_id: str) -> list[StageOutput]:
        """Immediate: its blocks of the cache are free. Text that was held back, because a stop text could have begun,
        is returned."""
        answer = self._answers.pop(request_id, None)
        if answer is None:
            return []
        self._forget(answer)
        if answer.inner is not None:
            answer.text += self._held_back(answer.inner)
            self._remove(answer.inner)
        content = answer.text if answer.text and self._context.final_output else None
        logprobs = answer.logprobs if self._context.final_output else ()
        return [
            StageOutput(request_id, content, ended=True, finish_reason="abort", usage=answer.usage, logprobs=logprobs)
        ]

    def has_work(self, request_id: str) -> bool:
        answer = self._answers.get(request_id)
        return answer is not None and bool(answer.prompt)

    def step(self, ready: Sequence[str]) -> list[StageOutput]:
        answers = [self._answers[request_id] for request_id in ready]
        for answer in answers:
            if answer.asked is not None and (answer.given or self._has_room):
                self._begin(answer)
            if answer.given and answer.asked is None and answer.inner is None and not answer.ended:
                answer.say()
        if any(answer.inner is not None or answer.asked is not None for answer in answers):
            self._compute()
        return [self._output(answer) for answer in answers if answer.has_news]

    def close(self) -> None:
        self._answers.clear()
        self._engine.engine_core.shutdown()

    # --- Inside ----------------------------------------------------------------------------------------------------

    @property
    def _has_room(self) -> bool:
        return bool(self._engine.get_num_unfinished_requests() < self._most_inside)

    def _rank(self, priority: int) -> int:
        """vLLM's: the lowest goes first. All gain by waiting at the same pace, so the order of two never changes: it is
        that of their arrival less what their priority is worth (B2), in thousandths."""
        return int(1000 * (time.monotonic() / self._context.priority_age_s - priority))

    def _asked(self, answer: Answer, prompt: Prompt | None) -> None:
        with told_by_failure_of(answer.request_id):
            asked = self._prompts.read(prompt)
        room = self._room - len(asked.ids)
        if not asked.ids or room < 1:
            raise InvalidRequestError(
                f"the prompt has {len(asked.ids)} tokens: from 1 to {self._room - 1} were expected"
            )
        if len(answer.given) > room:
            raise InvalidRequestError(f"the text to say has {len(answer.given)} tokens: beside the prompt fit {room}")
        answer.asked, answer.prompt, answer.prompt_usage = asked, asked.ids, asked.usage

    def _begin(self, answer: Answer) -> None:
        """Into vLLM, unless nothing is to be computed for it."""
        asked, answer.asked = answer.asked, None
        assert asked is not None
        answer.awaits_rows = self._items is not None and self._items.for_talker and asked.has_items
        if not answer.awaits_rows:
            answer.prompt_chunk = self._handing.prompt(asked.ids)
            if answer.given:
                return
        try:
            prompt = self._input(answer, asked)
            wanted = params.prompt_alone() if answer.given else answer.params
            answer.inner = self._engine.add_request(answer.request_id, prompt, wanted, priority=answer.priority)
        except (VLLMClientError, ValueError) as error:
            answer.error = InvalidRequestError(f"vLLM refuses the request: {params.line_of(error)}")
        except OmnizmqError as error:
            answer.error = error
        except Exception as error:
            if getattr(self._engine.model_executor, "is_failed", False):
                raise _broken(error) from error
            log.exception("vLLM did not take a request")
            answer.error = StageError(f"vLLM did not take the request: {type(error).__name__}: {params.line_of(error)}")

    def _input(self, answer: Answer, asked: Asked) -> Any:
        """Its prompt as vLLM takes it. Raises `OmnizmqError` where its sounds and images cannot be encoded."""
        if self._items is not None and asked.has_items:
            try:
                return self._items.prompt(answer.request_id, asked)
            except Exception as error:  # noqa: BLE001 (F1: whatever the libraries raise is about this request)
                raise failure_of(error, answer.request_id) from None
        (prompt,) = self._engine.renderer.render_cmpl([{"prompt_token_ids": asked.ids}])
        return prompt

    def _forget(self, answer: Answer) -> None:
        if answer.awaits_rows and self._items is not None:
            self._items.forget(answer.request_id)

    def _compute(self) -> None:
        try:
            outputs = self._engine.step()
        except Exception as error:
            log.exception("vLLM's engine failed")
            raise _broken(error) from error
        for output in outputs:
            answer = self._answers.get(output.request_id)
            if answer is not None:
                self._take(answer, output)
        if self._items is not None:
            for request_id, chunk in self._items.chunks().items():
                answer = self._answers[request_id]
                answer.prompt_chunk, answer.awaits_rows = chunk, False

    def _take(self, answer: Answer, output: RequestOutput) -> None:
        """What vLLM has made is one request's alone, and so is what is wrong with it (F1)."""
        try:
            answer.took(output, self._prompts.vocabulary)
        except Exception as error:
            log.exception("an output of vLLM's")
            answer.error = StageError(f"vLLM made an output that is none: {type(error).__name__}: {error}")
            if answer.inner is not None:
                self._remove(answer.inner)

    def _remove(self, inner: str) -> None:
        try:
            self._engine.abort_request([inner], internal=True)
        except Exception as error:
            log.exception("vLLM's engine failed")
            raise _broken(error) from error

    def _held_back(self, inner: str) -> str:
        state = self._engine.output_processor.request_states.get(inner)
        if state is None or state.detokenizer is None:
            return ""
        held: str = state.detokenizer.get_next_output_text(finished=True, delta=True)
        return held

    def _output(self, answer: Answer) -> StageOutput:
        if answer.awaits_rows and answer.error is None:
            answer.error = StageError("vLLM gave no hidden states of the prompt's sounds and images")
            if answer.inner is not None:
                self._remove(answer.inner)
        if answer.ended:
            self._forget(answer)
            del self._answers[answer.request_id]
        if answer.error is not None:
            return StageOutput(answer.request_id, error=answer.error)
        chunks = [] if answer.prompt_chunk is None else [answer.prompt_chunk]
        chunks += self._handing.made(answer.text, answer.tokens)
        content, logprobs = answer.text, answer.logprobs
        answer.text, answer.tokens, answer.logprobs, answer.prompt_chunk = "", [], [], None
        return StageOutput(
            answer.request_id,
            content=content if content and self._context.final_output else None,
            chunks=dict.fromkeys(self._context.targets, chunks) if chunks else {},
            ended=answer.reason is not None,
            finish_reason=answer.reason,
            usage=answer.usage if answer.reason is not None else {},
            note=answer.note,
            logprobs=logprobs if self._context.final_output else (),
        )


def _broken(error: Exception) -> EngineBrokenError:
    line = str(error).partition("\n")[0]
    return EngineBrokenError(f"vLLM's engine failed: {type(error).__name__}: {line}")
