"""What a caller gets from `generate`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from omnizmq import protocol as wire

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class RequestOutput(msgspec.Struct, frozen=True):
    """One output of one final stage, or the terminal of the request, which carries no content.

    `text` is a delta, or the stage's whole text with `output_kind="final"`; `logprobs`, where its parameters ask for
    them, are of the tokens that were generated for it, some of whose text may come with the next; `audio` is float32
    `[samples]` in -1..1, mono, at `sample_rate` Hz. `stage_finished`: this stage's output has ended;
    `finished`: the request has, and nothing follows. The two are never the same output (C3). `usage` maps each stage
    that ran to its counts; `usage_incomplete` names those whose counts are missing; `notes` maps a stage to a sentence
    worth reading.
    """

    request_id: str
    external_id: str
    stage: str
    modality: str
    text: str | None = None
    audio: NDArray[np.float32] | None = None
    sample_rate: int | None = None
    stage_finished: bool = False
    finished: bool = False
    finish_reason: str | None = None
    usage: Mapping[str, Mapping[str, int | float]] = {}
    usage_incomplete: tuple[str, ...] = ()
    notes: Mapping[str, str] = {}
    logprobs: Sequence[wire.TokenLogprob] = ()

    @property
    def sound(self) -> tuple[NDArray[np.float32], int] | None:
        """Samples and their rate, where there are any."""
        if self.audio is None or not self.audio.size or not self.sample_rate:
            return None
        return self.audio, self.sample_rate

    @classmethod
    def of(
        cls,
        request_id: str,
        external_id: str,
        stage: str,
        modality: str,
        content: Sequence[wire.Content],
        stage_finished: bool,
    ) -> RequestOutput:
        if len(content) == 1 and type(content[0]) is wire.Text:
            text = content[0].text
            return cls(request_id, external_id, stage, modality, text, stage_finished=stage_finished)
        texts = [part.text for part in content if isinstance(part, wire.Text)]
        sounds = [part for part in content if isinstance(part, wire.Audio)]
        return cls(
            request_id=request_id,
            external_id=external_id,
            stage=stage,
            modality=modality,
            text="".join(texts) if texts else None,
            audio=_samples(sounds) if sounds else None,
            sample_rate=sounds[0].sample_rate if sounds else None,
            stage_finished=stage_finished,
            logprobs=[each for part in content if isinstance(part, wire.TextWithLogprobs) for each in part.logprobs],
        )

    @classmethod
    def terminal(cls, frame: wire.Terminal, external_id: str) -> RequestOutput:
        return cls(
            request_id=frame.request_id,
            external_id=external_id,
            stage=frame.stage,
            modality=frame.modality,
            finished=True,
            finish_reason=frame.finish_reason,
            usage=frame.usage,
            usage_incomplete=tuple(frame.usage_incomplete),
            notes=frame.notes,
        )


def _samples(sounds: Sequence[wire.Audio]) -> NDArray[np.float32]:
    import numpy as np  # here: a client that asks for text alone does not load it

    return np.frombuffer(b"".join(sound.data for sound in sounds), "<f4")
