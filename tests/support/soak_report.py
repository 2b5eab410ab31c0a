"""What a soak came to: figures, problems, and what grew."""

from __future__ import annotations

import os
import platform
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from statistics import quantiles
from typing import Any

from support.soak_clients import Tally
from support.soak_flat import Row, rows, table
from support.soak_watch import TRACE, Sample

WARM_UP = 0.2
"""Of the time: processes load what they load lazily, allocators find their size. At least until the trace is full."""

JUDGED_S = 120.0
"""A shorter run is all warm-up: nothing is said of growth."""


@dataclass
class Report:
    """`samples`: with the seconds since the load began. `problems`: empty when all was well."""

    seed: int
    trace_mib: int
    seconds: float = 0.0
    tally: Tally = field(default_factory=Tally)
    mishaps: Counter[str] = field(default_factory=Counter)
    counters: dict[str, int] = field(default_factory=dict)
    samples: list[tuple[float, Sample]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def line(self, at: float) -> str:
        tally = self.tally
        return (
            f"{at / 60:.1f} min: {tally.begun} requests, {tally.ended} ended, {sum(self.mishaps.values())} mishaps, "
            f"{len(self.problems)} problems"
        )

    def conclude(self) -> list[str]:
        """All problems, with what grew among them."""
        self.problems += [f"{row.name} grew from {row.first:.1f} to {row.last:.1f}" for row in self.rows() if row.grew]
        return self.problems

    def rows(self) -> list[Row]:
        return rows(self.samples, self.warm_up_s) if self.seconds >= JUDGED_S else []

    @property
    def warm_up_s(self) -> float:
        """A trace that is full has been cut: it is never much larger than now."""
        full = next((at for at, sample in self.samples if sample[TRACE] >= self.trace_mib), 0.0)
        return max(WARM_UP * self.seconds, full)

    def document(self) -> dict[str, Any]:
        names = list(dict.fromkeys(name for _, sample in self.samples for name in sample))
        return {
            "seed": self.seed,
            "machine": machine(),
            "seconds": round(self.seconds, 1),
            "requests": {
                name: getattr(self.tally, name) for name in ("begun", "ended", "cut", "incomplete", "outputs")
            },
            "ends": {fate: dict(hows) for fate, hows in self.tally.ends.items()},
            "first_output_s": self._firsts(),
            "mishaps": dict(self.mishaps),
            "counters": self.counters,
            "problems": self.problems,
            "warm_up_s": round(self.warm_up_s, 1),
            "growth": [{**vars(row), "may_grow": row.may_grow, "grew": row.grew} for row in self.rows()],
            "samples": {
                "at_s": [round(at, 2) for at, _ in self.samples],
                **{name: [sample.get(name) for _, sample in self.samples] for name in names},
            },
        }

    def markdown(self) -> str:
        tally = self.tally
        hows = sorted({how for found in tally.ends.values() for how in found})
        ends = [f"| requests | {' | '.join(hows)} |", f"| --- |{' --: |' * len(hows)}"]
        for fate, found in sorted(tally.ends.items()):
            ends.append(f"| {fate} | {' | '.join(str(found[how] or '') for how in hows)} |")
        mishaps = [f"| {sort} | {count} |" for sort, count in sorted(self.mishaps.items())]
        return "\n".join(
            [
                f"seed {self.seed}; {self.seconds / 60:.1f} minutes; {machine()}",
                f"{tally.begun} requests, {tally.ended} ended, {tally.cut} cut off with their clients; "
                f"{tally.incomplete} successes with incomplete usage; "
                f"{tally.outputs} outputs verified; first output {self._firsts()}",
                "",
                *ends,
                "",
                "| mishaps | |",
                "| --- | --: |",
                *mishaps,
                "",
                f"counters {self.counters}",
                "",
                f"after a warm-up of {self.warm_up_s:.0f} s:",
                "",
                table(self.rows()),
            ]
        )

    def _firsts(self) -> dict[str, float]:
        """Seconds."""
        if len(self.tally.firsts) < 2:
            return {}
        cuts = quantiles(self.tally.firsts, n=100)
        return {name: round(cuts[at - 1], 4) for name, at in (("p50", 50), ("p99", 99))}


def machine() -> str:
    names = [line.partition(":")[2].strip() for line in _cpus() if line.startswith("model name")]
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / (1 << 30)
    return (
        f"{len(names) or os.cpu_count()} × {names[0] if names else platform.machine()}, {memory:.0f} GiB, "
        f"Linux {platform.release()}, Python {platform.python_version()}"
    )


def _cpus() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []
