"""The floor: one copy into other memory that is warm, in one process. Nobody is told of it."""

from __future__ import annotations

import time
from functools import lru_cache

import numpy as np
from chunks_job import Job, Sample, sample
from numpy.typing import NDArray
from omnizmq_bench_chunks import checksum, pattern


@lru_cache
def _memory(size: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """The same two places in every turn."""
    source = pattern(size)
    return source, source.copy()


class Memcpy:
    """An `Opponent`."""

    name = "memcpy"
    copies = "1"

    def takes(self, job: Job) -> bool:
        return not job.busy

    def measure(self, job: Job) -> Sample:
        source, target = _memory(job.size)
        latencies, arrivals = [], []
        for _ in range(job.total):
            start = time.monotonic_ns()
            np.copyto(target, source)
            if job.summed:
                checksum(target)
            now = time.monotonic_ns()
            latencies.append(now - start)
            arrivals.append(now)
        return sample(latencies[job.warm :], arrivals[job.warm :])

    def pids(self) -> list[int]:
        return []

    def close(self) -> None:
        """Nothing is held."""
