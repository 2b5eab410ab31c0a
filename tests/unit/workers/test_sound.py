"""Sound files of callers: read, mixed, resampled."""

from __future__ import annotations

import io

import numpy as np
import pytest
import soundfile

from omnizmq.errors import InvalidRequestError
from omnizmq.workers.engines.qwen3_omni.sound import RATE, read, resample


def tone(hertz: float, rate: int, count: int) -> np.ndarray:
    return np.sin(2 * np.pi * hertz * np.arange(count) / rate).astype(np.float32)


def encoded(samples: np.ndarray, rate: int, kind: str = "WAV", subtype: str = "FLOAT") -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=kind, subtype=subtype)
    return file.getvalue()


def mangled() -> bytes:
    """Its second half is lost, which its header still counts."""
    whole = encoded(0.5 * tone(440, 48_000, 48_000), 48_000, "MP3", "MPEG_LAYER_III")
    return whole[: len(whole) // 2]


SILENCE = encoded(np.zeros(RATE * 8 // 10, np.float32), RATE, "FLAC", "PCM_16")


@pytest.mark.parametrize("rate", [8_000, 11_025, 22_050, 24_000, 44_100, 48_000, 96_000])
def test_a_tone_is_the_same_tone_at_16_khz(rate: int) -> None:
    made = resample(tone(440, rate, rate), rate)
    assert made.size == RATE
    assert made.dtype == np.float32
    inside = slice(800, -800)  # a tone that is cut off rings at its ends
    assert np.abs(made - tone(440, RATE, RATE))[inside].max() < 0.01


@pytest.mark.parametrize("rate", [8_000, 11_025, 48_000, 95_999])
@pytest.mark.parametrize("seconds", [10.0, 10.01, 10.97, 31.3])
def test_a_long_tone_is_resampled_in_pieces_without_a_seam(rate: int, seconds: float) -> None:
    count = int(rate * seconds)
    made = resample(tone(440, rate, count), rate)
    assert made.size == -(-count * RATE // rate)
    assert np.abs(made - tone(440, RATE, made.size))[800:-800].max() < 0.01


def test_what_16_khz_cannot_carry_is_left_out() -> None:
    made = resample(tone(12_000, 48_000, 48_000), 48_000)
    assert np.abs(made[800:-800]).max() < 0.01


def test_at_16_khz_nothing_is_touched() -> None:
    samples = tone(440, RATE, 1001)
    assert resample(samples, RATE) is samples


@pytest.mark.parametrize("count", [4_410, 4_411, 44_099])
def test_odd_lengths_are_rounded_up(count: int) -> None:
    assert resample(tone(440, 44_100, count), 44_100).size == -(-count * 160 // 441)


def test_channels_are_mixed() -> None:
    left, right = tone(440, RATE, RATE), tone(880, RATE, RATE)
    (made,) = read([encoded(np.stack([left, right], axis=1), RATE)], 2)
    assert np.allclose(made, (left + right) / 2, atol=1e-6)


@pytest.mark.parametrize(
    ("kind", "subtype"), [("FLAC", "PCM_16"), ("OGG", "VORBIS"), ("WAV", "PCM_24"), ("MP3", "MPEG_LAYER_III")]
)
def test_other_formats_are_read(kind: str, subtype: str) -> None:
    (made,) = read([encoded(0.5 * tone(440, 48_000, 48_000), 48_000, kind, subtype)], 2)
    assert np.abs(made - 0.5 * tone(440, RATE, RATE))[800:-800].max() < 0.05


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (b"", "a sound cannot be read"),
        (b"ID3 and nothing more", "a sound cannot be read"),
        (encoded(np.zeros(0, np.float32), RATE), r"a sound of 0\.00 s is not usable: it must have 0\.1 to 2 s"),
        (encoded(np.zeros(RATE * 3, np.float32), RATE), r"a sound of 3\.00 s is not usable"),
        (encoded(np.full(RATE, np.nan, np.float32), RATE), "samples that are no numbers"),
        (encoded(np.full(RATE, 1e20, np.float32), RATE), "samples beyond 2147483648: full scale is 1"),
        (mangled(), r"a sound is damaged: it has \d\.\d\d s of sound where its header says 1\.\d\d s"),
    ],
)
def test_what_is_no_sound_is_refused(data: bytes, line: str) -> None:
    with pytest.raises(InvalidRequestError, match=line):
        read([data], 2)


def test_whole_numbers_written_as_floats_are_heard() -> None:
    loud = tone(440, RATE, RATE) * np.float32(2**31)
    assert np.array_equal(read([encoded(loud, RATE)], 2)[0], loud)


@pytest.mark.parametrize(
    ("files", "line"),
    [
        ([SILENCE] * 3, r"the prompt's 3 sounds have 2\.40 s: together they may have 2 s"),
        ([encoded(np.zeros(655_350, np.float32), 655_350, subtype="PCM_U8")], "have 655350 samples in all channels"),
        (
            [encoded(np.zeros((RATE, 8), np.float32), RATE), encoded(np.zeros((RATE, 5), np.float32), RATE)],
            "have 208000 samples in all channels: together they may have 192000, 96000 a second",
        ),
    ],
)
def test_what_is_too_much_together_is_refused_before_any_is_decoded(
    files: list[bytes], line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded = []
    monkeypatch.setattr(soundfile.SoundFile, "read", lambda *_, **__: decoded.append("read"))
    with pytest.raises(InvalidRequestError, match=line):
        read(files, 2)
    assert not decoded
