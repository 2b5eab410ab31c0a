"""The options of `[plugins.http]`."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from typing import Annotated, Any, Self

import msgspec

from omnizmq.errors import ConfigError
from omnizmq.tables import Section, read

Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
Positive = Annotated[int, msgspec.Meta(ge=1)]
Sha256 = Annotated[
    str, msgspec.Meta(pattern="^[0-9a-f]{64}$", description="a SHA-256 sum in 64 lower-case hexadecimal digits")
]
Name = Annotated[str, msgspec.Meta(min_length=1, description="a name")]
Target = Annotated[str, msgspec.Meta(pattern=r"^[^.]+\.[^.]+$", description='"STAGE.PARAMETER"')]
SpeedTarget = Annotated[str, msgspec.Meta(pattern=r"^(|[^.]+\.[^.]+)$", description='"STAGE.PARAMETER"')]
SpeechTarget = Annotated[
    str, msgspec.Meta(pattern=r"^(|prompt|[^.]+\.[^.]+)$", description='"STAGE.PARAMETER" or "prompt"')
]
Origin = Annotated[str, msgspec.Meta(pattern=r"^(\*|[a-z][a-z0-9+.-]*://[^/?#@\sA-Z]+)$")]
Origins = Annotated[
    list[Origin],
    msgspec.Meta(description='a list of "*" or origins in lower case and without a path, as "https://example.org",'),
]

Host = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9:._-]+$")]
Hosts = Annotated[
    list[Host], msgspec.Meta(description='a list of names in lower case and without a port, as "talk.example.org",')
]


class ApiKey(Section, frozen=True):
    """Whoever bears it may abort and trace the requests that it made, and no others."""

    label_keys = ("name",)

    name: Name
    """Whose it is: requests belong to this name."""

    sha256: Sha256
    """Of the key: `printf %s KEY | sha256sum`. The key itself stands nowhere."""


class Settings(Section, frozen=True, kw_only=True):
    """Where it listens, for whom, and up to what."""

    host: Annotated[str, msgspec.Meta(min_length=1, description="an address")] = "127.0.0.1"
    """An address. One that others can reach needs `api_keys`."""

    port: Port = 8091
    """0: any that is free; the ready line says which."""

    hosts: Hosts = []
    """Names besides this machine's own that requests may have as `host`, where there are no `api_keys`: of a proxy that
    hands on what it was asked for. Whoever sends that name is answered."""

    model: str = ""
    """What requests call the model; empty: the deployment's name."""

    voices: Annotated[list[Name], msgspec.Meta(description="a list of names")] = []
    """By the model's own names; the first is the default."""

    voice_to: Target = "talker.speaker"
    """The stage's parameter that takes a voice's name."""

    speech_to: SpeechTarget = ""
    """The parameter of the stage that makes text, which gives a text as that stage's answer; "prompt" where the
    deployment says its prompt itself. Empty: the text stage's `say`, or "prompt" where there is no text stage."""

    speed_to: SpeedTarget = ""
    """The stage's parameter that takes the speed of speech, 1 by default. Empty: `talker.speed`, where there is a
    talker."""

    api_keys: list[ApiKey] = []
    """None: everybody who can reach the port may ask."""

    cors_origins: Origins = []
    """Origins whose pages may ask from a browser, such as `https://example.org`; `*`: all. None: only its own."""

    max_body_mib: Positive = 32
    """A larger body is refused with 413."""

    max_audio_s: Annotated[float, msgspec.Meta(gt=0)] = 600.0
    """Seconds that all sounds of a request may have together, by their headers; more are refused with 413."""

    max_concurrent: Positive = 512
    """Requests at once; more are refused with 429."""

    @classmethod
    def of(cls, options: dict[str, Any]) -> Self:
        """Raises `ConfigError`."""
        settings = read(cls, options, "plugins.http")
        if not settings.api_keys and not _is_loopback(settings.host):
            raise ConfigError(
                f'plugins.http.host: others may reach "{settings.host}": with no api_keys, localhost,'
                " 127.0.0.1 or ::1 was expected"
            )
        _check_apart("voices", "name", [voice.lower() for voice in settings.voices])
        _check_apart("api_keys", "name", [key.name for key in settings.api_keys])
        _check_apart("api_keys", "sha256", [key.sha256 for key in settings.api_keys])
        return settings

    def check_stages(self, stages: Collection[str]) -> None:
        """Raises `ConfigError` for a parameter of a stage that the deployment does not have."""
        targets = {"speech_to": self.speech_to if self.speech_to != "prompt" else "", "speed_to": self.speed_to}
        if self.voices:
            targets["voice_to"] = self.voice_to
        for key, target in targets.items():
            if target and target.partition(".")[0] not in stages:
                raise ConfigError(f'plugins.http.{key}: "{target}": stages are {", ".join(stages)}')


def _check_apart(key: str, what: str, values: list[str]) -> None:
    """Raises `ConfigError` where two are the same."""
    for value in values:
        if values.count(value) > 1:
            raise ConfigError(f'plugins.http.{key}: "{value}" is the {what} of two: each has its own')


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
