"""The Talker: the Thinker's tokens to codec frames, beginning with the first of them.

A step begins one new request, then makes one frame of each that can go on. Frame k needs the k-th token that is spoken
(none after the last); until it is there the request waits. A reply ends with the codec's own end, or at `max_tokens`.
What cannot be spoken (an empty answer, a prompt without a user's turn) makes no frames, ends in good order and leaves a
note. A request fails alone (`attempt`).

Options: `initial_chunk_frames` (4) of a reply's first chunk and `chunk_frames` (25) of the others, 0.08 s a frame;
`slots`, `slot_tokens`, `dtype`, `threads` as for the Thinker.
Parameters: `speaker` (a name), `max_tokens` (4096: a frame each, and one), `temperature` (0.9), `top_k` (50), `top_p`
(1.0), `repetition_penalty` (1.05), `seed` (42: without a fixed seed speech was found to derail now and then).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from omnizmq.errors import ConfigError, InvalidRequestError
from omnizmq.protocol import Param
from omnizmq.workers.engine import Chunk, EngineContext, EngineRequest, FinishReason, StageOutput
from omnizmq.workers.engines.hf.checkpoint import Checkpoint
from omnizmq.workers.engines.hf.frames import codes_chunk
from omnizmq.workers.engines.hf.options import CHUNK_FRAMES
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
from omnizmq.workers.engines.pinned import ring_memory
from omnizmq.workers.engines.qwen3_omni.axes import Placed
from omnizmq.workers.engines.qwen3_omni.rows import read_tokens
from omnizmq.workers.engines.qwen3_omni.speech_text import Turns, Words
from omnizmq.workers.engines.qwen3_omni.talker_model import OPENING, Reply, TalkerModel
from omnizmq.workers.engines.settings import Setting, read_params, whole
from omnizmq.workers.engines.torch_errors import told_by_failure_of

DEFAULTS: dict[str, Any] = {
    "temperature": 0.9,
    "top_k": 50,
    "top_p": 1.0,
    "repetition_penalty": 1.05,
    "seed": 42,
    "max_tokens": 4096,
}


def create_talker(context: EngineContext, options: Mapping[str, Any], checkpoint: Checkpoint) -> Talker:
    """Raises `ConfigError`, `LaunchError`."""
    stage = Stage(context, options, checkpoint)
    if not stage.config.talker_config.speaker_id:
        raise ConfigError(f'model = "{stage.checkpoint.path}": it has no speakers')
    context.progress("loading the talker")
    return Talker(context, stage, TalkerModel(stage))


@dataclass(kw_only=True)
class _Speech(Held):
    """One request, to which the prompt may still be missing. `residual`: the sampler of all groups but the first; the
    two draw from one source."""

    speaker: int
    residual: Sampler
    most: int
    words: Words
    rows: torch.Tensor | None = None
    images: list[Placed] = field(default_factory=list)  # in the prompt
    reply: Reply | None = None
    frames: list[list[int]] = field(default_factory=list)  # not yet handed on
    frames_sent: int = 0
    last: list[int] = field(default_factory=list)  # the last code of the first group, once there is one
    codes: int = 0  # of the first group, the last one included, which becomes no frame
    reason: FinishReason | None = None
    note: str | None = None

    @property
    def length(self) -> int:
        return 0 if self.reply is None else self.reply.length

    @property
    def usage(self) -> dict[str, int | float]:
        return {"completion_tokens": self.codes, "frames": self.frames_sent}


class Talker:
    """See the module."""

    def __init__(self, context: EngineContext, stage: Stage, model: TalkerModel) -> None:
        self._context = context
        self._model = model
        self._device = stage.device
        self.ring_memory = ring_memory(stage.device)
        self._initial_chunk_frames: int = stage.options.get("initial_chunk_frames", 4)
        self._chunk_frames: int = stage.options.get("chunk_frames", CHUNK_FRAMES)
        self._speakers: dict[str, int] = dict(stage.config.talker_config.speaker_id)
        self._turns = Turns(stage.config.im_start_token_id, stage.config.user_token_id, stage.config.assistant_token_id)
        self._requests: Requests[_Speech] = Requests(model.slots)

    # --- Engine ----------------------------------------------------------------------------------------------------

    def add(self, request: EngineRequest) -> None:
        """Raises `InvalidRequestError`."""
        settings = {
            **SETTINGS,
            "max_tokens": whole(1, 1 << 20),
            "speaker": Setting("a text", lambda v: isinstance(v, str)),
        }
        params = {**DEFAULTS, **read_params(request.params, settings)}
        draws = generator(self._device, params["seed"])
        first = Sampling(**{key: params[key] for key in Sampling.__slots__})
        # As in the library: the other groups are drawn when the first is, by constants of their own.
        others = Sampling(temperature=0.0 if first.greedy else 1.0, top_k=50, top_p=0.8)
        self._requests.add(
            _Speech(
                request_id=request.request_id,
                sampler=Sampler(first, draws, self._model.suppressed),
                residual=Sampler(others, draws),
                speaker=self._speaker(params),
                most=params["max_tokens"],
                words=Words([], self._turns),
            )
        )

    def feed(self, request_id: str, edge: str, chunk: Chunk) -> None:  # noqa: ARG002
        """Raises `StageError`, `InvalidRequestError` for a prompt beyond a slot, and what `failure_of` makes of memory
        that is short."""
        speech = self._requests[request_id]
        with told_by_failure_of(request_id):
            came = read_tokens(chunk, self._device)
        ids = came.ids
        self._model.check_tokens(ids)
        if speech.words.prompt:
            speech.words.answer += ids
            return
        self._model.check_rows(ids, came.rows)
        speech.words.prompt, speech.rows, speech.images = ids, came.rows, self._model.images(ids, came.grids)
        room = self._model.slots.tokens
        if len(ids) + OPENING >= room:
            raise InvalidRequestError(
                f"the prompt has {len(ids)} tokens: a slot of the talker holds {room} with its speech"
            )

    def end_of_input(self, request_id: str, edge: str) -> None:  # noqa: ARG002
        self._requests[request_id].words.ended = True

    def abort(self, request_id: str) -> list[StageOutput]:
        speech = self._requests.get(request_id)
        if speech is None:
            return []
        self._requests.forget(speech)
        return [StageOutput(request_id, ended=True, finish_reason="abort", usage=speech.usage)]

    def has_work(self, request_id: str) -> bool:
        speech = self._requests.get(request_id)
        return speech is not None and self._can_go_on(speech)

    def step(self, ready: Sequence[str]) -> list[StageOutput]:
        speeches = self._requests.seat(ready)
        with torch.inference_mode():
            self._compute(speeches)
        outputs = [self._output(speech) for speech in speeches]
        return [output for output in outputs if output is not None]

    def close(self) -> None:
        self._requests.clear()

    # --- Inside ----------------------------------------------------------------------------------------------------

    def _compute(self, speeches: list[_Speech]) -> None:
        going = [speech for speech in speeches if speech.reply is not None]
        new = [speech for speech in speeches if speech.reply is None][:1]
        attempt([speech for speech in going if _has_code(speech)], self._make_frames)
        moving = [speech for speech in going if speech.failure is None and self._has_words(speech)]
        moving.sort(key=lambda speech: speech.own_slot)
        attempt(moving, self._advance)
        attempt(new, self._begin)
        attempt([speech for speech in moving + new if speech.failure is None and speech.reply], self._choose)

    def _speaker(self, params: Mapping[str, Param]) -> int:
        name = params.get("speaker")
        if name is None:
            return next(iter(self._speakers.values()))
        known = {speaker.lower(): number for speaker, number in self._speakers.items()}
        number = known.get(str(name).lower())
        if number is None:
            raise InvalidRequestError(f'speaker "{name}" is unknown; there are {", ".join(sorted(known))}')
        return number

    def _can_go_on(self, speech: _Speech) -> bool:
        if speech.reply is None:
            return bool(speech.words.prompt and speech.words.spoken) or speech.words.ended
        return _has_code(speech) or self._has_words(speech)

    def _has_words(self, speech: _Speech) -> bool:
        """Whether what the next code needs is known: its token, or that there is none."""
        reply = speech.reply
        return reply is not None and (speech.words.ended or reply.steps + 1 < len(speech.words.spoken))

    def _begin(self, speeches: Sequence[_Speech]) -> None:
        """Of one request alone."""
        (speech,) = speeches
        silent = _silence(speech.words)
        if silent is not None:
            speech.reason, speech.note = "stop", silent
            return
        speech.reply = self._model.begin(speech.own_slot, speech.words, speech.rows, speech.images, speech.speaker)
        speech.rows = None

    def _make_frames(self, speeches: Sequence[_Speech]) -> None:
        """The other groups of those whose first code is chosen."""
        frames = self._model.frames(_replies(speeches), [speech.residual for speech in speeches])
        for speech, frame in zip(speeches, frames, strict=True):
            if frame is None:
                speech.failure = not_finite()
            else:
                speech.frames.append(frame)

    def _advance(self, speeches: Sequence[_Speech]) -> None:
        """To the next position of those whose next token is known."""
        replies = _replies(speeches)
        tokens = [self._next_token(speech, reply) for speech, reply in zip(speeches, replies, strict=True)]
        self._model.advance([speech.own_slot for speech in speeches], replies, tokens)

    def _next_token(self, speech: _Speech, reply: Reply) -> int:
        """The next spoken token, the end of the text after the last one, and then silence for ever."""
        spoken, following = speech.words.spoken, reply.steps + 1
        if following < len(spoken):
            return spoken[following]
        return self._model.text_end if following == len(spoken) else self._model.text_pad

    def _choose(self, speeches: Sequence[_Speech]) -> None:
        """The first code of the next frame."""
        for speech in speeches:  # again, where this is computed again: it changes nothing then
            speech.sampler.saw(speech.last, self._model.codes)
        replies = _replies(speeches)
        logits = self._model.logits(replies)
        codes = taken(choose(logits, [speech.sampler for speech in speeches]), finite(logits))
        for speech, reply, code in zip(speeches, replies, codes, strict=True):
            speech.codes += 1
            speech.last = [] if code is None else [code]
            if code is None:
                speech.failure = not_finite()
            elif code == self._model.end:
                speech.reason = "stop"
            elif speech.codes >= speech.most or reply.length >= self._model.slots.tokens:
                speech.reason = "length"
            else:
                reply.code = code

    def _output(self, speech: _Speech) -> StageOutput | None:
        if speech.failure is not None:
            self._requests.forget(speech)
            return StageOutput(speech.request_id, error=speech.failure)
        ended = speech.reason is not None
        chunks = []
        wanted = self._chunk_frames if speech.frames_sent else self._initial_chunk_frames
        if len(speech.frames) >= wanted or (ended and speech.frames):
            chunks.append(codes_chunk(speech.frames_sent, speech.frames))
            speech.frames_sent += len(speech.frames)
            speech.frames = []
        if not ended and not chunks:
            return None
        if ended:
            self._requests.forget(speech)
        return StageOutput(
            speech.request_id,
            chunks=dict.fromkeys(self._context.targets, chunks) if chunks else {},
            ended=ended,
            finish_reason=speech.reason,
            usage=speech.usage if ended else {},
            note=speech.note,
        )


def _replies(speeches: Sequence[_Speech]) -> list[Reply]:
    """Of requests that have begun."""
    return [speech.reply for speech in speeches if speech.reply is not None]


def _has_code(speech: _Speech) -> bool:
    return speech.reply is not None and speech.reply.code is not None


def _silence(words: Words) -> str | None:
    """Why nothing can be said, if so."""
    if words.opening is None:
        return "nothing to say: the prompt opens no assistant turn"
    if not words.user_positions:
        return "nothing to say: the prompt has no user turn"
    if not words.spoken:
        return "nothing to say: the answer is empty"
    return None
