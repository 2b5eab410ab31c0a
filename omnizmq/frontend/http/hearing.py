"""How long callers' sound files are, by their headers alone: a few bytes may stand for hours of silence."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from omnizmq.frontend.http.problems import BridgeError

_UNKNOWN_FRAMES = 1 << 62
"""libsndfile tells more of a file whose header has no length, as a streamed FLAC's."""


def check_sounds(prompt: Sequence[dict[str, Any]], most_s: float) -> None:
    """Of a prompt's messages: all sounds together may have `most_s` seconds. Raises `BridgeError`."""
    total = 0.0
    for number, message in enumerate(prompt):
        if isinstance(message["content"], str):
            continue
        for place, part in enumerate(message["content"]):
            if part["type"] != "audio":
                continue
            where = f"messages[{number}].content[{place}].input_audio.data"
            total += _seconds(part["data"], where)
            if total > most_s:
                told = (
                    f"the sounds up to here have {total:.10g} s: {most_s:.10g} s are taken (plugins.http.max_audio_s)"
                )
                raise BridgeError(413, "audio_too_long", f"{where}: {told}", where)


def _seconds(data: bytes, where: str) -> float:
    import soundfile

    try:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            frames, rate = file.frames, file.samplerate
    except soundfile.LibsndfileError as error:
        told = f"{where}: no sound file that can be read: {error.error_string}"
        raise BridgeError(400, "invalid_request", told, where) from error
    if frames > _UNKNOWN_FRAMES:
        raise BridgeError(400, "invalid_request", f"{where}: its header does not say how long it is", where)
    return float(frames / rate)
