"""TOML tables to frozen structs, with errors that say where, what, and what was expected instead.

A struct derived from `Section` states types, limits and defaults; `read` fills it from a parsed table. The
configuration file is read this way, and an engine can read its `[stage.options]` so.

This module knows nothing of what the tables mean.
"""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar, TypeVar, get_args, get_origin

import msgspec
from msgspec import inspect

from omnizmq import files
from omnizmq.errors import ConfigError

FILE_BYTES = 1 << 20
"""A larger file is no configuration."""


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table. Fields are annotated with `msgspec.Meta` limits, and a `description` where the type does not say it."""

    label_keys: ClassVar[tuple[str, ...]] = ()
    """In a list of tables: the keys whose values name one of them, joined by `->`."""


class BadValueError(ConfigError):
    """`key` is the full path of a key (`stage.talker.replicas`), `problem` the value and what was expected."""

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(f"{key}: {problem}")
        self.key = key
        self.problem = problem


# --- Text to tables ------------------------------------------------------------------------------------------------


def parse_file(path: Path) -> dict[str, Any]:
    """The parsed file, or `ConfigError` with the file, and the line and column where there is one."""
    try:
        raw = files.read(path, FILE_BYTES)
    except IsADirectoryError:
        raise ConfigError(f"{path}: a directory, where a TOML file was expected") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        where = _place(raw[: error.start])
        raise ConfigError(f"{path}: not UTF-8 text: byte 0x{raw[error.start]:02x} (at {where})") from None
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        problem = str(error).replace("at end of document", f"at {_place(text.encode())}, the end of the file")
        raise ConfigError(f"{path}: not TOML: {problem}") from None
    except RecursionError:
        raise ConfigError(f"{path}: nested too deeply") from None


def parse_value(raw: str) -> Any:
    """A value as TOML has it; a bare word is a string. `ConfigError` for a broken list, table or quoted string."""
    try:
        parsed = tomllib.loads(f"value = {raw}")
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        if raw[:1] in ("[", "{", '"', "'"):
            raise ConfigError(f"the value is not TOML: {error}") from None
        return raw
    value = parsed["value"]
    known_type = isinstance(value, bool | int | float | str | list | dict)
    return value if known_type and len(parsed) == 1 else raw


def _place(before: bytes) -> str:
    """Where what follows these bytes stands, counted from 1."""
    line = before.rpartition(b"\n")[2]
    lines = before.count(b"\n") + 1
    return f"line {lines}, column {len(line.decode(errors='replace')) + 1}"


# --- Tables to structs ---------------------------------------------------------------------------------------------

_S = TypeVar("_S", bound=Section)


def read(kind: type[_S], table: Any, key: str = "") -> _S:
    """The struct that the table fills, or `BadValueError`. `key` is the path of the table itself."""
    if not isinstance(table, dict):
        raise BadValueError(key, f"{shown(table)}: a table was expected")
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    for name in table:
        if name not in fields:
            raise BadValueError(join(key, name), f"unknown key: {nearest(name, fields)}")
    values = {}
    for name, field in fields.items():
        if name in table:
            values[field.name] = _value(table[name], field.type, join(key, name))
        elif field.required:
            raise BadValueError(join(key, name), f"missing: {_words(inspect.type_info(field.type))} was expected")
    return kind(**values)


def label(kind: type[Section], table: Any) -> str | None:
    """How errors and overrides call one of a list of tables: `talker`, or `thinker->talker`. None: it has no name."""
    if not isinstance(table, dict):
        return None
    parts = [table[name] for name in kind.label_keys if isinstance(table.get(name), str)]
    return "->".join(parts) if parts and len(parts) == len(kind.label_keys) else None


def _value(value: Any, kind: Any, key: str) -> Any:
    if isinstance(kind, type) and issubclass(kind, Section):
        return read(kind, value, key)
    items = get_args(kind)
    if get_origin(kind) is list and isinstance(items[0], type) and issubclass(items[0], Section):
        return _list(items[0], value, key)
    if get_origin(kind) is dict and isinstance(value, dict):
        return {_key(name, items[0], key): _value(item, items[1], join(key, name)) for name, item in value.items()}
    try:
        msgspec.msgpack.encode(value)  # an integer of more than 64 bits could not be sent to a worker
        return msgspec.convert(value, kind)
    except (msgspec.ValidationError, OverflowError):
        raise BadValueError(key, f"{shown(value)}: {_words(inspect.type_info(kind))} was expected") from None


def _key(name: str, kind: Any, table: str) -> str:
    """A key of a table in which names are values."""
    try:
        return str(msgspec.convert(name, kind))
    except msgspec.ValidationError:
        expected = _words(inspect.type_info(kind))
        raise BadValueError(join(table, name), f"{shown(name)} as a key: {expected} was expected") from None


def _list(kind: type[_S], tables: Any, key: str) -> list[_S]:
    if not isinstance(tables, list):
        raise BadValueError(key, f"{shown(tables)}: a list of tables was expected, each under [[{key}]]")
    return [
        read(kind, table, join(key, label(kind, table) or f"{number} of {len(tables)}"))
        for number, table in enumerate(tables, 1)
    ]


# --- Words for errors ----------------------------------------------------------------------------------------------


def join(key: str, name: str) -> str:
    return f"{key}.{name}" if key else name


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint: the one that was probably meant, else all of them."""
    known = list(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"known are {', '.join(known) or 'none'}"


def shown(value: Any) -> str:
    """The value on one line, cut where it is long."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else text[:80] + "…"


def _words(info: inspect.Type) -> str:
    """What a field of this type accepts."""
    match info:
        case inspect.Metadata(type=inner, extra_json_schema=schema):
            return str((schema or {}).get("description") or _words(inner))
        case inspect.UnionType(types=types):
            return " or ".join(_words(one) for one in types if not isinstance(one, inspect.NoneType))
        case inspect.LiteralType(values=values):
            return " or ".join(shown(value) for value in values)
        case inspect.IntType(ge=low, le=high) | inspect.FloatType(ge=low, le=high, gt=None):
            noun = "a whole number" if isinstance(info, inspect.IntType) else "a number"
            if low is None or high is None:
                return noun if low is None else f"{noun}, at least {low:g},"
            return f"{noun} from {low:g} to {high:.15g}"
        case inspect.FloatType(gt=low, le=high) if low is not None and high is not None:
            return f"a number above {low:g}, up to {high:.15g}"
        case inspect.FloatType(gt=low) if low is not None:
            return f"a number above {low:g}"
        case inspect.BoolType():
            return "true or false"
        case inspect.StrType():
            return "a string"
        case inspect.ListType():
            return "a list"
        case inspect.DictType():
            return "a table"
        case _:
            return "another type of value"
