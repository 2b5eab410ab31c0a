"""Recordings, made and replayed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from omnizmq.config import Config
from omnizmq.recording import file
from omnizmq.recording.file import Recording
from omnizmq.recording.replayer import Step, difference, replay
from omnizmq.router.core import RouterCore
from omnizmq.router.messages import Effect, Input
from support.pipelines import SPEECH
from support.pipelines import config as some_config
from support.router_world import RouterWorld

END = b'{"ended":"the test has"}\n'


def first_difference(recording: Recording) -> str | None:
    """Where a fresh core parts from the recorded one; None: nowhere."""
    parted = next((step for step in steps(recording) if not step.agrees), None)
    return None if parted is None else f"event {parted.n} of the recording, {parted.event}: {difference(parted)}"


def steps(recording: Recording) -> list[Step]:
    """Every event, replayed."""
    return list(replay(recording.config, file.events(recording)))


class RecordedCore(RouterCore):
    """It writes as `launch --record` does, to `lines`."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.lines: list[bytes] = []

    def handle(self, event: Input, now: float) -> list[Effect]:
        effects = super().handle(event, now)
        self.lines.append(file.line(len(self.lines) + 1, now, event, effects, other=self.says_another(event)))
        return effects


class RecordedWorld(RouterWorld):
    """A router's world whose core is recorded."""

    def __init__(self, config: Config, *, wavers: bool = False) -> None:
        super().__init__(config, wavers=wavers)
        self.core: RecordedCore = RecordedCore(config)

    def recording(self) -> Recording:
        return parsed(self.config, self.core.lines)


def parsed(config: Config, lines: Sequence[bytes]) -> Recording:
    """The recording of these lines; the configuration need not be a valid one."""
    header = file.header(some_config(SPEECH), version="0", started=1.0)
    found = file.parse(Path("here.jsonl"), b"".join([file.encoded(header), *lines, END]))
    return msgspec.structs.replace(found, config=config)
