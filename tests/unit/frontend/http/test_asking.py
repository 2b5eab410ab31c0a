"""What a body of OpenAI's API asks of the stages."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("fastapi", reason="not installed: the extra `http`")

from omnizmq.errors import InvalidRequestError
from omnizmq.frontend.http.asking import Asked, Asking
from omnizmq.frontend.http.problems import BridgeError
from omnizmq.frontend.http.schema import ChatBody, SpeechBody
from omnizmq.frontend.http.settings import Settings

pytestmark = pytest.mark.http

STAGES = {"thinker": "text", "talker": None, "code2wav": "audio"}
SPOKEN = {"model": "m", "messages": [{"role": "user", "content": "Hi."}], "modalities": ["text", "audio"]}


def asking(**options: Any) -> Asking:
    return Asking(Settings.of(options), STAGES, "m")


def spoken(voice: Any, params: Any = None, **options: Any) -> Asked:
    body = {**SPOKEN, "audio": {"voice": voice, "format": "wav"}, "params": params}
    return asking(**options).chat(ChatBody.model_validate(body), lambda _: None)


def said(**body: Any) -> Asked:
    return asking(voices=["Ethan", "Chelsie"]).speech(SpeechBody.model_validate({"model": "m", "input": "Hi.", **body}))


class TestVoices:
    @pytest.mark.parametrize(
        ("voice", "chosen"),
        [
            ("Chelsie", "Chelsie"),
            ("CHELSIE", "Chelsie"),
            ({"id": "chelsie"}, "Chelsie"),
            ("ethan", "Ethan"),
            ("default", "Ethan"),
            ("Alloy", "Ethan"),
        ],
    )
    def test_names_in_any_case_and_openais_are_the_deployments(self, voice: Any, chosen: str) -> None:
        assert spoken(voice, voices=["Ethan", "Chelsie"]).params == {"talker": {"speaker": chosen}}
        assert said(voice=voice).params["talker"] == {"speaker": chosen}

    def test_without_one_it_is_the_first(self) -> None:
        assert said().params["talker"] == {"speaker": "Ethan"}

    def test_a_name_of_openais_may_be_the_deployments(self) -> None:
        assert spoken("ALLOY", voices=["ann", "alloy"]).params == {"talker": {"speaker": "alloy"}}

    def test_the_default_yields_to_the_stages_own_parameters(self) -> None:
        own = {"talker": {"speaker": "Aiden"}}
        assert spoken("alloy", own, voices=["Ethan"]).params == own

    def test_a_voice_that_is_given_twice_is_refused(self) -> None:
        with pytest.raises(BridgeError, match=r"speaker is given twice: as audio\.voice and in params\.talker"):
            spoken("ethan", {"talker": {"speaker": "Aiden"}}, voices=["Ethan"])

    def test_without_voices_the_model_has_its_own(self) -> None:
        assert spoken("alloy").params == {}
        with pytest.raises(BridgeError, match="there is no voice 'ann'; the one voice is 'default'"):
            spoken("ann")

    def test_it_goes_where_the_deployment_says(self) -> None:
        asked = spoken("default", voices=["ann"], voice_to="code2wav.voice")
        assert asked.params == {"code2wav": {"voice": "ann"}}


class TestSpeed:
    def test_it_goes_to_the_talker_unless_told_otherwise(self) -> None:
        assert said(speed=2.0).params["talker"]["speed"] == 2
        body = SpeechBody.model_validate({"model": "m", "input": "Hi.", "speed": 2.0})
        assert asking(speed_to="code2wav.rate").speech(body).params["code2wav"] == {"rate": 2}

    def test_without_a_talker_there_is_one_speed(self) -> None:
        body = SpeechBody.model_validate({"model": "m", "input": "Hi.", "speed": 2.0})
        with pytest.raises(BridgeError, match="this deployment speaks at its own, 1") as caught:
            Asking(Settings.of({}), {"backbone": None, "codec": "audio"}, "m").speech(body)
        assert caught.value.param == "speed"


PICTURE = "data:image/png;base64,"


def message(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "Hi."}, {"role": "user", **fields}]}


def image(url: str) -> dict[str, Any]:
    return message(content=[{"type": "text", "text": "See:"}, {"type": "image_url", "image_url": {"url": url}}])


IMAGE = "messages[1].content[1].image_url.url"
NO_DATA_URL = f"{IMAGE}: a data: URL such as data:image/png;base64,… was expected: nothing is fetched"
FOR_ASSISTANTS = "messages[1].audio is for an assistant's message without content"
TEXT = {"thinker": "text"}


class TestRefusals:
    @pytest.mark.parametrize(
        ("body", "param", "told"),
        [
            (
                message(content="Hi.", name="ann"),
                "messages[1].name",
                "messages[1].name is not supported: messages have a role alone",
            ),
            (message(), "messages[1].content", "messages[1].content is missing"),
            (message(audio={"id": "known"}), "messages[1].audio", FOR_ASSISTANTS),
            (message(audio={"id": "known"}, role="system"), "messages[1].audio", FOR_ASSISTANTS),
            (message(audio={"id": "known"}, role="assistant", content="Hi."), "messages[1].audio", FOR_ASSISTANTS),
            (
                message(audio={"id": "other"}, role="assistant"),
                "messages[1].audio.id",
                "messages[1].audio.id: unknown or expired",
            ),
            (
                {"max_tokens": 5, "max_completion_tokens": 5},
                "max_tokens",
                "max_tokens and max_completion_tokens are two names of one thing: give one",
            ),
            ({"audio": {"voice": "default"}}, "audio", 'audio is for modalities ["text", "audio"]'),
            (
                {"modalities": ["audio"]},
                "audio",
                "audio is missing: with modalities of sound, audio.voice and audio.format say which",
            ),
            ({"params": {"singer": {}}}, "params", f"params has no stage 'singer': stages are {', '.join(STAGES)}"),
            (
                {"temperature": 1, "params": {"thinker": {"temperature": 1}}},
                "temperature",
                "temperature is given twice:",
            ),
            (image("http://example.org/a.png"), IMAGE, NO_DATA_URL),
            (image("file:///etc/passwd"), IMAGE, NO_DATA_URL),
            (image("data:text/plain;base64,eA=="), IMAGE, NO_DATA_URL),
            (image("data:image/png,x"), IMAGE, NO_DATA_URL),
            (image("data:image/png;base64"), IMAGE, NO_DATA_URL),
            (image(f"{PICTURE}eA"), IMAGE, f"{IMAGE}: no base64: Incorrect padding"),
            (image(f"{PICTURE}e!A="), IMAGE, f"{IMAGE}: no base64: Only base64 data is allowed"),
            ({"model": "other"}, "model", "the model 'other' does not exist; this deployment serves 'm'"),
        ],
    )
    def test_of_chat_name_the_field(self, body: dict[str, Any], param: str, told: str) -> None:
        given = ChatBody.model_validate({"model": "m", "messages": SPOKEN["messages"], **body})
        with pytest.raises(BridgeError) as caught:
            asking().chat(given, {"known": "Hello."}.get)
        assert caught.value.param == param
        assert caught.value.message.startswith(told)

    @pytest.mark.parametrize(
        ("stages", "body", "param", "told"),
        [
            (TEXT, {}, "model", "this deployment gives text: it makes no sound"),
            (STAGES, {"input": " \n"}, "input", "input is blank: there is nothing to say"),
            (STAGES, {"model": "other"}, "model", "the model 'other' does not exist; this deployment serves 'm'"),
        ],
    )
    def test_of_speech_name_the_field(self, stages: Any, body: dict[str, Any], param: str, told: str) -> None:
        with pytest.raises(BridgeError) as caught:
            Asking(Settings.of({}), stages, "m").speech(
                SpeechBody.model_validate({"model": "m", "input": "Hi.", **body})
            )
        assert (caught.value.param, caught.value.message) == (param, told)

    def test_a_modality_that_no_stage_makes(self) -> None:
        with pytest.raises(BridgeError, match="this deployment gives text, not audio") as caught:
            Asking(Settings.of({}), TEXT, "m").chat(ChatBody.model_validate(SPOKEN), lambda _: None)
        assert caught.value.param == "modalities"


class TestMessages:
    def test_a_developer_is_the_system(self) -> None:
        parts = [{"type": "text", "text": "Be brief."}]
        turns = [{"role": "developer", "content": content} for content in ("Be brief.", parts)]
        turns += [{"role": role, "content": "Hi."} for role in ("system", "user", "assistant")]
        asked = asking().chat(ChatBody.model_validate({"model": "m", "messages": turns}), lambda _: None)
        assert [turn["role"] for turn in asked.prompt] == ["system", "system", "system", "user", "assistant"]
        assert [turn["content"] for turn in asked.prompt[:2]] == ["Be brief.", parts]

    def test_an_image_is_its_bytes_and_an_earlier_sound_its_transcript(self) -> None:
        body = {**image(f"{PICTURE}AAH/"), "model": "m"}
        body["messages"] += [{"role": "assistant", "audio": {"id": "known"}}]
        asked = asking().chat(ChatBody.model_validate(body), {"known": "Hello."}.get)
        assert asked.prompt[1]["content"][1] == {"type": "image", "data": b"\0\x01\xff"}
        assert asked.prompt[2] == {"role": "assistant", "content": "Hello."}


def test_stop_is_a_list_for_the_stage_that_makes_text() -> None:
    body = {"model": "m", "messages": SPOKEN["messages"], "stop": "END"}
    assert asking().chat(ChatBody.model_validate(body), lambda _: None).params == {"thinker": {"stop": ["END"]}}


@pytest.mark.parametrize(
    ("given", "said", "field"),
    [
        ({"max_completion_tokens": 9}, "parameter max_tokens = 9 is not usable", "max_completion_tokens"),
        ({"max_tokens": 9}, "parameter max_tokens = 9 is not usable", "max_tokens"),
        ({"params": {"thinker": {"heat": 1}}}, "unknown parameter 'heat'", "params.thinker.heat"),
        ({"params": {"thinker": {"heat": 1}}}, "parameter heater is unknown", None),
        ({"params": {"talker": {"heat": 1}}}, "parameter heat is unknown", None),
        ({"seed": 1}, "the prompt has 9 tokens", None),
    ],
)
def test_what_a_stage_refuses_is_found_by_the_name_that_the_caller_gave_it(
    given: dict[str, Any], said: str, field: str | None
) -> None:
    body = ChatBody.model_validate({"model": "m", "messages": SPOKEN["messages"], **given})
    asked = asking().chat(body, lambda _: None)
    assert asked.field_of(InvalidRequestError(said, stage="thinker")) == field
