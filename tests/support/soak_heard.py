"""What a caller heard of one request, compared with what it had to hear, output by output. Pure."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from omnizmq import RequestOutput
from support.soak_ask import Ask
from support.soak_config import MIDDLE, SOUND, TEXT


class Heard:
    """`wrong` is the first thing that was not as it had to be; None: nothing. `end` is the terminal."""

    def __init__(self, ask: Ask) -> None:
        self.wrong: str | None = None
        self.end: RequestOutput | None = None
        self.outputs = 0
        self._ask = ask
        self._chars = 0
        self._samples = 0
        self._finished: list[str] = []

    def take(self, output: RequestOutput) -> None:
        self.outputs += 1
        self.wrong = self.wrong or self._problem(output)
        if output.finished:
            self.end = self.end or output
        elif output.stage_finished:
            self._finished.append(output.stage)

    def ended(self) -> None:
        """Nothing more will come, and no error: it has to be a success that is whole, or an abort."""
        self.wrong = self.wrong or self._incomplete()

    def _problem(self, output: RequestOutput) -> str | None:
        if self.end is not None:
            return "something came after the terminal"
        if output.external_id != self._ask.external_id:
            return f"an output of {output.external_id!r} came"
        if output.finished:
            return self._terminal(output)
        if self._ask.finals.get(output.stage) != output.modality:
            return f"an output of {output.stage}, {output.modality}, was not asked for"
        if output.stage in self._finished:
            return f"{output.stage} went on after its end"
        return self._text(output.text) or self._sound(output.audio)

    def _text(self, text: str | None) -> str | None:
        start, self._chars = self._chars, self._chars + len(text or "")
        expected = self._ask.text[start : self._chars]
        return None if (text or "") == expected else f"text {text!r} where {expected!r} had to come"

    def _sound(self, audio: NDArray[np.float32] | None) -> str | None:
        if audio is None:
            return None
        start, self._samples = self._samples, self._samples + len(audio)
        right = np.array_equal(audio, self._ask.sound[start : self._samples])
        return None if right else f"{len(audio)} samples from {start} on are not the engine's"

    def _terminal(self, output: RequestOutput) -> str | None:
        last = SOUND if SOUND in self._ask.finals else TEXT
        if output.stage != last:
            return f"the terminal is of {output.stage}, not of {last}"
        if output.text is not None or output.audio is not None:
            return "the terminal has content"
        return None

    def _incomplete(self) -> str | None:
        if self.end is None:
            return "it ended without a terminal"
        if self.end.finish_reason == "abort":
            return None
        if self.end.finish_reason != self._ask.reason:
            return f"it ended with {self.end.finish_reason}, not with {self._ask.reason}"
        if sorted(self._finished) != sorted(self._ask.finals):
            return f"ends of {self._finished} where those of {list(self._ask.finals)} had to come"
        ran = {TEXT, MIDDLE, SOUND} if SOUND in self._ask.finals else {TEXT}
        if {*self.end.usage, *self.end.usage_incomplete} != ran:
            return f"usage of {sorted(self.end.usage)}, incomplete {self.end.usage_incomplete}, and {sorted(ran)} ran"
        if TEXT in self._ask.finals and self._chars != len(self._ask.text):
            return f"only {self._chars} characters of {len(self._ask.text)}"
        if SOUND in self._ask.finals and self._samples != len(self._ask.sound):
            return f"only {self._samples} samples of {len(self._ask.sound)}"
        return None
