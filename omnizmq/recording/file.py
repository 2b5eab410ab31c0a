"""The file of a recording: lines of JSON. Pure, but that `read` reads it.

The first line is the header, then one line an event, then one that says why the recording ends. A recording whose
router was killed has no such line, and its last one may be cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from itertools import count
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import msgspec

from omnizmq import config as configuration
from omnizmq import tables
from omnizmq.config import Config
from omnizmq.errors import ConfigError, OmnizmqError, ProtocolError
from omnizmq.protocol import VERSION
from omnizmq.recording import form
from omnizmq.recording.trees import Checker
from omnizmq.router.messages import Effect, Input

FORMAT = 2
"""Raised by one when older readers would misread it."""


_Moment = Annotated[float, msgspec.Meta(ge=0, le=1 << 33)]
"""In seconds; in nanoseconds it has to fit 64 bits."""

_Version = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]


class Header(msgspec.Struct, frozen=True):
    """`config`: the deployment's, without its engines' options. `started`: seconds since 1970; 0: a scenario.
    `about`: what a scenario shows."""

    recording: _Version
    omnizmq: Annotated[str, msgspec.Meta(max_length=64)]
    wire: _Version
    started: _Moment
    config: dict[str, Any]
    about: str = ""


class Line(msgspec.Struct, frozen=True):
    """An event and what the core ordered upon it, as trees of `form`. `now`: CLOCK_MONOTONIC, in seconds."""

    n: Annotated[int, msgspec.Meta(ge=1, lt=1 << 53)]
    now: _Moment
    event: dict[str, Any]
    effects: list[dict[str, Any]]


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

_CONFIG_BYTES = 2 * tables.FILE_BYTES
"""What texts in parameters can take at most: a file's, in which newlines are escaped."""

LINE_BYTES = 64 << 20
"""A recorder writes no longer line: only half of it may wait for the disk (`recorder.BUFFER_BYTES`)."""

_WHY_CHARS = 400
"""What is said of a line that cannot be read; what it quotes may be longer."""

Part = Header | Line | End


class _Named(msgspec.Struct, frozen=True):
    """The tree of a struct."""

    name: str = msgspec.field(name="$")


class _Order(_Named, frozen=True):
    """What the tree of an effect is at least."""

    frame: _Named | None = None
    fact: _Named | None = None


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
        with open(path, "rb") as file:
            return _read(path, file)
    except IsADirectoryError:
        raise ConfigError(f"{path}: a directory, where a recording was expected") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None


def parse(path: Path, raw: bytes) -> Recording:
    """What the file of that name says."""
    return _read(path, BytesIO(raw))


def _read(path: Path, file: BinaryIO) -> Recording:
    checker = Checker()
    lines: list[Line] = []
    ended: str | None = None
    with _at(path, 1):
        text = _next(file)
        found = _read_header(text)
        config = _read_config(found)
    for number in count(2):
        cut = not text.endswith(b"\n")
        with _at(path, number):
            text = _next(file)
            if not text.endswith(b"\n"):
                break
            if ended is not None:
                raise ProtocolError("the recording ended in the line before this one")
            part = _read_line(text, checker)
        if isinstance(part, Line):
            lines.append(part)
        else:
            ended = part.ended
    return Recording(path, found, config, lines, ended, (cut or text != b"") and ended is None)


def _next(file: BinaryIO) -> bytes:
    """A line with its end; without one where the file is cut, nothing where it ends."""
    text = file.readline(LINE_BYTES + 1)
    if len(text) > LINE_BYTES:
        raise ProtocolError(f"longer than {LINE_BYTES} bytes, which no line of a recording is")
    return text


@contextmanager
def _at(path: Path, number: int) -> Iterator[None]:
    """Whatever is wrong with a line is a `ConfigError` that names it, and is itself one line."""
    try:
        yield
    except RecursionError:
        raise ConfigError(f"{path}, line {number}: nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError, OmnizmqError) as error:
        why = "".join(char if char.isprintable() else "?" for char in str(error)[:_WHY_CHARS])
        raise ConfigError(f"{path}, line {number}: {why}") from None


def _read_header(text: bytes) -> Header:
    try:
        found = _header.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"no header of a recording ({error}); `omnizmq launch --record` makes one") from None
    if found.recording != FORMAT:
        raise ConfigError(f"a recording of format {found.recording}; this omnizmq reads format {FORMAT}")
    if found.wire != VERSION and found.started:
        raise ConfigError(
            f"a recording of omnizmq {found.omnizmq} with wire version {found.wire}, and this one has {VERSION}: "
            "replay it with that omnizmq"
        )
    return found


def _read_config(found: Header) -> Config:
    try:
        Checker(_CONFIG_BYTES).check(found.config, built=True)
        return configuration.validate(tables.read(Config, form.values(found.config)))
    except OmnizmqError as error:
        raise ConfigError(f"its configuration is not usable: {error.message}") from None


def _read_line(text: bytes, checker: Checker) -> Line | End:
    try:
        found = _line.decode(text)
    except msgspec.DecodeError as error:
        try:
            return _end.decode(text)
        except msgspec.DecodeError:
            raise ProtocolError(f"no event of a recording: {error}") from None
    checker.check(found.event, built=True)
    checker.check(found.effects, built=False)
    msgspec.convert(found.effects, list[_Order])
    return found


def events(recording: Recording) -> Iterator[tuple[Line, Input]]:
    """Each line, whose event has all fields of today, with that event. Raises `ConfigError` for one that is none."""
    for number, found in enumerate(recording.lines, 2):
        with _at(recording.path, number):
            told = form.completed(found.event)
            event = form.event(told)
            form.check_written(event, told)
        yield msgspec.structs.replace(found, event=told), event
