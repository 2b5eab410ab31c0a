"""What `omnizmq chat` was asked for, and one request made of it; used by its one turn and by its conversation."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from omnizmq import files
from omnizmq.commands.failure import EXIT_FAILED, EXIT_INTERRUPTED, said, status_of
from omnizmq.commands.turn import Turn
from omnizmq.errors import InvalidRequestError

if TYPE_CHECKING:
    from omnizmq import AsyncClient


@dataclass(frozen=True)
class Asked:
    """The options of one call."""

    modalities: list[str]
    output: Path | None
    config: str | None
    sets: tuple[str, ...]
    connect: str | None
    system: str | None
    images: tuple[Path, ...]
    audios: tuple[Path, ...]
    max_tokens: int | None
    seed: int | None
    params: tuple[str, ...]
    request_id: str | None
    timeout: float | None
    as_json: bool

    @property
    def files(self) -> list[tuple[str, Path]]:
        """What is asked about, and of which kind: images first."""
        return [("image", path) for path in self.images] + [("audio", path) for path in self.audios]

    def user(self, text: str) -> dict[str, Any]:
        """A user's message. Raises `InvalidRequestError` when a file cannot be read."""
        if not self.files:
            return {"role": "user", "content": text}
        words = [{"type": "text", "text": text}] if text else []
        return {
            "role": "user",
            "content": words + [{"type": kind, "data": _read(kind, path)} for kind, path in self.files],
        }

    def stage_params(self, stages: dict[str, str | None]) -> dict[str, dict[str, Any]]:
        """Sampling parameters by stage; `stages` maps each stage to the modality of its final output."""
        params: dict[str, dict[str, Any]] = {stage: {} for stage in stages}
        for stage, modality in stages.items():
            if self.seed is not None:
                params[stage]["seed"] = self.seed
            if self.max_tokens is not None and modality == "text":
                params[stage]["max_tokens"] = self.max_tokens
        for setting in self.params:
            stage, name, value = split_param(setting)
            params.setdefault(stage, {})[name] = value
        return params

    async def ask(self, client: AsyncClient, messages: list[dict[str, Any]], turn: Turn) -> None:
        """One request, to its end; what comes of it is in `turn`."""
        system = [{"role": "system", "content": self.system}] if self.system is not None else []
        await turn.consume(
            client.generate(
                system + messages,
                modalities=self.modalities,
                params=self.stage_params(client.stages),
                request_id=turn.external_id,
                deadline_s=self.timeout,
            )
        )

    def tell(self, turn: Turn) -> int:
        """What a person wants to know besides the text, on stderr; and the exit code."""
        if turn.text and not self.as_json:
            click.echo()
        for stage, note in (turn.terminal.notes if turn.terminal is not None else {}).items():
            click.echo(f"note from {stage}: {note}", err=True)
        sound = turn.wave.document() if turn.wave is not None else None
        if sound is not None and not self.as_json:
            click.echo(f"wrote {sound['path']} ({sound['seconds']} s, {sound['sample_rate']} Hz)", err=True)
        if turn.wave is not None and sound is None and turn.succeeded:
            click.echo(f"no sound was made: {turn.wave.path} is not written", err=True)
        if turn.interrupted:
            click.echo("omnizmq chat: interrupted", err=True)
            return EXIT_INTERRUPTED
        if turn.error is not None:
            click.echo(f"omnizmq chat: {said(turn.error)}", err=True)
            return status_of(turn.error)
        if turn.finish_reason == "abort":
            click.echo(f"omnizmq chat: {turn.external_id} was aborted", err=True)
            return EXIT_FAILED
        return 0


def _read(option: str, path: Path) -> bytes:
    from omnizmq.protocol import CONTENT_BYTES

    try:
        return files.read(path, CONTENT_BYTES)
    except OSError as error:
        raise InvalidRequestError(f"--{option} {path} cannot be read: {error.strerror}") from error


def split_param(setting: str) -> tuple[str, str, Any]:
    """Stage, name and value of `STAGE.KEY=VALUE`. The value is JSON, or a string where it is not."""
    key, equals, value = setting.partition("=")
    stage, dot, name = key.partition(".")
    if not (equals and dot and stage and name):
        raise InvalidRequestError(f"--param {setting!r} is not STAGE.KEY=VALUE, such as thinker.temperature=0.7")
    try:
        return stage, name, json.loads(value)
    except ValueError:
        return stage, name, value
