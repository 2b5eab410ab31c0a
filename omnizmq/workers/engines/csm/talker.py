"""CSM's Talker: a text to codec frames, several requests in each step (continuous batching).

A step computes the text of one new request, then one frame of each that runs. What is said is the prompt's last turn,
which must be the user's and of text alone; turns before it are not heard. A reply ends with a frame of the codec's end
alone, or at `max_tokens`. A request fails alone (`attempt`).

Options: `initial_chunk_frames` (4) of a reply's first chunk and `chunk_frames` (25) of the others, 0.08 s a frame;
`slots` (the stage's `max_inflight`): requests computed at once (`hf.requests`); `slot_tokens` (4096, at most the
model's positions): text and frames of one request together; `dtype` (the checkpoint's); `threads` (1) on a CPU.
Parameters: `speaker` (0: the voices of a conversation by number), `max_tokens` (1125 frames, 90 s), `temperature`
(0.9), `top_k` (50), `top_p` (1.0), `seed` (42: the same text sounds the same). 0.9, 50 and 90 s are the defaults of its
authors (https://github.com/SesameAILabs/csm, `generator.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from omnizmq.errors import InvalidRequestError, StageError
from omnizmq.workers.engine import Chunk, EngineContext, EngineRequest, FinishReason, StageOutput
from omnizmq.workers.engines.csm.talker_model import TalkerModel
from omnizmq.workers.engines.csm.text import Texts
from omnizmq.workers.engines.hf.checkpoint import Checkpoint
from omnizmq.workers.engines.hf.frames import codes_chunk
from omnizmq.workers.engines.hf.requests import Held, Requests, attempt, not_finite
from omnizmq.workers.engines.hf.sampling import SETTINGS, Sampler, Sampling, generator
from omnizmq.workers.engines.hf.stage import Stage
from omnizmq.workers.engines.settings import read_params, whole
from omnizmq.workers.engines.torch_errors import told_by_failure_of

PARAMS = {
    **{name: SETTINGS[name] for name in ("temperature", "top_k", "top_p", "seed")},
    "max_tokens": whole(1, 1 << 20),
    "speaker": whole(0, 99),
}
DEFAULTS: dict[str, Any] = {
    "temperature": 0.9,
    "top_k": 50,
    "top_p": 1.0,
    "seed": 42,
    "max_tokens": 1125,
    "speaker": 0,
}


def create_talker(context: EngineContext, options: Mapping[str, Any], checkpoint: Checkpoint) -> Talker:
    """Raises `ConfigError`, `LaunchError`."""
    stage = Stage(context, options, checkpoint)
    context.progress("loading the talker")
    model = TalkerModel(stage)
    return Talker(context, stage, model, Texts(checkpoint, stage.config.text_vocab_size, model.slots.tokens))


@dataclass(kw_only=True)
class _Speech(Held):
    """One request. `hidden` `[1, hidden]`: of the slot's last position; `frame`: the last one, not in the slot yet."""

    text: list[int]
    most: int
    hidden: torch.Tensor | None = None
    made: int = 0
    frame: list[int] = field(default_factory=list)
    held: list[list[int]] = field(default_factory=list)  # frames not yet handed on
    sent: int = 0

    @property
    def length(self) -> int:
        return len(self.text) + self.made - 1 if self.made else 0

    @property
    def usage(self) -> dict[str, int | float]:
        return {"prompt_tokens": len(self.text), "completion_tokens": self.made, "frames": self.sent}


class Talker:
    """See the module."""

    def __init__(self, context: EngineContext, stage: Stage, model: TalkerModel, texts: Texts) -> None:
        self._context = context
        self._model = model
        self._texts = texts
        self._device = stage.device
        self._initial_chunk_frames: int = stage.options.get("initial_chunk_frames", 4)
        self._chunk_frames: int = stage.options.get("chunk_frames", 25)
        self._requests: Requests[_Speech] = Requests(model.slots)

    # --- Engine ----------------------------------------------------------------------------------------------------

    def add(self, request: EngineRequest) -> None:
        """Raises `InvalidRequestError`, and what `failure_of` makes of memory that is short."""
        params = {**DEFAULTS, **read_params(request.params, PARAMS)}
        with told_by_failure_of(request.request_id):
            text = self._texts.read(request.prompt, params["speaker"])
        holds = self._model.slots.tokens
        room = holds - len(text)
        if room < 1:
            raise InvalidRequestError(f"the text has {len(text)} tokens: a slot holds {holds}, the speech included")
        sampling = Sampling(params["temperature"], params["top_k"], params["top_p"])
        sampler = Sampler(sampling, generator(self._device, params["seed"]), self._model.suppressed)
        self._requests.add(
            _Speech(request_id=request.request_id, sampler=sampler, text=text, most=min(params["max_tokens"], room))
        )

    def feed(self, request_id: str, edge: str, chunk: Chunk) -> None:  # noqa: ARG002
        raise StageError(f"this talker takes no chunks; one came from {edge}")

    def end_of_input(self, request_id: str, edge: str) -> None:  # noqa: ARG002
        raise StageError(f"this talker takes no chunks; {edge} ended")

    def abort(self, request_id: str) -> list[StageOutput]:
        speech = self._requests.get(request_id)
        if speech is None:
            return []
        self._requests.forget(speech)
        return [StageOutput(request_id, ended=True, finish_reason="abort", usage=speech.usage)]

    def has_work(self, request_id: str) -> bool:
        return self._requests.get(request_id) is not None

    def step(self, ready: Sequence[str]) -> list[StageOutput]:
        speeches = self._requests.seat(ready)
        new = [speech for speech in speeches if not speech.made][:1]
        running = sorted((speech for speech in speeches if speech.made), key=lambda speech: speech.own_slot)
        with torch.inference_mode():
            attempt(new, self._begin)
            attempt(running, self._advance)
            attempt([speech for speech in running + new if speech.failure is None], self._make_frames)
        outputs = [self._output(speech) for speech in running + new]
        return [output for output in outputs if output is not None]

    def close(self) -> None:
        self._requests.clear()

    # --- Inside ----------------------------------------------------------------------------------------------------

    def _begin(self, speeches: Sequence[_Speech]) -> None:
        """Of one request alone."""
        (speech,) = speeches
        speech.hidden = self._model.prefill(speech.own_slot, speech.text)

    def _advance(self, speeches: Sequence[_Speech]) -> None:
        """Each one's last frame into its slot."""
        hidden = self._model.advance(
            [speech.own_slot for speech in speeches],
            [speech.length for speech in speeches],
            [speech.frame for speech in speeches],
        )
        for speech, row in zip(speeches, hidden, strict=True):
            speech.hidden = row[None]

    def _make_frames(self, speeches: Sequence[_Speech]) -> None:
        hidden = torch.cat([speech.hidden for speech in speeches if speech.hidden is not None])
        frames = self._model.frames(hidden, [speech.sampler for speech in speeches])
        for speech, frame in zip(speeches, frames, strict=True):
            if frame is None:
                speech.failure = not_finite()
            else:
                speech.frame, speech.made = frame, speech.made + 1

    def _output(self, speech: _Speech) -> StageOutput | None:
        if speech.failure is not None:
            self._requests.forget(speech)
            return StageOutput(speech.request_id, error=speech.failure)
        reason = self._reason(speech)
        if any(code != self._model.end for code in speech.frame):
            speech.held.append(speech.frame)
        chunks = []
        wanted = self._chunk_frames if speech.sent else self._initial_chunk_frames
        if len(speech.held) >= wanted or (reason and speech.held):
            chunks.append(codes_chunk(speech.sent, speech.held))
            speech.sent, speech.held = speech.sent + len(speech.held), []
        if reason is None and not chunks:
            return None
        if reason is not None:
            self._requests.forget(speech)
        return StageOutput(
            speech.request_id,
            chunks=dict.fromkeys(self._context.targets, chunks) if chunks else {},
            ended=reason is not None,
            finish_reason=reason,
            usage=speech.usage if reason is not None else {},
        )

    def _reason(self, speech: _Speech) -> FinishReason | None:
        if all(code == self._model.end for code in speech.frame[:-1]):  # as in the library, whatever the last one is
            return "stop"
        return "length" if speech.made == speech.most else None
