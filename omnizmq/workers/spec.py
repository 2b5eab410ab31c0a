"""What a worker process is told at its start: one line of JSON on its standard input, whose end means "stop"."""

from __future__ import annotations

import msgspec

from omnizmq.config import Config, StageConfig


class WorkerSpec(msgspec.Struct, frozen=True):
    config: Config
    stage: str
    replica: str
    incarnation: int
    devices: list[str]  # as the process sees them, which sees no others
    router_endpoint: str
    data_endpoint: str
    nonce: str
    runtime_dir: str
    private_dir: str
    parent_pid: int

    @property
    def stage_config(self) -> StageConfig:
        return next(stage for stage in self.config.stage if stage.name == self.stage)


def encode(spec: WorkerSpec) -> bytes:
    return msgspec.json.encode(spec) + b"\n"


def decode(line: bytes) -> WorkerSpec:
    return msgspec.json.decode(line, type=WorkerSpec)
