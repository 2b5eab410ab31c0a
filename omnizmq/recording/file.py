"""The file of a recording: lines of JSON. Pure.

The first line is the header, then one line an event, then one that says why the recording ends. A recording whose
router was killed has no such line, and its last one may be cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from omnizmq import config as configuration
from omnizmq import tables
from omnizmq.config import Config
from omnizmq.errors import ConfigError, OmnizmqError, ProtocolError
from omnizmq.protocol import VERSION
from omnizmq.recording import form
from omnizmq.router.messages import Effect, Input

FORMAT = 1
"""Raised by one when older readers would misread it."""


class Header(msgspec.Struct, frozen=True):
    """`config`: the deployment's, without its engines' options. `started`: seconds since 1970; 0: a scenario.
    `about`: what a scenario shows."""

    recording: int
    omnizmq: str
    wire: int
    started: float
    config: dict[str, Any]
    about: str = ""


class Line(msgspec.Struct, frozen=True):
    """An event and what the core ordered upon it, as trees of `form`. `now`: CLOCK_MONOTONIC, in seconds."""

    n: int
    now: float
    event: dict[str, Any]
    effects: list[Any]


class End(msgspec.Struct, frozen=True):
    """Why there are no more lines."""

    ended: str


class Recording(msgspec.Struct, frozen=True):
    """`ended`: why; None where nobody could say so: its router was killed, or still runs. `cut`: within a line."""

    path: Path
    header: Header
    config: Config
    lines: list[Line]
    ended: str | None
    cut: bool


_OTHERS = ("remote", "trace_otlp")
"""Keys of the router's table that its core never looks at: addresses."""

Part = Header | Line | End

_encoder = msgspec.json.Encoder()
_line = msgspec.json.Decoder(Line)
_end = msgspec.json.Decoder(End)
_header = msgspec.json.Decoder(Header)


# --- Writing -------------------------------------------------------------------------------------------------------


def header(config: Config, *, version: str, started: float, about: str = "") -> Header:
    return Header(FORMAT, version, VERSION, started, shown_config(config), about)


def shown_config(config: Config) -> dict[str, Any]:
    """Every value but engines' and plugins' options and addresses, which may be secret and which the core never looks
    at; texts in parameters become their sizes."""
    values = configuration.effective(config)
    for stage in values["stage"]:
        stage |= {"options": {}, "params": form.params(stage["params"])}
    router = {name: "" if name in _OTHERS else value for name, value in values["router"].items()}
    return {**values, "router": router, "plugins": {}}


def line(n: int, now: float, event: Input, effects: Sequence[Effect], *, other: bool) -> bytes:
    """`other`: the event is an output that says something else than its caller has."""
    told = form.tree(event)
    return encoded(Line(n, now, form.marked_other(told) if other else told, form.tree(list(effects))))


def encoded(of: Part) -> bytes:
    return _encoder.encode(of) + b"\n"


def whole(header: Header, lines: Iterable[Line], ended: str) -> bytes:
    """All of a file."""
    parts: list[Part] = [header, *lines, End(ended)]
    return b"".join(map(encoded, parts))


# --- Reading -------------------------------------------------------------------------------------------------------


def read(path: Path) -> Recording:
    """Raises `ConfigError` in one line for a file that is no recording, or is one of another version."""
    try:
        raw = path.read_bytes()
    except IsADirectoryError:
        raise ConfigError(f"{path}: a directory, where a recording was expected") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    return parse(path, raw)


def parse(path: Path, raw: bytes) -> Recording:
    """What the file of that name says."""
    first, *rest = raw.split(b"\n")
    found = _read_header(path, first)
    cut = rest.pop() != b"" if rest else True
    lines: list[Line] = []
    for number, text in enumerate(rest, 2):
        try:
            lines.append(_line.decode(text))
        except msgspec.DecodeError as error:
            ended = _read_end(text)
            if ended is not None and number == len(rest) + 1:
                return Recording(path, found, _read_config(path, found), lines, ended, False)
            raise ConfigError(f"{path}: line {number} is no event of a recording: {error}") from None
    return Recording(path, found, _read_config(path, found), lines, None, cut)


def _read_header(path: Path, text: bytes) -> Header:
    try:
        found = _header.decode(text)
    except msgspec.DecodeError as error:
        raise ConfigError(
            f"{path}: not a recording: its first line is no header ({error}); `omnizmq launch --record` makes one"
        ) from None
    if found.recording != FORMAT:
        raise ConfigError(f"{path}: a recording of format {found.recording}; this omnizmq reads format {FORMAT}")
    if found.wire != VERSION and found.started:
        raise ConfigError(
            f"{path}: a recording of omnizmq {found.omnizmq} with wire version {found.wire}, and this one has "
            f"{VERSION}: replay it with that omnizmq"
        )
    return found


def _read_end(text: bytes) -> str | None:
    try:
        return _end.decode(text).ended
    except msgspec.DecodeError:
        return None


def _read_config(path: Path, found: Header) -> Config:
    try:
        return configuration.validate(tables.read(Config, form.values(found.config)))
    except OmnizmqError as error:
        raise ConfigError(f"{path}: its configuration is not usable: {error.message}") from None


def events(recording: Recording) -> Iterator[tuple[Line, Input]]:
    """Each line with its event. Raises `ConfigError` for one that is none."""
    for found in recording.lines:
        try:
            yield found, form.event(found.event)
        except ProtocolError as error:
            raise ConfigError(f"{recording.path}: event {found.n}: {error.message}") from None
