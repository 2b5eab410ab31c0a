"""Sound as files of every format, streamed and whole; and how long callers' files are, by their headers."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="not installed: the extra `http`")

import soundfile
from support.sounds import RATE, WITH_AAC, assert_alike, decoded

from omnizmq.frontend.http import aac, sound
from omnizmq.frontend.http.hearing import check_sounds
from omnizmq.frontend.http.problems import BridgeError
from omnizmq.frontend.http.sound import CHAT, SPEECH, Encoder, formats

pytestmark = pytest.mark.http

WAVE = np.sin(np.cumsum(np.linspace(0.02, 0.3, 2 * RATE))).astype(np.float32) * 0.4


def pieces_of(format_: str, *, streamed: bool, rate: int = RATE) -> list[bytes]:
    encoder = Encoder(format_, streamed=streamed)
    made = [encoder.add(WAVE[at : at + 1111], rate) for at in range(0, len(WAVE), 1111)]
    return [*made, encoder.end()]


class TestEncoder:
    @pytest.mark.parametrize("format_", ["wav", "pcm16", "flac", "mp3", "opus", WITH_AAC])
    def test_a_stream_and_a_file_have_the_sound(self, format_: str) -> None:
        expected = sound.pcm16(WAVE) / 32768
        streamed = pieces_of(format_, streamed=True)
        assert len([piece for piece in streamed if piece]) > 2
        *nothing, whole = pieces_of(format_, streamed=False)
        assert not any(nothing)
        for data in (b"".join(streamed), whole):
            assert_alike(decoded(data, format_, len(WAVE)), expected, format_)

    @pytest.mark.parametrize("streamed", [True, False])
    def test_without_sound_a_wav_file_has_no_samples_and_others_are_empty(self, streamed: bool) -> None:
        empty = Encoder("wav", streamed=streamed).end()
        with soundfile.SoundFile(io.BytesIO(empty)) as file:
            assert (file.frames, file.samplerate) == (0, 24000)
        assert all(Encoder(name, streamed=streamed).end() == b"" for name in formats() if name != "wav")

    @pytest.mark.parametrize("format_", ["wav", "pcm16", "flac", "mp3", "opus", WITH_AAC])
    @pytest.mark.parametrize("rate", [7350, 8000, 11025, 16000, 17000, 24000, 48000, 65537, 88200, 96000, 700000])
    def test_a_rate_is_taken_or_refused_with_the_formats_that_take_it(self, format_: str, rate: int) -> None:
        if sound.takes(format_, rate):
            assert b"".join(pieces_of(format_, streamed=True, rate=rate))
            return
        for field in (CHAT, SPEECH):
            others = [field.said(name) for name in formats() if sound.takes(name, rate)]
            with pytest.raises(BridgeError) as caught:
                Encoder(format_, streamed=True, field=field).add(WAVE, rate)
            told = f"{format_} has no rate of {rate} Hz, which the sound has; formats with it: {', '.join(others)}"
            assert (caught.value.message, caught.value.param) == (f"{field.name}: {told}", field.name)
            assert field.pcm in others

    def test_what_libsndfile_does_not_take_is_refused(self) -> None:
        for name, (kind, subtype) in sound._ENCODINGS.items():
            for rate in (
                1000,
                7350,
                8000,
                12000,
                17000,
                24000,
                44100,
                48000,
                65535,
                65536,
                65540,
                96000,
                655350,
                655360,
            ):
                with io.BytesIO() as file:
                    try:
                        soundfile.write(file, WAVE, rate, format=kind, subtype=subtype)
                        written = True
                    except soundfile.LibsndfileError:
                        written = False
                assert sound.takes(name, rate) == written, (name, rate)

    def test_aac_is_there_where_its_package_is(self) -> None:
        assert ("aac" in formats()) == aac.available()

    def test_a_format_that_is_not_made_is_refused_with_those_that_are(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(
            BridgeError, match=r"audio\.format: sound as 'midi' is not made here; formats are wav, pcm16, fl"
        ):
            CHAT.format_of("midi")
        with pytest.raises(
            BridgeError, match=r"response_format: sound as 'pcm16' is not made here; .* are wav, pcm, fl"
        ):
            SPEECH.format_of("pcm16")
        assert (SPEECH.format_of("pcm"), CHAT.format_of("pcm16")) == ("pcm16", "pcm16")
        monkeypatch.setattr(aac, "available", lambda: False)
        with pytest.raises(BridgeError, match="not made here: it needs the package av, which is not installed; form"):
            CHAT.format_of("aac")


def silence(seconds: int, kind: str = "FLAC", rate: int = 8000) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, np.zeros(seconds * rate, np.float32), rate, format=kind)
    return file.getvalue()


def asked(*sounds: bytes) -> list[dict[str, Any]]:
    parts = [{"type": "audio", "data": data} for data in sounds]
    return [
        {"role": "system", "content": "Listen."},
        {"role": "user", "content": [{"type": "text", "text": "What?"}, *parts]},
    ]


class TestHearing:
    @pytest.mark.parametrize("kind", ["WAV", "FLAC", "OGG", "MP3"])
    def test_sounds_up_to_the_limit_pass(self, kind: str) -> None:
        check_sounds(asked(silence(4, kind), silence(5, kind)), 9.5)

    @pytest.mark.parametrize("kind", ["WAV", "FLAC", "OGG", "MP3"])
    def test_together_they_are_too_long(self, kind: str) -> None:
        with pytest.raises(BridgeError, match=r"the sounds up to here have 1\d s: 9.5 s are taken") as caught:
            check_sounds(asked(silence(4, kind), silence(6, kind), b"never looked at"), 9.5)
        assert (caught.value.status, caught.value.code) == (413, "audio_too_long")
        assert caught.value.param == "messages[1].content[2].input_audio.data"

    def test_hours_of_silence_are_told_by_their_header(self) -> None:
        data = silence(3600)
        assert len(data) < 100_000
        with pytest.raises(BridgeError, match="have 3600 s: 600 s are taken"):
            check_sounds(asked(data), 600)

    @pytest.mark.parametrize(
        ("data", "why"),
        [
            (b"RIFFnonsense", "no sound file that can be read"),
            (b"", "no sound file that can be read"),
            (b"".join(pieces_of("flac", streamed=True)), "its header does not say how long it is"),
        ],
    )
    def test_one_whose_length_is_not_known_is_refused(self, data: bytes, why: str) -> None:
        with pytest.raises(BridgeError, match=rf"messages\[1\].content\[1\].input_audio.data: {why}") as caught:
            check_sounds(asked(data), 600)
        assert caught.value.status == 400
