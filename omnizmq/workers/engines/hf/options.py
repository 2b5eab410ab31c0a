"""The options of a stage of any model, checked without loading anything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omnizmq.errors import ConfigError
from omnizmq.workers.engines.settings import Setting, check_given, choice, whole

SLOT_TOKENS = 4096
CHUNK_FRAMES = 25

ROLE = choice("thinker", "talker", "code2wav")
_ALL = {"role": ROLE, "threads": whole(1, 1024)}
_LANGUAGE = {
    **_ALL,
    "dtype": choice("float32", "bfloat16", "float16"),
    "slots": whole(1, 4096),
    "slot_tokens": whole(16, 1 << 20),
}
OPTIONS: dict[str, dict[str, Setting]] = {
    "thinker": _LANGUAGE,
    "talker": {**_LANGUAGE, "initial_chunk_frames": whole(1, 10_000), "chunk_frames": whole(1, 10_000)},
    "code2wav": _ALL,
}


def read_options(stage: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Those that were given. Raises `ConfigError` for a role that there is not, or an option that it does not have."""
    role = options.get("role")
    if not ROLE.test(role):
        raise ConfigError(f"stage.{stage}.options.role = {role!r} is not usable: it must be {ROLE.accepts}")
    return check_given(stage, options, OPTIONS[str(role)])


def held_slots(options: Mapping[str, Any], max_inflight: int) -> int:
    """Requests that a thinker or talker holds at once: more than are let run would be in vain."""
    return min(int(options.get("slots", max_inflight)), max_inflight)
