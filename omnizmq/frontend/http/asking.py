"""A body of OpenAI's API as what `AsyncClient.generate` takes: prompt, modalities, parameters."""

from __future__ import annotations

import binascii
import re
from base64 import b64decode
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from omnizmq.errors import OmnizmqError
from omnizmq.frontend.http.hearing import check_sounds
from omnizmq.frontend.http.problems import BridgeError, quoted
from omnizmq.frontend.http.schema import (
    AudioPart,
    ChatBody,
    ImagePart,
    Message,
    Part,
    SpeechBody,
    Voice,
)
from omnizmq.frontend.http.settings import Settings
from omnizmq.frontend.http.sound import CHAT

OPENAI_VOICES = {
    "alloy",
    "ash",
    "ballad",
    "cedar",
    "coral",
    "echo",
    "fable",
    "marin",
    "nova",
    "onyx",
    "sage",
    "shimmer",
}
OPENAI_VOICES |= {"verse", "default"}
"""Names that OpenAI's clients send unless told otherwise: here they mean the default voice."""

_PARAMETERS = {"max_completion_tokens": "max_tokens"}
"""What stages call a field of the body, where that is another name."""

SPEED = "talker.speed"
"""The parameter that takes the speed of speech, unless the deployment has another."""


@dataclass(frozen=True)
class Setting:
    """Of `[plugins.http]`: which has a stage's parameter named, and which has its value, where one has."""

    name: str
    value: str | None = None


@dataclass(frozen=True)
class Asked:
    """What `generate` is called with. `fields` of the body are what these parameters of stages came from, `settings`
    say of some why they are there."""

    prompt: list[dict[str, Any]]
    modalities: list[str]
    params: dict[str, dict[str, Any]]
    fields: dict[tuple[str, str], str]
    settings: dict[tuple[str, str], Setting]

    def field_of(self, error: OmnizmqError) -> str | None:
        """Which the stage does not take, as far as its words tell: engines say `parameter NAME`."""
        named = re.search(r"\bparameter '?(\w+)", error.message)
        return self.fields.get((error.stage or "", named[1])) if named else None

    def setting_of(self, error: OmnizmqError) -> str | None:
        """Which is wrong, as far as the stage's words tell: it does not know the parameter, or refuses the value."""
        for (stage, name), setting in self.settings.items():
            if stage != error.stage:
                continue
            if re.search(rf"\bparameter {name} is unknown|\bunknown parameter '{name}'", error.message):
                return setting.name
            if setting.value is not None and re.search(rf"\b{name}\b", error.message):
                return setting.value
        return None


class Params:
    """Of the stages, by their names, as they are gathered."""

    def __init__(self, given: dict[str, dict[str, Any]]) -> None:
        self.values = {stage: dict(values) for stage, values in given.items()}
        self.fields = {(stage, name): f"params.{stage}.{name}" for stage, values in given.items() for name in values}
        self.settings: dict[tuple[str, str], Setting] = {}

    def put(self, target: str, value: Any, field: str, setting: Setting | None = None) -> None:
        """`target`: as in "STAGE.PARAMETER"; `field`: of the body. Raises `BridgeError` for what there is already."""
        stage, _, name = target.partition(".")
        values = self.values.setdefault(stage, {})
        if name in values:
            raise _bad(f"{name} is given twice: as {field} and in params.{stage}", field)
        values[name] = value
        self.fields[stage, name] = field
        if setting is not None:
            self.settings[stage, name] = setting

    def put_default(self, target: str, value: Any, setting: Setting) -> None:
        """Unless there is one."""
        stage, _, name = target.partition(".")
        values = self.values.setdefault(stage, {})
        if name not in values:
            values[name] = value
            self.settings[stage, name] = setting


class Asking:
    """For one deployment. `stages`: each stage's modality, where it is a final one, in their order."""

    def __init__(self, settings: Settings, stages: dict[str, str | None], model: str) -> None:
        self._settings = settings
        self._stages = stages
        self._model = model

    @property
    def modalities(self) -> list[str]:
        return [modality for modality in self._stages.values() if modality is not None]

    @property
    def text_stage(self) -> str | None:
        """Which makes the text; None: no stage does."""
        return next((stage for stage, modality in self._stages.items() if modality == "text"), None)

    @property
    def voices(self) -> list[str]:
        """What can be asked for, the default first."""
        return self._settings.voices or (["default"] if "audio" in self.modalities else [])

    def chat(self, body: ChatBody, said: Callable[[str], str | None]) -> Asked:
        """`said` is the transcript of an earlier answer's sound, by its id. Raises `BridgeError`."""
        self.check_model(body.model)
        wanted = self._wanted(body)
        prompt = [self._message(message, f"messages[{n}]", said) for n, message in enumerate(body.messages)]
        check_sounds(prompt, self._settings.max_audio_s)
        params = self._params(body.params)
        first = self.text_stage or next(iter(self._stages))
        for name, value in self._sampling(body).items():
            params.put(f"{first}.{_PARAMETERS.get(name, name)}", value, name)
        if body.audio is not None:
            CHAT.format_of(body.audio.format)
            self._voice(params, body.audio.voice, "audio.voice")
        return Asked(prompt, wanted, params.values, params.fields, params.settings)

    def speech(self, body: SpeechBody) -> Asked:
        """Raises `BridgeError`."""
        self.check_model(body.model)
        if "audio" not in self.modalities:
            raise _bad(f"this deployment gives {' and '.join(self.modalities)}: it makes no sound", "model")
        if not body.input.strip():
            raise _bad("input is blank: there is nothing to say", "input")
        params = self._params(body.params)
        say = self._settings.speech_to or (f"{self.text_stage}.say" if self.text_stage else "prompt")
        if say != "prompt":
            params.put(say, body.input, "input", _set("speech_to", self._settings.speech_to))
        if body.speed != 1:
            target = self._settings.speed_to or SPEED
            if target.partition(".")[0] not in self._stages:
                raise _bad("speed: this deployment speaks at its own, 1", "speed")
            params.put(target, body.speed, "speed", _set("speed_to", self._settings.speed_to))
        self._voice(params, body.voice, "voice")
        prompt = [{"role": "user", "content": body.input}]
        return Asked(prompt, ["audio"], params.values, params.fields, params.settings)

    def check_model(self, name: str) -> None:
        """Raises `BridgeError`."""
        if name != self._model:
            text = f"the model {quoted(name)} does not exist; this deployment serves {self._model!r}"
            raise BridgeError(404, "model_not_found", text, "model")

    def _voice(self, params: Params, voice: str | Voice, where: str) -> None:
        """Into the parameters. A name that means the default voice yields to what they have already."""
        name = voice.id if isinstance(voice, Voice) else voice
        voices = self._settings.voices
        chosen = next((known for known in voices if known.lower() == name.lower()), None)
        if chosen is not None:
            params.put(self._settings.voice_to, chosen, where, self._voice_setting(chosen))
        elif name.lower() not in OPENAI_VOICES:
            known = f"voices are {', '.join(voices)}, and " if voices else "the one voice is "
            raise _bad(f"there is no voice {quoted(name)}; {known}'default'", where)
        elif voices:
            params.put_default(self._settings.voice_to, voices[0], self._voice_setting(voices[0]))

    def _voice_setting(self, voice: str) -> Setting:
        return Setting(f'plugins.http.voice_to = "{self._settings.voice_to}"', f'plugins.http.voices: "{voice}"')

    def _wanted(self, body: ChatBody) -> list[str]:
        """Text comes along with sound: it is the transcript."""
        offered = self.modalities
        for modality in body.modalities:
            if modality not in offered:
                raise _bad(f"this deployment gives {' and '.join(offered)}, not {modality}", "modalities")
        if "audio" in body.modalities and body.audio is None:
            raise _bad("audio is missing: with modalities of sound, audio.voice and audio.format say which", "audio")
        if "audio" not in body.modalities and body.audio is not None:
            raise _bad('audio is for modalities ["text", "audio"]', "audio")
        wanted = list(dict.fromkeys(body.modalities))
        return [modality for modality in offered if modality in wanted or (modality == "text" and "audio" in wanted)]

    def _sampling(self, body: ChatBody) -> dict[str, Any]:
        """By the fields' names."""
        if body.max_tokens is not None and body.max_completion_tokens is not None:
            raise _bad("max_tokens and max_completion_tokens are two names of one thing: give one", "max_tokens")
        if body.top_logprobs and not body.logprobs:
            raise _bad("top_logprobs is for logprobs = true", "top_logprobs")
        given = {
            "max_completion_tokens": body.max_completion_tokens,
            "max_tokens": body.max_tokens,
            "temperature": body.temperature,
            "top_p": body.top_p,
            "seed": body.seed,
            "stop": [body.stop] if isinstance(body.stop, str) else body.stop,
            "frequency_penalty": body.frequency_penalty,
            "presence_penalty": body.presence_penalty,
            "logit_bias": body.logit_bias,
            "logprobs": body.top_logprobs if body.logprobs else None,
        }
        return {name: value for name, value in given.items() if value is not None}

    def _params(self, given: dict[str, dict[str, Any]]) -> Params:
        for stage in given:
            if stage not in self._stages:
                raise _bad(f"params has no stage {quoted(stage)}: stages are {', '.join(self._stages)}", "params")
        return Params(given)

    # --- Messages --------------------------------------------------------------------------------------------------

    def _message(self, message: Message, where: str, said: Callable[[str], str | None]) -> dict[str, Any]:
        role = "system" if message.role == "developer" else message.role
        if message.name is not None:
            raise _bad(f"{where}.name is not supported: messages have a role alone", f"{where}.name")
        if message.audio is not None:
            return {"role": role, "content": self._transcript(message, where, said)}
        if message.content is None:
            raise _bad(f"{where}.content is missing", f"{where}.content")
        if isinstance(message.content, str):
            return {"role": role, "content": message.content}
        parts = [self._part(part, f"{where}.content[{n}]") for n, part in enumerate(message.content)]
        return {"role": role, "content": parts}

    def _transcript(self, message: Message, where: str, said: Callable[[str], str | None]) -> str:
        assert message.audio is not None
        if message.role != "assistant" or message.content:
            raise _bad(f"{where}.audio is for an assistant's message without content", f"{where}.audio")
        transcript = said(message.audio.id)
        if transcript is None:
            raise BridgeError(404, "audio_not_found", f"{where}.audio.id: unknown or expired", f"{where}.audio.id")
        return transcript

    def _part(self, part: Part, where: str) -> dict[str, Any]:
        match part:
            case AudioPart():
                data = _decoded(part.input_audio.data, f"{where}.input_audio.data")
                return {"type": "audio", "data": data}
            case ImagePart():
                return {"type": "image", "data": self._image(part.image_url.url, f"{where}.image_url.url")}
            case _:
                return {"type": "text", "text": part.text}

    def _image(self, url: str, where: str) -> bytes:
        head, comma, data = url.partition(",")
        if not head.startswith("data:image/") or not head.endswith(";base64") or not comma:
            raise _bad(f"{where}: a data: URL such as data:image/png;base64,… was expected: nothing is fetched", where)
        return _decoded(data, where)


def _decoded(text: str, where: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise _bad(f"{where}: no base64: {error}", where) from error


def _bad(message: str, param: str) -> BridgeError:
    return BridgeError(400, "invalid_request", message, param)


def _set(key: str, target: str) -> Setting | None:
    """None: it is not set, and the stage was found out."""
    return Setting(f'plugins.http.{key} = "{target}"') if target else None
