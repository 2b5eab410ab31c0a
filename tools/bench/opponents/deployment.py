"""omnizmq itself: a deployment of two stages, its router and both workers, each with its two threads."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from chunks_job import Job, Sample, sample

from omnizmq import Client
from omnizmq.errors import OmnizmqError

CONFIG = """
name = "bench-chunks"

[[stage]]
name = "producer"
engine = "bench-chunks"

[[stage]]
name = "consumer"
engine = "bench-chunks"
final_output = "text"

[[edge]]
from = "producer"
to = "consumer"
"""

CROSSOVER = "stage.producer.options.inline_bytes={}"
"""A set that moves the size up to which arrays go inline: the benchmark's engine sees to it."""

BUSY_ID = "busy"
START_TIMEOUT_S = 10.0


class Deployment:
    """An `Opponent`. `sets` are overrides as for `launch`. The deployment ends with this process, however that ends."""

    copies = "1 by ring; inline 8, above 256 KB 12"

    def __init__(self, name: str, folder: Path, sets: Sequence[str] = ()) -> None:
        self.name = name
        folder.mkdir()
        config = folder / "chunks.toml"
        config.write_text(CONFIG)
        self._client = Client.launch(config, name=f"bench-{folder.name}", sets=sets)
        self._client.__enter__()
        self._count = 0

    def takes(self, job: Job) -> bool:  # noqa: ARG002 (the interface's)
        return True

    def pids(self) -> list[int]:
        stages = self._client.status()["stages"]
        return [stages[stage]["replicas"][0]["pid"] for stage in ("producer", "consumer")]

    def measure(self, job: Job) -> Sample:
        if not job.busy:
            return self._measure(job)
        burden = _Burden(self._client, job)
        try:
            return self._measure(job)
        finally:
            burden.end()

    def _measure(self, job: Job) -> Sample:
        credits_alone = job.under_way > 1
        params = {
            "bytes": job.size,
            "chunks": job.chunks,
            "warm": job.warm,
            "under_way": 0 if credits_alone else 1,
            "gap_us": round(job.gap_us),
            "summed": int(job.summed),
        }
        self._count += 1
        outputs = self._client.generate("chunks", params={"producer": params}, request_id=f"flow-{self._count}")
        found = json.loads("".join(output.text or "" for output in outputs))
        steps = sorted(found["steps"])[len(found["steps"]) // 2]
        producer, consumer = found["waits"]
        return sample(found["latencies_ns"], found["arrivals_ns"], (producer, consumer), steps, found["views"])

    def close(self) -> None:
        self._client.__exit__(None, None, None)


class _Burden:
    """A request that keeps both engines busy until `end`."""

    def __init__(self, client: Client, job: Job) -> None:
        self._client = client
        self._params: dict[str, dict[str, Any]] = {"producer": {"busy": job.busy, "busy_ms": job.busy_ms}}
        self._runs = threading.Event()
        self._error: OmnizmqError | None = None
        self._thread = threading.Thread(target=self._ask)
        self._thread.start()
        if not self._runs.wait(START_TIMEOUT_S) or self._error is not None:
            self.end()
            raise SystemExit(f"the engines did not get busy: {self._error or 'nothing came'}")

    def _ask(self) -> None:
        try:
            for _ in self._client.generate("busy", params=self._params, request_id=BUSY_ID):
                self._runs.set()
        except OmnizmqError as error:
            self._error = error
            self._runs.set()

    def end(self) -> None:
        self._client.abort(BUSY_ID)
        self._thread.join()
