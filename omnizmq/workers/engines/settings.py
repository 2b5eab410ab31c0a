"""Options and parameters of an engine: each has a range, and what is unknown or out of range is refused in one line.

Knows nothing of any engine. `None` stands for "not given".
"""

from __future__ import annotations

import difflib
import importlib.util
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omnizmq.errors import ConfigError, InvalidRequestError, ModelNotFoundError, OmnizmqError
from omnizmq.workers.engine import EngineContext

SAY_CHARS = 1 << 16
"""Characters of a text that is to be said (`say`): an hour and more of speech."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What one option or parameter accepts, in words and as a test."""

    accepts: str
    test: Callable[[Any], bool]


def whole(low: int, high: int) -> Setting:
    """An integer from `low` to `high`."""
    return Setting(
        f"a whole number from {low} to {high}",
        lambda value: isinstance(value, int) and not isinstance(value, bool) and low <= value <= high,
    )


def number(low: float, high: float) -> Setting:
    """A finite number from `low` to `high`."""
    return Setting(
        f"a number from {low:g} to {high:g}",
        lambda value: (
            isinstance(value, int | float)
            and not isinstance(value, bool)
            and math.isfinite(value)
            and low <= value <= high
        ),
    )


def choice(*names: str) -> Setting:
    """One of a few words."""
    return Setting(" or ".join(f'"{name}"' for name in names), lambda value: value in names)


def texts(most: int) -> Setting:
    """A list of up to `most` texts, none empty."""
    return Setting(
        f"a list of up to {most} texts, none empty",
        lambda value: (
            isinstance(value, list) and len(value) <= most and all(isinstance(text, str) and text for text in value)
        ),
    )


def text(most: int) -> Setting:
    """A text of up to `most` characters that is not blank."""
    return Setting(
        f"a text of 1 to {most} characters, not blank",
        lambda value: isinstance(value, str) and len(value) <= most and bool(value.strip()),
    )


def read_options(context: EngineContext, known: Mapping[str, Setting]) -> dict[str, Any]:
    """The stage's options that were given. Raises `ConfigError`."""
    return check_given(context.stage, context.options, known)


def check_given(stage: str, options: Mapping[str, Any], known: Mapping[str, Setting]) -> dict[str, Any]:
    """As `read_options`, before there is a context: for an engine's `check_options`."""
    return _read(options, known, f"stage.{stage}.options.", ConfigError)


def read_params(params: Mapping[str, Any], known: Mapping[str, Setting]) -> dict[str, Any]:
    """The request's parameters that were given. Raises `InvalidRequestError`."""
    return _read(params, known, "parameter ", InvalidRequestError)


def _read(
    given: Mapping[str, Any], known: Mapping[str, Setting], what: str, error: type[OmnizmqError]
) -> dict[str, Any]:
    read = {}
    for name, value in given.items():
        setting = known.get(name)
        if setting is None:
            raise error(f"{what}{name} is unknown{_near(name, known)}; known are {', '.join(sorted(known)) or 'none'}")
        if value is None:
            continue
        if not setting.test(value):
            raise error(f"{what}{name} = {_shown(value)} is not usable: it must be {setting.accepts}")
        read[name] = value
    return read


def _near(name: str, known: Mapping[str, Setting]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f" (did you mean {near[0]}?)" if near else ""


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:60] + "…"


def package_folder(package: str, stage: str) -> Path:
    """Where an installed package lies; it is found, not imported. Raises `ModelNotFoundError` when it is not there."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModelNotFoundError(
            f"stage.{stage}.engine needs the package {package!r}, which is not installed: "
            "run `omnizmq install embedded`"
        )
    return Path(next(iter(spec.submodule_search_locations)))
