"""The bridge by the official Python client, unmodified, against the embedded deployment: chat with sound."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from support.running import Running, eventually
from support.sounds import WITH_AAC, assert_alike, decoded, written

pytestmark = [pytest.mark.embedded, pytest.mark.http]

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
ANSWER = "The capital of France is Paris."
SPOKEN: dict[str, Any] = {"model": "embedded", "messages": QUESTION, "modalities": ["text", "audio"], "seed": 0}
FORMATS = ("wav", "pcm16", "flac", "mp3", "opus", WITH_AAC)


@pytest.fixture(scope="module")
def wave(deployment: Running, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What the command line writes for the same request."""
    path = tmp_path_factory.mktemp("wave") / "reply.wav"
    return written(path, QUESTION[0]["content"], "--connect", deployment.name)


class TestWhole:
    def test_text(self, client: Any) -> None:
        answer = client.chat.completions.create(model="embedded", messages=QUESTION)
        (choice,) = answer.choices
        assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", ANSWER, "stop")
        assert answer.usage.completion_tokens == 8
        assert answer.usage.total_tokens == answer.usage.prompt_tokens + 8

    @pytest.mark.parametrize("format_", FORMATS)
    def test_sound(self, client: Any, wave: Any, format_: str) -> None:
        answer = client.chat.completions.create(**SPOKEN, audio={"voice": "alloy", "format": format_})
        (choice,) = answer.choices
        assert choice.message.content is None
        assert choice.message.audio.transcript == ANSWER
        assert choice.message.audio.expires_at > answer.created
        assert_alike(decoded(base64.b64decode(choice.message.audio.data), format_, len(wave)), wave, format_)

    def test_the_limit_of_tokens_is_kept(self, client: Any) -> None:
        answer = client.chat.completions.create(model="embedded", messages=QUESTION, max_completion_tokens=3)
        assert answer.choices[0].finish_reason == "length"
        assert answer.usage.completion_tokens == 3

    def test_an_earlier_answer_is_named_by_its_sound(self, client: Any) -> None:
        first = client.chat.completions.create(**SPOKEN, audio={"voice": "alloy", "format": "wav"})
        turns = [
            *QUESTION,
            {"role": "assistant", "audio": {"id": first.choices[0].message.audio.id}},
            {"role": "user", "content": "What is the capital of Italy?"},
        ]
        told = client.chat.completions.create(model="embedded", messages=turns)
        said = [QUESTION[0], {"role": "assistant", "content": ANSWER}, turns[2]]
        assert (
            told.usage.prompt_tokens
            == client.chat.completions.create(model="embedded", messages=said).usage.prompt_tokens
        )


class TestStreamed:
    def test_text_grows(self, client: Any) -> None:
        chunks = list(client.chat.completions.create(model="embedded", messages=QUESTION, stream=True))
        texts = [chunk.choices[0].delta.content for chunk in chunks]
        assert "".join(filter(None, texts)) == ANSWER
        assert len(list(filter(None, texts))) > 3
        assert chunks[-1].choices[0].finish_reason == "stop"
        assert len({chunk.id for chunk in chunks}) == 1

    @pytest.mark.parametrize("format_", FORMATS)
    def test_sound(self, client: Any, wave: Any, format_: str) -> None:
        stream = client.chat.completions.create(
            **SPOKEN, audio={"voice": "alloy", "format": format_}, stream=True, stream_options={"include_usage": True}
        )
        parts: dict[str, str] = {"id": "", "data": "", "transcript": ""}
        pieces, usage = 0, None
        for chunk in stream:
            usage = chunk.usage or usage
            for choice in chunk.choices:
                audio = sound.model_dump(exclude_unset=True) if (sound := choice.delta.audio) else {}
                pieces += "data" in audio
                for name in parts:
                    parts[name] += audio.get(name) or ""
        assert parts["transcript"] == ANSWER
        assert parts["id"].count("audio_") == 1
        assert usage is not None
        assert usage.completion_tokens >= 8
        assert pieces > 1
        assert_alike(decoded(base64.b64decode(parts["data"], validate=True), format_, len(wave)), wave, format_)

    @pytest.mark.parametrize("format_", FORMATS)
    def test_what_the_client_accumulates_is_the_whole_answer(self, client: Any, wave: Any, format_: str) -> None:
        audio = {"voice": "alloy", "format": format_}
        with client.chat.completions.stream(**SPOKEN, audio=audio, stream_options={"include_usage": True}) as stream:
            answer = stream.get_final_completion()
        (choice,) = answer.choices
        assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", None, "stop")
        assert choice.message.audio.transcript == ANSWER
        assert choice.message.audio.id == f"audio_{answer.id.removeprefix('chatcmpl-')}"
        assert choice.message.audio.expires_at > answer.created
        assert answer.usage.completion_tokens == 8
        data = base64.b64decode(choice.message.audio.data, validate=True)
        assert_alike(decoded(data, format_, len(wave)), wave, format_)

    def test_a_seed_makes_what_it_makes_on_the_command_line(
        self, client: Any, deployment: Running, wave: Any, tmp_path: Path
    ) -> None:
        drawn = {"temperature": 1.5, "max_tokens": 12}
        options = [option for key, value in drawn.items() for option in ("--param", f"thinker.{key}={value}")]
        told = written(
            tmp_path / "drawn.wav", QUESTION[0]["content"], "--seed", "7", *options, "--connect", deployment.name
        )
        body = {**SPOKEN, **drawn, "seed": 7, "audio": {"voice": "alloy", "format": "pcm16"}}
        params = {"params": {"talker": {"seed": 7}, "code2wav": {"seed": 7}}}
        answer = client.chat.completions.create(**body, extra_body=params)
        heard = decoded(base64.b64decode(answer.choices[0].message.audio.data), "pcm16", len(told))
        assert np.array_equal(heard, told)
        assert not np.array_equal(heard[: len(wave)], wave[: len(heard)])

    def test_who_closes_the_stream_aborts_the_request(self, client: Any, deployment: Running) -> None:
        before = deployment.status()["counters"]["aborted"]
        long = {"params": {"thinker": {"say": f"{ANSWER} " * 120}}}
        spoken = {**SPOKEN, "audio": {"voice": "alloy", "format": "wav"}, "extra_body": long}
        stream = client.chat.completions.create(**spoken, stream=True)
        next(iter(stream))
        stream.close()
        assert eventually(lambda: deployment.status()["counters"]["aborted"] == before + 1)
        assert eventually(deployment.idle)


class TestRefused:
    def refused(self, client: Any, kind: type[Exception], **body: Any) -> Any:
        with pytest.raises(kind) as caught:
            client.chat.completions.create(**{"model": "embedded", "messages": QUESTION, **body})
        return caught.value

    @pytest.mark.parametrize(
        ("body", "param", "message"),
        [
            ({"n": 2}, "n", "n: is not supported, or unknown"),
            ({"tools": [{"type": "function"}]}, "tools", "tools: is not supported"),
            ({"temperature": 3}, "temperature", "less than or equal to 2"),
            (
                {"max_completion_tokens": 1 << 40},
                "max_completion_tokens",
                "thinker: parameter max_tokens = 1099511627776",
            ),
            ({"extra_body": {"params": {"thinker": {"heat": 1}}}}, "params.thinker.heat", "thinker: parameter heat is"),
            ({"modalities": ["text", "audio"]}, "audio", "audio is missing"),
            ({"messages": []}, "messages", "at least 1 item"),
            (
                {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
                "messages[0].content[0].text",
                "required",
            ),
            ({"messages": [{"role": "user", "content": [IMAGE]}]}, None, "thinker: smollm understands text only"),
            ({"extra_body": {"params": {"singer": {}}}}, "params", "stages are thinker, talker, code2wav"),
            (
                {"modalities": ["text", "audio"], "audio": {"voice": "caruso", "format": "wav"}},
                "audio.voice",
                "there is no voice 'caruso'",
            ),
            (
                {"modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "pcm"}},
                "audio.format",
                "audio.format: sound as 'pcm' is not made here; formats are wav, pcm16, flac, mp3, opus",
            ),
        ],
    )
    def test_what_cannot_be_served(self, client: Any, body: dict[str, Any], param: str | None, message: str) -> None:
        error = self.refused(client, openai.BadRequestError, **body)
        assert error.param == param
        assert error.code == "invalid_request"
        assert message in error.message

    def test_another_model(self, client: Any) -> None:
        error = self.refused(client, openai.NotFoundError, model="gpt-4o-audio-preview")
        assert error.code == "model_not_found"

    def test_a_deadline_that_passes(self, client: Any) -> None:
        error = self.refused(client, openai.InternalServerError, extra_headers={"x-request-timeout": "0.001"})
        assert (error.status_code, error.code) == (504, "deadline_exceeded")
        assert error.response.headers["x-should-retry"] == "false"


def test_models(client: Any) -> None:
    (model,) = client.models.list().data
    assert (model.id, model.owned_by) == ("embedded", "omnizmq")
    assert client.models.retrieve("embedded").id == "embedded"
