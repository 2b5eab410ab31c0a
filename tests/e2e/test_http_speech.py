"""Speech through the bridge by the official Python client, unmodified, against the embedded deployment."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from support.running import Running, eventually
from support.sounds import WITH_AAC, assert_alike, decoded, written

pytestmark = [pytest.mark.embedded, pytest.mark.http]

TEXT = "Violets are blue. The sea is green, and so are you."
SAID: dict[str, Any] = {"model": "embedded", "voice": "alloy", "input": TEXT}
MEDIA_TYPES = {
    "mp3": "audio/mpeg",
    "wav": "audio/wav",
    "flac": "audio/flac",
    "opus": "audio/ogg",
    "pcm": "audio/pcm",
    "aac": "audio/aac",
}
FORMATS = ("mp3", "wav", "flac", "opus", "pcm", WITH_AAC)


def wave_of(text: str, deployment: Running, path: Path) -> Any:
    """What the command line writes of the text."""
    return written(path, "Say it.", "--param", f"thinker.say={text}", "--connect", deployment.name)


@pytest.fixture(scope="module")
def wave(deployment: Running, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return wave_of(TEXT, deployment, tmp_path_factory.mktemp("wave") / "reply.wav")


class TestBytes:
    @pytest.mark.parametrize("format_", FORMATS)
    def test_it_is_the_text_that_was_given(self, client: Any, wave: Any, format_: str) -> None:
        answer = client.audio.speech.create(**SAID, response_format=format_)
        assert answer.response.headers["content-type"] == MEDIA_TYPES[format_]
        assert_alike(decoded(answer.content, format_, len(wave)), wave, format_)

    @pytest.mark.parametrize("format_", FORMATS)
    def test_it_comes_piece_by_piece(self, client: Any, wave: Any, format_: str) -> None:
        speech = client.audio.speech.with_streaming_response
        with speech.create(**SAID, response_format=format_) as answer:
            pieces = list(answer.iter_bytes())
        assert len(pieces) > 3
        assert_alike(decoded(b"".join(pieces), format_, len(wave)), wave, format_)

    def test_mp3_is_the_default(self, client: Any) -> None:
        assert client.audio.speech.create(**SAID).response.headers["content-type"] == "audio/mpeg"

    def test_a_voice_may_be_named_by_an_id(self, client: Any, wave: Any) -> None:
        answer = client.audio.speech.create(**{**SAID, "voice": {"id": "default"}}, response_format="pcm")
        assert np.array_equal(decoded(answer.content, "pcm", len(wave)), wave)

    def test_faster_is_shorter(self, client: Any, wave: Any) -> None:
        answer = client.audio.speech.create(**SAID, response_format="pcm", speed=2.0)
        assert len(wave) < len(answer.content) < 1.8 * len(wave), "two bytes a sample, half as many samples"

    def test_a_stages_own_parameters_go_with_it(self, client: Any, wave: Any) -> None:
        """Another seed of the breath in the voice."""
        params = {"params": {"code2wav": {"seed": 7}}}
        answer = client.audio.speech.create(**SAID, response_format="pcm", extra_body=params)
        heard = decoded(answer.content, "pcm", len(wave))
        assert len(heard) == len(wave)
        assert not np.array_equal(heard, wave)

    def test_the_longest_input_is_said_to_its_end(self, client: Any, deployment: Running, tmp_path: Path) -> None:
        text = ("All is well. " * 400)[:4095] + "."
        answer = client.audio.speech.create(**{**SAID, "input": text}, response_format="pcm")
        wave = wave_of(text, deployment, tmp_path / "long.wav")
        assert np.array_equal(decoded(answer.content, "pcm", len(wave)), wave)

    def test_who_closes_the_stream_aborts_the_request(self, client: Any, deployment: Running) -> None:
        before = deployment.status()["counters"]["aborted"]
        speech = client.audio.speech.with_streaming_response
        with speech.create(**{**SAID, "input": TEXT * 70}, response_format="pcm") as answer:
            next(answer.iter_bytes())
            assert answer.headers["x-request-id"].startswith("req-")
        assert eventually(lambda: deployment.status()["counters"]["aborted"] == before + 1)
        assert eventually(deployment.idle)


class TestEvents:
    @pytest.mark.parametrize("format_", FORMATS)
    def test_deltas_are_the_sound_and_the_last_event_has_the_usage(self, client: Any, wave: Any, format_: str) -> None:
        speech = client.audio.speech.with_streaming_response
        with speech.create(**SAID, response_format=format_, stream_format="sse") as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            *deltas, done = [json.loads(line.removeprefix("data: ")) for line in answer.iter_lines() if line]
        assert {event["type"] for event in deltas} == {"speech.audio.delta"}
        assert len(deltas) > 3
        joined = base64.b64decode("".join(event["audio"] for event in deltas), validate=True)
        assert joined == b"".join(base64.b64decode(event["audio"], validate=True) for event in deltas)
        assert_alike(decoded(joined, format_, len(wave)), wave, format_)
        words = len(TEXT.split())
        usage = {"input_tokens": words, "output_tokens": 0, "total_tokens": words}
        assert done == {"type": "speech.audio.done", "usage": usage}


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({"input": ""}, "input", "at least 1 character"),
        ({"input": " \n"}, "input", "input is blank: there is nothing to say"),
        ({"input": "x" * 4097}, "input", "at most 4096 characters"),
        ({"input": "日本"}, "input", "nothing to say: the text has no English words"),
        ({"response_format": "pcm16"}, "response_format", "formats are wav, pcm, flac, mp3, opus"),
        ({"voice": "caruso"}, "voice", "there is no voice 'caruso'; the one voice is 'default'"),
        ({"speed": 4.5}, "speed", "less than or equal to 4"),
        ({"speed": 0.3}, "speed", "this deployment cannot say it: talker: parameter speed = 0.3 is not usable"),
        ({"instructions": "Whisper."}, "instructions", "is not supported"),
        ({"stream_format": "raw"}, "stream_format", "'audio' or 'sse'"),
        ({"extra_body": {"params": {"singer": {}}}}, "params", "stages are thinker, talker, code2wav"),
        ({"extra_body": {"params": {"thinker": {"say": "x"}}}}, "input", "say is given twice"),
        ({"extra_body": {"lang": "en"}}, "lang", "unknown"),
    ],
)
def test_what_cannot_be_said_is_refused(client: Any, body: dict[str, Any], param: str | None, message: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.audio.speech.create(**{**SAID, **body})
    assert (caught.value.code, caught.value.param) == ("invalid_request", param)
    assert message in caught.value.message


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("stream_format", ["audio", "sse"])
def test_where_nothing_sounds_every_format_is_refused(client: Any, format_: str, stream_format: str) -> None:
    with pytest.raises(openai.BadRequestError, match="nothing to say: the text has no English words") as caught:
        client.audio.speech.create(
            **{**SAID, "input": "日本"}, response_format=format_, extra_body={"stream_format": stream_format}
        )
    assert caught.value.response.headers["x-request-id"].startswith("req-")


def test_another_model(client: Any) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.audio.speech.create(**{**SAID, "model": "tts-1"})
    assert caught.value.code == "model_not_found"


def test_what_asks_for_nothing_is_no_obstacle(client: Any) -> None:
    assert client.audio.speech.create(**SAID, instructions="", speed=1.0, stream_format="audio").content
