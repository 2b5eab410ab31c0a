"""Speech through the bridge where no model is needed: what a deployment can be fed, and what goes wrong midway."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.running import Running, eventually, launched, omnizmq

pytestmark = [pytest.mark.http, pytest.mark.usefixtures("no_leaks")]

BODY = {"model": "synthetic", "input": "one two three", "response_format": "pcm"}
TONES = (
    "plugins.http.port=0",
    'plugins.http.speech_to="prompt"',
    "stage.thinker.options.echo=true",
    "stage.code2wav.options.echo=true",
)
TONE_BYTES = 2 * 2400
LONG = {**BODY, "input": "a " * 2000}
"""Minutes, where each word takes its time: it is under way until somebody ends it."""


@pytest.fixture
def deployment(request: pytest.FixtureRequest) -> Iterator[Running]:
    with launched("synthetic", *request.param) as running:
        yield running


def web(running: Running) -> Any:
    return httpx.Client(base_url=running.ready["plugins"]["http"], timeout=20)


@pytest.mark.parametrize("deployment", [TONES], indirect=True)
def test_a_deployment_may_say_its_prompt_itself(deployment: Running) -> None:
    with web(deployment) as http:
        answer = http.post("/v1/audio/speech", json=BODY, headers={"x-request-id": "mine"})
        assert (answer.status_code, len(answer.content)) == (200, 3 * TONE_BYTES)
        assert answer.headers["x-request-id"].startswith("mine-")
        fast = http.post("/v1/audio/speech", json={**BODY, "speed": 2}).json()["error"]
        assert "this deployment cannot say it: stage talker: " in fast["message"]
        assert "speed" in fast["message"]
        assert fast["param"] == "speed"
    assert eventually(deployment.idle)


@pytest.mark.parametrize("deployment", [("plugins.http.port=0",)], indirect=True)
def test_one_that_cannot_be_fed_a_text_says_so(deployment: Running) -> None:
    with web(deployment) as http:
        answer = http.post("/v1/audio/speech", json=BODY)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (400, "invalid_request")
        assert error["message"].startswith("this deployment cannot say it: stage thinker: ")
        assert "say" in error["message"].partition("thinker: ")[2]
        assert error["param"] == "input"
    assert eventually(deployment.idle)


VOICES = 'plugins.http.voices=["nova"]'


@pytest.mark.parametrize(
    ("deployment", "body", "setting", "stage"),
    [
        ((*TONES, VOICES), {}, 'plugins.http.voice_to = "talker.speaker"', "talker"),
        ((*TONES, VOICES), {"voice": "nova"}, 'plugins.http.voice_to = "talker.speaker"', "talker"),
        ((*TONES, VOICES, "plugins.http.voice_to=talker.seed"), {}, 'plugins.http.voices: "nova"', "talker"),
        ((*TONES, "plugins.http.speech_to=thinker.nope"), {}, 'plugins.http.speech_to = "thinker.nope"', "thinker"),
        (
            (*TONES, "plugins.http.speed_to=code2wav.speed"),
            {"speed": 2},
            'plugins.http.speed_to = "code2wav.speed"',
            "code2wav",
        ),
    ],
    indirect=["deployment"],
)
def test_a_setting_that_a_stage_does_not_take_is_named_and_no_fault_of_the_callers(
    deployment: Running, body: dict[str, Any], setting: str, stage: str, home: Path
) -> None:
    with web(deployment) as http:
        answers = [http.post("/v1/audio/speech", json={**BODY, **body}) for _ in range(2)]
        for answer in answers:
            error = answer.json()["error"]
            assert (answer.status_code, error["code"], error["param"]) == (500, "misconfigured", None)
            assert error["message"].startswith(f"{setting}: stage {stage}: ")
            assert answer.headers["x-should-retry"] == "false"
            assert answer.headers["x-request-id"]
    (log,) = home.rglob("http.log")
    assert log.read_text().count(f"{setting}: stage {stage}: ") == 1
    assert eventually(deployment.idle)


@pytest.mark.parametrize("deployment", [(*TONES, "stage.code2wav.options.fail_at=3")], indirect=True)
def test_f1_a_failure_midway_cuts_the_bytes_off_and_is_an_event(deployment: Running, home: Path) -> None:
    with web(deployment) as http:
        with http.stream("POST", "/v1/audio/speech", json=BODY) as answer:
            came: list[bytes] = []
            with pytest.raises(httpx.RemoteProtocolError, match="without sending complete message body"):
                came.extend(answer.iter_raw())
            assert len(b"".join(came)) == 2 * TONE_BYTES
        lines = http.post("/v1/audio/speech", json={**BODY, "stream_format": "sse"}).text.split("\n\n")
        *deltas, last = [json.loads(line.removeprefix("data: ")) for line in lines if line]
        assert [event["type"] for event in deltas] == ["speech.audio.delta"] * 2
        assert last["error"]["code"] == "stage_error"
        assert http.post("/v1/audio/speech", json={**BODY, "input": "one"}).status_code == 200
    (log,) = home.rglob("http.log")
    (line,) = [line for line in log.read_text().splitlines() if "WARNING" in line or "ERROR" in line]
    assert f"the answer to {answer.headers['x-request-id']} is cut off: " in line, "once, and as no error of the bridge"


@pytest.mark.parametrize("deployment", [(*TONES, "stage.thinker.options.interval_ms=50")], indirect=True)
def test_one_that_is_ended_by_its_id_is_cut_off(deployment: Running) -> None:
    with web(deployment) as http, http.stream("POST", "/v1/audio/speech", json=LONG) as answer:
        pieces = answer.iter_raw()
        next(pieces)
        id_ = answer.headers["x-request-id"]
        assert http.post(f"/v1/requests/{id_}/abort").json() == {"id": id_, "aborted": 1}
        with pytest.raises(httpx.RemoteProtocolError):
            list(pieces)
    assert eventually(deployment.idle)


@pytest.mark.parametrize("deployment", [(*TONES, "stage.thinker.options.interval_ms=200")], indirect=True)
@pytest.mark.parametrize("format_", ["audio", "sse"])
def test_a_caller_that_goes_before_or_after_the_first_sound_aborts_it(deployment: Running, format_: str) -> None:
    with web(deployment) as http:
        with pytest.raises(httpx.ReadTimeout):
            http.post("/v1/audio/speech", json={**LONG, "stream_format": format_}, timeout=0.1)
        assert eventually(lambda: deployment.status()["counters"]["aborted"] == 1)
        with http.stream("POST", "/v1/audio/speech", json={**LONG, "stream_format": format_}) as answer:
            next(answer.iter_raw())
        assert eventually(lambda: deployment.status()["counters"]["aborted"] == 2)
    assert eventually(deployment.idle)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (('plugins.http.speech_to="singer.say"',), 'plugins.http.speech_to: "singer.say": stages are thinker, talker'),
        (('plugins.http.voices=["ann"]', 'plugins.http.voice_to="singer.voice"'), 'plugins.http.voice_to: "singer.voi'),
        (
            ('plugins.http.speed_to="singer.speed"',),
            'plugins.http.speed_to: "singer.speed": stages are thinker, talker',
        ),
    ],
)
@pytest.mark.parametrize("command", [("check", "synthetic"), ("launch", "--config", "synthetic")])
def test_w2_a_stage_that_there_is_not_is_found_before_anything_starts(
    command: tuple[str, ...], settings: tuple[str, ...], why: str
) -> None:
    sets = [option for setting in ("plugins.http.port=0", *settings) for option in ("--set", setting)]
    done = omnizmq(*command, *sets)
    assert done.returncode == 2
    assert done.stderr.startswith(f"omnizmq {command[0]}: --set {settings[-1]}: {why}")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("target", ["prompts", "thinker.", "thinker.say.it"])
def test_w2_a_target_that_is_none_is_found_before_anything_starts(target: str) -> None:
    done = omnizmq("check", "synthetic", "--set", f'plugins.http.speech_to="{target}"')
    assert done.returncode == 2
    assert '"STAGE.PARAMETER" or "prompt"' in done.stderr
    assert done.stderr.count("\n") == 1
