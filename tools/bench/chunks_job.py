"""One measurement of chunk hand-off, and what comes of it. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

Busy = Literal["", "numpy", "python"]

KIB = 1 << 10
MIB = 1 << 20

UNDER_WAY = 32
"""Chunks that a producer may have unread at once in throughput: an edge's default window, and the bare pairs' too."""

FEWEST, MOST = 24, 300
"""Chunks a measurement takes, whatever their size."""

BYTES_A_RUN = 128 * MIB


@dataclass(frozen=True)
class Job:
    """`chunks` of `size` bytes after `warm` that are not counted, `under_way` at once.

    `summed`: the consumer adds all bytes up, and its time counts. `busy`: what both engines compute all the while, in
    steps of `busy_ms`: numpy work that lets go of the interpreter's lock, or pure Python, which does not. `gap_us`:
    with one chunk under way, the rest between the last one's acknowledgement and the next one.
    """

    size: int
    chunks: int
    warm: int
    under_way: int = 1
    summed: bool = False
    busy: Busy = ""
    busy_ms: float = 0.0
    gap_us: float = 0.0

    @property
    def total(self) -> int:
        return self.warm + self.chunks


@dataclass(frozen=True)
class Sample:
    """What a job measured. `waits`: voluntary context switches a chunk, of the producer and of the consumer."""

    p10_us: float
    p50_us: float
    p99_us: float
    chunks_per_s: float
    waits: tuple[float, float] = (0.0, 0.0)
    steps: float = 0.0
    """Of a busy consumer's engine: how many ended between the stamp and `feed`; the median."""
    views: float = 0.0
    """The share of omnizmq's chunks that were read where they lay in the ring."""


class Opponent(Protocol):
    """One way to hand chunks over. `copies`: of the payload, by design, until the consumer can read it."""

    name: str
    copies: str

    def takes(self, job: Job) -> bool:
        """Whether this opponent has such a mode."""

    def measure(self, job: Job) -> Sample: ...

    def pids(self) -> Sequence[int]:
        """Of the producer and the consumer."""

    def close(self) -> None: ...


def plan(
    size: int,
    *,
    part: float = 1.0,
    under_way: int = 1,
    summed: bool = False,
    busy: Busy = "",
    busy_ms: float = 0.0,
    gap_us: float = 0.0,
) -> Job:
    """A job of as many chunks as suit the size, or of a `part` of them."""
    chunks = max(8, round(max(FEWEST, min(MOST, BYTES_A_RUN // size)) * part))
    return Job(size, chunks, max(4, chunks // 10), under_way, summed, busy, busy_ms, gap_us)


def sample(
    latencies_ns: Sequence[int],
    arrivals_ns: Sequence[int],
    waits: tuple[float, float] = (0.0, 0.0),
    steps: float = 0.0,
    views: float = 0.0,
) -> Sample:
    """From the counted chunks' hand-off times and the times at which they came."""
    ordered = sorted(latencies_ns)
    span_s = (arrivals_ns[-1] - arrivals_ns[0]) / 1e9
    return Sample(
        p10_us=ordered[len(ordered) // 10] / 1000,
        p50_us=statistics.median(ordered) / 1000,
        p99_us=ordered[int(0.99 * (len(ordered) - 1))] / 1000,
        chunks_per_s=(len(arrivals_ns) - 1) / span_s if span_s else 0.0,
        waits=waits,
        steps=steps,
        views=views,
    )


def parse_size(text: str) -> int:
    """`4K`, `16M` or a number of bytes. Raises `ValueError`, in one line."""
    digits, unit = (text[:-1], text[-1].upper()) if text[-1:].isalpha() else (text, "")
    if not digits.isdigit() or unit not in ("", "K", "M"):
        raise ValueError(f"size {text!r}: bytes were expected, such as 4096, 64K or 16M")
    size = int(digits) * {"": 1, "K": KIB, "M": MIB}[unit]
    if not 8 <= size <= 60 * MIB or size % 8:
        raise ValueError(f"size {text!r}: a multiple of 8 from 8 bytes to 60M was expected")
    return size


def show_size(size: int) -> str:
    if size % MIB == 0:
        return f"{size // MIB} MB"
    return f"{size // KIB} KB" if size % KIB == 0 else f"{size} B"


def medians(samples: Sequence[Sample]) -> Mapping[str, float]:
    """Of several turns: the median of each figure, and the `spread` of their `p50_us`: the slowest over the fastest."""
    p50s = [one.p50_us for one in samples]
    return {
        "p10_us": round(statistics.median(one.p10_us for one in samples), 2),
        "p50_us": round(statistics.median(p50s), 2),
        "spread": round(max(p50s) / min(p50s), 2),
        "p99_us": round(statistics.median(one.p99_us for one in samples), 2),
        "chunks_per_s": round(statistics.median(one.chunks_per_s for one in samples), 1),
        "producer_waits": round(statistics.median(one.waits[0] for one in samples), 2),
        "consumer_waits": round(statistics.median(one.waits[1] for one in samples), 2),
        "steps": statistics.median(one.steps for one in samples),
        "views": round(statistics.median(one.views for one in samples), 2),
    }
