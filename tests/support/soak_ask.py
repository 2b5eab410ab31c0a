"""What a soak asks, and what has to come of it: functions of the external id alone. Pure.

An external id is `FATE-SEED-CLIENT-NUMBER`; the fate is what its caller, or its deployment, does to the request.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from omnizmq.frontend.core import OutputKind
from omnizmq.workers.engines.synthetic_pattern import audio_pattern
from support.soak_config import FAULTY, GRACE_S, QUIET, SOUND, SOUND_BYTES, TEXT, WINDOW

Fate = Literal["whole", "calm", "abort", "cancel", "late", "slow", "never", "faulty", "quiet"]
"""`whole` and `calm`: none, the latter in peace. `late`: its deadline may pass. `slow`: its caller reads slowly, but
reads. `never`: its caller reads one output, and the rest when the grace is long over."""

FATES: dict[Fate, int] = {
    "whole": 60, "abort": 10, "cancel": 8, "late": 8, "slow": 5, "never": 4, "faulty": 3, "quiet": 2,
}  # fmt: skip
"""How often each is drawn."""

WORDS: dict[Fate, tuple[int, int]] = {
    "slow": (12, 30),
    "never": (30, 60),
    "late": (20, 60),
    "faulty": (2, 12),
    "quiet": (3, 12),
}
SHORT, LONG = (1, 8), (20, 60)
SLOW_S = GRACE_S / WINDOW / 1.8
"""A slow reader's longest pause. Outputs are read in the order of their arrival, and each stage's window is its own: a
window of text may be read before the first sound is, and has to be within the grace."""

NEVER_S = GRACE_S + 7.0
DEADLINE_S = 80.0
"""Of requests that are to meet theirs."""


@dataclass(frozen=True)
class Ask:
    """`limit` is the thinker's `max_tokens`. `patience_s`: until its caller aborts or is cancelled. `pause_s`: of a
    slow reader, after each output."""

    external_id: str
    fate: Fate
    words: tuple[str, ...]
    modalities: tuple[str, ...] | None
    output_kind: OutputKind
    priority: int
    deadline_s: float | None
    limit: int | None
    seed: int
    patience_s: float
    pause_s: float

    @classmethod
    def of(cls, external_id: str) -> Ask:
        """Raises `ValueError` for an id that is none of the soak's."""
        fate = next((one for one in get_args(Fate) if external_id.startswith(f"{one}-")), None)
        if fate is None:
            raise ValueError(f"{external_id!r} is no id of a soak")
        rng = Random(external_id)
        words = rng.randint(*WORDS.get(fate, SHORT if rng.random() < 0.7 else LONG))
        plain = fate in ("whole", "calm")
        return cls(
            external_id=external_id,
            fate=fate,
            words=tuple(f"{rng.choice(('sea', 'wind', 'stone', 'Regen', '雪'))}{n}" for n in range(words)),
            modalities=rng.choice(_MODALITIES[2 if fate == QUIET else 0 :]),
            output_kind=rng.choice(("delta", "final")) if fate not in ("slow", "never") else "delta",
            priority=rng.choice((0, 0, 0, -1, 2, 5)),
            deadline_s=_deadline(rng, fate),
            limit=rng.randint(1, words) if plain and rng.random() < 0.15 else None,
            seed=rng.choice((0, 0, rng.randint(1, 1 << 30))),
            patience_s=rng.choice((0.0, rng.uniform(0, 0.1), rng.uniform(0, 0.6))),
            pause_s=rng.uniform(0.02, SLOW_S),
        )

    @property
    def prompt(self) -> str:
        return " ".join(self.words)

    @property
    def finals(self) -> dict[str, str]:
        """Final stages that were asked for, and the modality of each."""
        finals = {TEXT: "text", SOUND: "audio"}
        return {stage: what for stage, what in finals.items() if self.modalities is None or what in self.modalities}

    @property
    def outputs(self) -> int:
        """Of the thinker, when all goes well."""
        return len(self.words) if self.limit is None else self.limit

    @property
    def text(self) -> str:
        return " ".join(self.words[: self.outputs])

    @cached_property
    def sound(self) -> NDArray[np.float32]:
        """The last stage makes one output for each chunk of each of its two sources."""
        numbers = range(1, 2 * self.outputs + 1)
        return np.concatenate([audio_pattern(self.external_id, SOUND, n, SOUND_BYTES, self.seed) for n in numbers])

    @property
    def params(self) -> dict[str, dict[str, int]]:
        """Of the stages: the first one's limit, the last one's seed."""
        limit = {} if self.limit is None else {TEXT: {"max_tokens": self.limit}}
        return {**limit, SOUND: {"seed": self.seed}} if self.seed and SOUND in self.finals else limit

    @property
    def reason(self) -> str:
        """The finish reason of a success: `length` where the thinker was cut."""
        return "length" if self.limit is not None and self.limit < len(self.words) else "stop"


_MODALITIES: tuple[tuple[str, ...] | None, ...] = (("text",), ("text",), ("audio",), ("text", "audio"), None)


def _deadline(rng: Random, fate: Fate) -> float | None:
    if fate == "late":
        return rng.uniform(0.02, 0.4)
    return DEADLINE_S if fate == "whole" and rng.random() < 0.1 else None


def draw(rng: Random) -> Fate:
    return rng.choices(list(FATES), list(FATES.values()))[0]


assert {FAULTY, QUIET} <= set(FATES)
