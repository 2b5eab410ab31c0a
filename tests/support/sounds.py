"""Sound files that a deployment made, and whether two of them say the same."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from omnizmq.frontend.http import aac
from support.running import omnizmq

WITH_AAC = pytest.param("aac", marks=pytest.mark.skipif(not aac.available(), reason="not installed: av"))
RATE = 24000
LOSSLESS = ("wav", "pcm", "pcm16", "flac")
LATEST = 2400
"""Samples by which a codec may be late: 0.1 s."""


def written(path: Path, *chat: str) -> Any:
    """What the command line writes: float64 `[samples]` at `RATE`."""
    done = omnizmq("chat", *chat, "--output", str(path))
    assert done.returncode == 0, done.stderr
    samples, rate = soundfile.read(path)
    assert rate == RATE
    return samples


def decoded(data: bytes, format_: str, samples: int) -> Any:
    """float64 `[samples]`; `samples`: how many there should be."""
    if format_ in ("pcm", "pcm16"):
        return np.frombuffer(data, "<i2") / 32768
    if format_ == "aac":
        return _decoded_aac(data)
    with soundfile.SoundFile(io.BytesIO(_sized(data, samples) if format_ == "flac" else data)) as sound:
        assert sound.samplerate == RATE
        return np.concatenate(list(sound.blocks(4096)))


def _decoded_aac(data: bytes) -> Any:
    import av

    with av.open(io.BytesIO(data)) as file:
        assert file.streams.audio[0].rate == RATE
        return np.concatenate([frame.to_ndarray()[0] for frame in file.decode(audio=0)])


def _sized(data: bytes, samples: int) -> bytes:
    """A FLAC file whose STREAMINFO says how many samples there are (RFC 9639, section 8.2): a stream has 0, unknown,
    which libsndfile cannot read to its end."""
    told = int.from_bytes(data[18:26], "big")
    return data if told % (1 << 36) else data[:18] + (told + samples).to_bytes(8, "big") + data[26:]


def assert_alike(heard: Any, wave: Any, format_: str) -> None:
    """Equal, or but for what a codec loses."""
    if format_ in LOSSLESS:
        assert np.array_equal(heard, wave)
        return
    assert len(heard) > len(wave) - 2 * LATEST
    most = min(len(heard), len(wave)) - 2 * LATEST
    best = max(np.corrcoef(heard[late : late + most], wave[:most])[0, 1] for late in range(LATEST))
    assert best > 0.95
