"""What a stress came to."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

SHOWN = 12


@dataclass
class Figures:
    """`problems` is empty when all was well. `released` are chunks whose views were verified before they were let go:
    those of a killed process were not."""

    seed: int
    chunks: int = 0
    released: int = 0
    requests: int = 0
    lives: int = 0
    worker_kills: int = 0
    router_kills: int = 0
    stops: int = 0
    corrupt: int = 0
    deadlocks: int = 0
    leaks: int = 0
    peak_ring_bytes: int = 0
    seconds: float = 0.0
    ends: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    @property
    def kills(self) -> int:
        return self.worker_kills + self.router_kills

    def problem(self, holds: bool, text: str) -> None:
        """One, if it holds."""
        if holds:
            self.problems.append(f"life {self.lives}: {text}")

    def document(self) -> dict[str, Any]:
        shown = self.problems[:SHOWN] + [f"… and {len(self.problems) - SHOWN} more"] * (len(self.problems) > SHOWN)
        counts = {**vars(self), "kills": self.kills, "ends": dict(self.ends), "seconds": round(self.seconds, 1)}
        return {**counts, "problems": shown}
