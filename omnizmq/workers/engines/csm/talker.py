"""CSM's Talker: a text to codec frames, several requests in each step (continuous batching).

A step computes the text of one new request, then one frame of each that runs. What is said is the prompt's last turn,
which must be the user's and of text alone; turns before it are not heard. A reply ends with a frame of the codec's end
alone, or at `max_tokens`.

Options: `initial_chunk_frames` (4) of a reply's first chunk and `chunk_frames` (25) of the others, 0.08 s a frame;
`slots` (the stage's `max_inflight`): requests held at once, further ones wait here; `slot_tokens` (4096, at most the
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
from omnizmq.workers.engines.qwen3_omni.checkpoint import Checkpoint
from omnizmq.workers.engines.qwen3_omni.rows import codes_chunk
from omnizmq.workers.engines.qwen3_omni.sampling import SETTINGS, Sampler, Sampling, generator
from omnizmq.workers.engines.qwen3_omni.stage import Stage
from omnizmq.workers.engines.settings import read_params, whole

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
    return Talker(context, stage, TalkerModel(stage), Texts(checkpoint, stage.config.text_vocab_size))


@dataclass
class _Speech:
    """One request. `frame`: the last one, which is not in the slot yet."""

    text: list[int]
    sampler: Sampler
    most: int
    slot: int | None = None
    made: int = 0
    frame: list[int] = field(default_factory=list)
    held: list[list[int]] = field(default_factory=list)  # frames not yet handed on
    sent: int = 0

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
        self._live: dict[str, _Speech] = {}

    # --- Engine ----------------------------------------------------------------------------------------------------

    def add(self, request: EngineRequest) -> None:
        """Raises `InvalidRequestError`."""
        params = {**DEFAULTS, **read_params(request.params, PARAMS)}
        text = self._texts.read(request.prompt, params["speaker"])
        holds = self._model.slots.tokens
        room = holds - len(text)
        if room < 1:
            raise InvalidRequestError(f"the text has {len(text)} tokens: a slot holds {holds}, the speech included")
        sampling = Sampling(params["temperature"], params["top_k"], params["top_p"])
        sampler = Sampler(sampling, generator(self._device, params["seed"]), self._model.suppressed)
        self._live[request.request_id] = _Speech(text, sampler, min(params["max_tokens"], room))
        self._give_slots()

    def feed(self, request_id: str, edge: str, chunk: Chunk) -> None:  # noqa: ARG002
        raise StageError(f"this talker takes no chunks; one came from {edge}")

    def end_of_input(self, request_id: str, edge: str) -> None:  # noqa: ARG002
        raise StageError(f"this talker takes no chunks; {edge} ended")

    def abort(self, request_id: str) -> list[StageOutput]:
        speech = self._live.get(request_id)
        if speech is None:
            return []
        self._forget(request_id)
        return [StageOutput(request_id, ended=True, finish_reason="abort", usage=speech.usage)]

    def has_work(self, request_id: str) -> bool:
        speech = self._live.get(request_id)
        return speech is not None and speech.slot is not None

    def busy_with(self, request_id: str) -> bool:
        """It waits for a slot."""
        return request_id in self._live

    def step(self, ready: Sequence[str]) -> list[StageOutput]:
        running = sorted((name for name in ready if self._live[name].made), key=lambda name: self._slot(name))
        new = [name for name in ready if not self._live[name].made][:1]
        stepped = running + new
        with torch.inference_mode():
            hidden = [self._advance(running)] if running else []
            hidden += [self._model.prefill(self._slot(name), self._live[name].text) for name in new]
            frames = self._model.frames(torch.cat(hidden), [self._live[name].sampler for name in stepped])
        outputs = [self._output(name, self._live[name], frame) for name, frame in zip(stepped, frames, strict=True)]
        return [output for output in outputs if output is not None]

    def close(self) -> None:
        self._live.clear()

    # --- Inside ----------------------------------------------------------------------------------------------------

    def _advance(self, running: Sequence[str]) -> torch.Tensor:
        speeches = [self._live[name] for name in running]
        return self._model.advance(
            [self._slot(name) for name in running],
            [len(speech.text) + speech.made - 1 for speech in speeches],
            [speech.frame for speech in speeches],
        )

    def _output(self, request_id: str, speech: _Speech, frame: list[int]) -> StageOutput | None:
        reason: FinishReason | None = None
        speech.made, speech.frame = speech.made + 1, frame
        if all(code == self._model.end for code in frame[:-1]):  # as in the library, which does not look at the last
            reason = "stop"
        elif speech.made == speech.most:
            reason = "length"
        if any(code != self._model.end for code in frame):
            speech.held.append(frame)
        chunks = []
        if speech.held and (reason or len(speech.held) >= self._wanted(speech)):
            chunks.append(codes_chunk(speech.sent, speech.held))
            speech.sent, speech.held = speech.sent + len(speech.held), []
        if reason is None and not chunks:
            return None
        if reason is not None:
            self._forget(request_id)
        return StageOutput(
            request_id,
            chunks=dict.fromkeys(self._context.targets, chunks) if chunks else {},
            ended=reason is not None,
            finish_reason=reason,
            usage=speech.usage if reason is not None else {},
        )

    def _wanted(self, speech: _Speech) -> int:
        return self._chunk_frames if speech.sent else self._initial_chunk_frames

    def _slot(self, request_id: str) -> int:
        slot = self._live[request_id].slot
        assert slot is not None
        return slot

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
