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
