"""What `[plugins.http]` may say, and what is refused before anything starts."""

from __future__ import annotations

from typing import Any

import pytest

from omnizmq.errors import ConfigError
from omnizmq.frontend.http.settings import Settings

pytestmark = pytest.mark.http

SUM = "0" * 64
OTHER = "1" * 64


def test_a_deployment_says_nothing_of_it() -> None:
    Settings.of({}).check_stages(["generator"])


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"voice_to": ""}, 'voice_to: "": "STAGE.PARAMETER" was expected'),
        ({"speed_to": "talker"}, 'speed_to: "talker": "STAGE.PARAMETER" was expected'),
        ({"max_concurrent": 0}, "max_concurrent: 0: a whole number, at least 1, was expected"),
        ({"max_audio_s": 0.0}, "max_audio_s: 0.0: a number above 0 was expected"),
        ({"host": ""}, 'host: "": an address was expected'),
        ({"hosts": ["a.org/x"]}, 'hosts: ["a.org/x"]: a list of names in lower case and without a port'),
        ({"voices": [""]}, 'voices: [""]: a list of names was expected'),
        ({"voices": ["Ann", "ann"]}, 'voices: "ann" is the name of two: each has its own'),
        ({"api_keys": [{"name": "", "sha256": SUM}]}, 'name: "": a name was expected'),
        (
            {"api_keys": [{"name": "ann", "sha256": SUM}, {"name": "ann", "sha256": OTHER}]},
            'api_keys: "ann" is the name of two: each has its own',
        ),
        (
            {"api_keys": [{"name": "ann", "sha256": SUM}, {"name": "bob", "sha256": SUM}]},
            f'api_keys: "{SUM}" is the sha256 of two: each has its own',
        ),
    ],
)
def test_f5_what_cannot_be_meant_is_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Settings.of(options)
    assert caught.value.message.startswith("plugins.http.")
    assert why in caught.value.message


@pytest.mark.parametrize(
    "origin", ["https://example.org/", "https://example.org/page", "example.org", "HTTPS://a.b", ""]
)
def test_f5_an_origin_that_no_browser_sends_is_refused(origin: str) -> None:
    with pytest.raises(
        ConfigError, match=r"^plugins\.http\.cors_origins: .* without a path, as \"https://example\.org"
    ):
        Settings.of({"cors_origins": ["http://localhost:8080", origin]})


@pytest.mark.parametrize("origin", ["https://example.org", "http://localhost:8080", "http://[::1]:80", "*"])
def test_an_origin_that_a_browser_sends_is_taken(origin: str) -> None:
    assert Settings.of({"cors_origins": [origin]}).cors_origins == [origin]


@pytest.mark.parametrize("key", ["speech_to", "speed_to", "voice_to"])
def test_f5_a_stage_that_there_is_not_is_refused(key: str) -> None:
    settings = Settings.of({"voices": ["ann"], "voice_to": "talker.voice", key: "singer.voice"})
    with pytest.raises(ConfigError, match=rf'plugins\.http\.{key}: "singer\.voice": stages are thinker, talker'):
        settings.check_stages(["thinker", "talker"])
