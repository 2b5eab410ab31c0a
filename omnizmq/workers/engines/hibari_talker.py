"""The talker: a stream of text to acoustic frames, unit by unit, beginning before the text has ended.

In: chunks with `meta["text"]`, a delta. `units` cuts the text, `speech` takes out what is not English, the package
turns it to phonemes and runs its network once a unit; a unit whose phonemes are too many for one run becomes several.

Out, to every consumer, 80 frames a second in order: chunks of
    meta    unit (from 0), frames (of the whole unit), start (the chunk's first frame)
    arrays  spectra  float32 [5, 601, n]: log-magnitude and phase of the harmonics, log-magnitude of the noise,
                     log-magnitude and phase of the rest, one column a frame
            f0       float32 [frames], Hz, with a unit's first chunk
These are the network's own outputs, 962 kB a second of sound: in half precision the sound would not keep its bytes. The
first chunk of a reply is small, so that sound starts early.

Options: `initial_chunk_frames` (8), `chunk_frames` (20: 240 kB, one message), `clause_words` (6; see `units`).
Parameters: `speed` (1.0; 0.5 to 2.0). `seed` is accepted, so that one seed can be given to all stages: nothing here is
drawn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omnizmq.errors import StageError
from omnizmq.protocol import Param
from omnizmq.workers.engine import Chunk, EngineContext, EngineRequest, StageOutput
from omnizmq.workers.engines import speech
from omnizmq.workers.engines.settings import choice, number, package_folder, read_options, read_params, whole
from omnizmq.workers.engines.units import CLAUSE_WORDS, UnitSplitter

OPTIONS = {
    "role": choice("talker"),
    "initial_chunk_frames": whole(1, 400),
    "chunk_frames": whole(1, 400),
    "clause_words": whole(1, 1000),
}
PARAMS = {"speed": number(0.5, 2.0), "seed": whole(0, (1 << 32) - 1)}


def create_talker(context: EngineContext) -> Talker:
    """Raises `ConfigError`."""
    options = read_options(context, OPTIONS)
    package_folder("onnxruntime", context.stage)
    context.progress("loading the hibari voice")
    voice = Voice()
    context.progress("warming the hibari voice")
    voice.frames(voice.phonemes("A warm zorblaxian voice."), 1.0)  # a word no lexicon has: all parts are loaded now
    return Talker(context, voice, options)


class Voice:
    """The package's text-to-phonemes and its network, on one thread."""

    def __init__(self) -> None:
        from hibari import Hibari

        self._hibari = Hibari(threads=1)

    def phonemes(self, text: str) -> str:
        """The phonemes of one unit of English, in the network's alphabet."""
        phonemes: str = self._hibari.g2p(text)
        return phonemes

    def frames(self, phonemes: str, speed: float) -> Frames:
        """One run of the network."""
        inputs = {
            "ids": np.asarray([self._hibari.ids(phonemes)], np.int64),
            "speed": np.asarray([speed], np.float32),
        }
        *spectra, f0 = (output[0] for output in self._hibari.sess.run(None, inputs))
        return Frames(spectra, f0)


@dataclass
class Frames:
    """A unit's frames, and how many have been handed out. `spectra`: five of float32 [601, F]; `f0`: float32 [F]."""

    spectra: Sequence[NDArray[np.float32]]
    f0: NDArray[np.float32]
    start: int = 0

    def next(self, unit: int, count: int) -> Chunk:
        """The next `count` frames, or what is left."""
        start, self.start = self.start, min(self.start + count, len(self.f0))
        arrays: dict[str, NDArray[Any]] = {"spectra": np.stack([part[:, start : self.start] for part in self.spectra])}
        if start == 0:
            arrays["f0"] = self.f0
        return Chunk({"unit": unit, "frames": len(self.f0), "start": start}, arrays)

    @property
    def left(self) -> int:
        return len(self.f0) - self.start


@dataclass
class _Speech:
    """One request: text to units, units to phonemes, phonemes to frames. Each waits for what follows it."""

    splitter: UnitSplitter
    speed: float
    input_ended: bool = False
    units: deque[str] = field(default_factory=deque)
    runs: deque[str] = field(default_factory=deque)
    frames: Frames | None = None
    chunks_sent: int = 0
    units_spoken: int = 0
    characters: int = 0
    foreign: int = 0
    frames_sent: int = 0
    text_came: bool = False

    @property
    def needs_network(self) -> bool:
        return self.frames is None and bool(self.runs or self.units)

    @property
    def drained(self) -> bool:
        return self.input_ended and self.frames is None and not self.runs and not self.units

    @property
    def usage(self) -> dict[str, int | float]:
        return {"units": self.units_spoken, "characters": self.characters, "frames": self.frames_sent}

    @property
    def note(self) -> str | None:
        if self.units_spoken == 0:
            return speech.silence_note(self.text_came)
        return speech.foreign_note(self.foreign) if self.foreign else None


class Talker:
    """See the module. A step runs the network for one request at most, in turn, and hands on one chunk of each."""

    def __init__(self, context: EngineContext, voice: Voice, options: Mapping[str, Any]) -> None:
        self._targets = context.targets
        self._voice = voice
        self._initial_chunk_frames: int = options.get("initial_chunk_frames", 8)
        self._chunk_frames: int = options.get("chunk_frames", 20)
        self._clause_words: int = options.get("clause_words", CLAUSE_WORDS)
        self._live: dict[str, _Speech] = {}  # in the order of their turns

    # --- Engine ----------------------------------------------------------------------------------------------------

    def add(self, request: EngineRequest) -> None:
        """Raises `InvalidRequestError`."""
        params: Mapping[str, Param] = read_params(request.params, PARAMS)
        speed = params.get("speed", 1.0)
        assert isinstance(speed, int | float)
        self._live[request.request_id] = _Speech(UnitSplitter(self._clause_words), float(speed))

    def feed(self, request_id: str, edge: str, chunk: Chunk) -> None:
        """Raises `StageError` for a chunk without text."""
        text = chunk.meta.get("text")
        if not isinstance(text, str):
            raise StageError(f"a chunk from {edge} has no text: it must have it as meta['text']")
        talk = self._live[request_id]
        talk.characters += len(text)
        talk.text_came = talk.text_came or bool(text.strip())
        talk.units.extend(talk.splitter.push(text))

    def end_of_input(self, request_id: str, edge: str) -> None:  # noqa: ARG002
        talk = self._live[request_id]
        talk.units.extend(talk.splitter.finish())
        talk.input_ended = True

    def abort(self, request_id: str) -> list[StageOutput]:
        talk = self._live.pop(request_id, None)
        if talk is None:
            return []
        return [StageOutput(request_id, ended=True, finish_reason="abort", usage=talk.usage)]

    def has_work(self, request_id: str) -> bool:
        talk = self._live.get(request_id)
        return talk is not None and (talk.frames is not None or talk.needs_network or talk.input_ended)

    def step(self, ready: Sequence[str]) -> list[StageOutput]:
        outputs = self._run_network(frozenset(ready))
        for request_id in ready:
            talk = self._live.get(request_id)
            if talk is not None and (talk.frames is not None or talk.drained):
                outputs.append(self._output(request_id, talk))
        return outputs

    def close(self) -> None:
        self._live.clear()

    # --- Inside ----------------------------------------------------------------------------------------------------

    def _run_network(self, ready: frozenset[str]) -> list[StageOutput]:
        """For the request whose turn it is; its next turn comes after the others'. An error is its own."""
        for request_id, talk in self._live.items():
            if request_id in ready and talk.needs_network:
                break
        else:
            return []
        del self._live[request_id]
        try:
            self._next_frames(talk)
        except Exception as error:  # noqa: BLE001 (whatever the package raises ends this request alone)
            return [StageOutput(request_id, error=StageError(f"hibari: {type(error).__name__}: {error}"))]
        self._live[request_id] = talk
        return []

    def _next_frames(self, talk: _Speech) -> None:
        """The frames of the next unit that sounds. What has nothing to say is passed over."""
        while talk.units and not talk.runs:
            words, foreign = speech.speakable(talk.units.popleft())
            talk.foreign += foreign
            talk.runs.extend(speech.runs(self._voice.phonemes(words)))
        if talk.runs:
            talk.frames = self._voice.frames(talk.runs.popleft(), talk.speed)
            talk.units_spoken += 1

    def _output(self, request_id: str, talk: _Speech) -> StageOutput:
        """The next chunk; with it the end, when nothing follows."""
        chunks = [] if talk.frames is None else [self._next_chunk(talk, talk.frames)]
        if talk.drained:
            del self._live[request_id]
        return StageOutput(
            request_id,
            chunks={target: chunks for target in self._targets if chunks},
            ended=talk.drained,
            finish_reason="stop" if talk.drained else None,
            usage=talk.usage if talk.drained else {},
            note=talk.note if talk.drained else None,
        )

    def _next_chunk(self, talk: _Speech, frames: Frames) -> Chunk:
        chunk = frames.next(
            talk.units_spoken - 1, self._chunk_frames if talk.chunks_sent else self._initial_chunk_frames
        )
        talk.chunks_sent += 1
        talk.frames_sent += chunk.arrays["spectra"].shape[2]
        if not frames.left:
            talk.frames = None
        return chunk
