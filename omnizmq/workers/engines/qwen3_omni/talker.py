"""The Talker: the Thinker's tokens to codec frames, beginning with the first of them.

A step begins one new request, then makes one frame of each that can go on. Frame k needs the k-th token that is spoken
(none after the last); until it is there the request waits. A reply ends with the codec's own end, or at `max_tokens`.
What cannot be spoken (an empty answer, a prompt without a user's turn) makes no frames, ends in good order and leaves a
note.

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
from omnizmq.workers.engines.qwen3_omni.checkpoint import Checkpoint
from omnizmq.workers.engines.qwen3_omni.rows import codes_chunk, read_tokens
from omnizmq.workers.engines.qwen3_omni.sampling import SETTINGS, Sampler, Sampling, choose, generator
from omnizmq.workers.engines.qwen3_omni.speech_text import Turns, Words
from omnizmq.workers.engines.qwen3_omni.stage import Stage
from omnizmq.workers.engines.qwen3_omni.talker_model import OPENING, Reply, TalkerModel
from omnizmq.workers.engines.settings import Setting, read_params, whole

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


@dataclass
class _Speech:
    """One request, to which the prompt may still be missing."""

    speaker: int
    sampler: Sampler
    residual: Sampler
    most: int
    words: Words
    rows: torch.Tensor | None = None
    slot: int | None = None
    reply: Reply | None = None
    frames: list[list[int]] = field(default_factory=list)  # not yet handed on
    frames_sent: int = 0
    codes: int = 0  # of the first group, the last one included, which becomes no frame
    reason: FinishReason | None = None
    note: str | None = None

    @property
    def usage(self) -> dict[str, int | float]:
        return {"completion_tokens": self.codes, "frames": self.frames_sent}


class Talker:
    """See the module."""

    def __init__(self, context: EngineContext, stage: Stage, model: TalkerModel) -> None:
        self._context = context
        self._model = model
        self._device = stage.device
        self._initial_chunk_frames: int = stage.options.get("initial_chunk_frames", 4)
        self._chunk_frames: int = stage.options.get("chunk_frames", 25)
        self._speakers: dict[str, int] = dict(stage.config.talker_config.speaker_id)
        self._turns = Turns(stage.config.im_start_token_id, stage.config.user_token_id, stage.config.assistant_token_id)
        self._live: dict[str, _Speech] = {}

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
        others = Sampling(temperature=1.0 if first.temperature else 0.0, top_k=50, top_p=0.8)
        self._live[request.request_id] = _Speech(
            self._speaker(params),
            Sampler(first, draws, self._model.suppressed),
            Sampler(others, draws),
            params["max_tokens"],
            Words([], self._turns),
        )
        self._give_slots()

    def feed(self, request_id: str, edge: str, chunk: Chunk) -> None:  # noqa: ARG002
        """Raises `StageError`, and `InvalidRequestError` for a prompt beyond a slot."""
        speech = self._live[request_id]
        ids, rows = read_tokens(chunk)
        if speech.words.prompt:
            speech.words.answer += ids
            return
        self._model.check(ids, rows)
        speech.words.prompt, speech.rows = ids, rows
        room = self._model.slots.tokens
        if len(ids) + OPENING >= room:
            raise InvalidRequestError(
                f"the prompt has {len(ids)} tokens: a slot of the talker holds {room} with its speech"
            )

    def end_of_input(self, request_id: str, edge: str) -> None:  # noqa: ARG002
        self._live[request_id].words.ended = True

    def abort(self, request_id: str) -> list[StageOutput]:
        speech = self._live.get(request_id)
        if speech is None:
            return []
        self._forget(request_id)
        return [StageOutput(request_id, ended=True, finish_reason="abort", usage=speech.usage)]

    def has_work(self, request_id: str) -> bool:
        speech = self._live.get(request_id)
        return speech is not None and speech.slot is not None and self._can_go_on(speech)

    def busy_with(self, request_id: str) -> bool:
        """It waits for a slot."""
        speech = self._live.get(request_id)
        return speech is not None and speech.slot is None

    def step(self, ready: Sequence[str]) -> list[StageOutput]:
        with torch.inference_mode():
            self._compute([self._live[request_id] for request_id in ready])
        outputs = [self._output(request_id, self._live[request_id]) for request_id in ready]
        return [output for output in outputs if output is not None]

    def close(self) -> None:
        self._live.clear()

    # --- Inside ----------------------------------------------------------------------------------------------------

    def _compute(self, speeches: list[_Speech]) -> None:
        going = [speech for speech in speeches if speech.reply is not None]
        self._make_frames([speech for speech in going if _has_code(speech)])
        self._make_codes([speech for speech in going if self._has_words(speech)])
        new = next((speech for speech in speeches if speech.reply is None), None)
        if new is not None:
            self._begin(new)

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

    def _begin(self, speech: _Speech) -> None:
        silent = _silence(speech.words)
        if silent is not None:
            speech.reason, speech.note = "stop", silent
            return
        assert speech.slot is not None
        speech.reply = self._model.begin(speech.slot, speech.words, speech.rows, speech.speaker)
        speech.rows = None
        self._choose([speech], [speech.reply])

    def _make_frames(self, speeches: list[_Speech]) -> None:
        """The other groups of those whose first code is chosen."""
        replies = [speech.reply for speech in speeches if speech.reply is not None]
        if replies:
            frames = self._model.frames(replies, [speech.residual for speech in speeches])
            for speech, frame in zip(speeches, frames, strict=True):
                speech.frames.append(frame)

    def _make_codes(self, speeches: list[_Speech]) -> None:
        """The next first code of those whose next token is known."""
        speeches.sort(key=lambda speech: -1 if speech.slot is None else speech.slot)
        replies = [speech.reply for speech in speeches if speech.reply is not None]
        if replies:
            self._model.advance(
                replies, [self._next_token(speech, reply) for speech, reply in zip(speeches, replies, strict=True)]
            )
            self._choose(speeches, replies)

    def _next_token(self, speech: _Speech, reply: Reply) -> int:
        """The next spoken token, the end of the text after the last one, and then silence for ever."""
        spoken, following = speech.words.spoken, reply.steps + 1
        if following < len(spoken):
            return spoken[following]
        return self._model.text_end if following == len(spoken) else self._model.text_pad

    def _choose(self, speeches: list[_Speech], replies: list[Reply]) -> None:
        codes = choose(self._model.logits(replies), [speech.sampler for speech in speeches]).tolist()
        for speech, reply, code in zip(speeches, replies, codes, strict=True):
            speech.codes += 1
            speech.sampler.saw([code], self._model.codes)
            if code == self._model.end:
                speech.reason = "stop"
            elif speech.codes >= speech.most or reply.length >= self._model.slots.tokens:
                speech.reason = "length"
            else:
                reply.code = code

    def _output(self, request_id: str, speech: _Speech) -> StageOutput | None:
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
            self._forget(request_id)
        return StageOutput(
            request_id,
            chunks=dict.fromkeys(self._context.targets, chunks) if chunks else {},
            ended=ended,
            finish_reason=speech.reason,
            usage=speech.usage if ended else {},
            note=speech.note,
        )

    def _give_slots(self) -> None:
        """To those that wait, in the order in which they came."""
        for speech in self._live.values():
            if not self._model.slots.any_free:
                return
            if speech.slot is None:
                speech.slot = self._model.slots.take()

    def _forget(self, request_id: str) -> None:
        slot = self._live.pop(request_id).slot
        if slot is not None:
            self._model.slots.give_back(slot)
            self._give_slots()
            self._context.wake()


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
