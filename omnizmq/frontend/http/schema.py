"""What may stand in the body of a request, as OpenAI's API has it; what is not supported is refused, never ignored."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, WithJsonSchema, model_validator

from omnizmq.frontend.http.problems import BridgeError

_VALUES: dict[type, str] = {bool: "<bool>", int: "<int>", float: "<float>", str: "<str>"}
_KINDS: dict[type, str] = {**_VALUES, list: "<list>", dict: "<table>"}
TAGS = frozenset({*_KINDS.values(), "<null>", "<text>", "<input_audio>", "<image_url>", "<parts>", "<voice>"})
"""Of what stands where one of several kinds may: they are no fields, where an error says its place."""

_PLAIN = ["boolean", "number", "string", "null"]
_Bool = Annotated[bool, Tag("<bool>")]
_Int = Annotated[int, Field(ge=-(1 << 63), lt=1 << 63), Tag("<int>")]
_Float = Annotated[float, Tag("<float>")]
_Str = Annotated[str, Tag("<str>")]
_Null = Annotated[None, Tag("<null>")]
Value = Annotated[
    _Bool | _Int | _Float | _Str | _Null,
    Discriminator(
        lambda value: _VALUES.get(type(value), "<null>" if value is None else None),
        custom_error_type="no_value",
        custom_error_message="a number, a string, true, false or null was expected",
    ),
    WithJsonSchema({"type": _PLAIN}),
]
_List = Annotated[list[Value], Tag("<list>")]
_Table = Annotated[dict[str, Value], Tag("<table>")]
ParamValue = Annotated[
    _Bool | _Int | _Float | _Str | _Null | _List | _Table,
    Discriminator(
        lambda value: _KINDS.get(type(value), "<null>" if value is None else None),
        custom_error_type="no_parameter",
        custom_error_message="a number, a string, true, false, null, or a list or table of these was expected",
    ),
    WithJsonSchema(
        {
            "type": [*_PLAIN, "array", "object"],
            "items": {"type": _PLAIN},
            "additionalProperties": {"type": _PLAIN},
        }
    ),
]
Params = Annotated[
    dict[str, dict[str, ParamValue]],
    Field(description="A stage's own parameters by its name, such as `{'code2wav': {'seed': 7}}`."),
]

MOST_VALUES = 16384
"""Fields and items of a body, all together."""

_MEANS_NOTHING: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "logit_bias": ({},),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "parallel_tool_calls": (True, False),
    "response_format": ({"type": "text"},),
    "store": (False,),
    "service_tier": ("auto", "default"),
    "instructions": ("",),
    "tool_calls": ([],),
    "annotations": ([],),
}
"""Fields of a body or a message that are not supported, and the values that ask for nothing: clients send some of them
unasked, and OpenAI's own answers, which become messages, have others."""


class Strict(BaseModel):
    """No field that is not known, no string where a number is meant. `null` is as if the field were not there."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: Any) -> Any:
        return {key: value for key, value in given.items() if value is not None} if isinstance(given, dict) else given


class Lenient(Strict):
    """A field that asks for nothing is as if it were not there."""

    @model_validator(mode="before")
    @classmethod
    def _without_what_means_nothing(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        return {
            key: value
            for key, value in given.items()
            if not any(_same(value, nothing) for nothing in _MEANS_NOTHING.get(key, ()))
        }


class Body(Lenient):
    """Of a request."""

    @model_validator(mode="before")
    @classmethod
    def _of_characters(cls, given: Any) -> Any:
        """Raises `BridgeError` where there is a lone surrogate: JSON can write one; frames and answers cannot. And
        where there is more than anybody means: each piece would be looked at, and what is wrong with it kept."""
        held, count = [given], 0
        while held:
            one = held.pop()
            if isinstance(one, dict | list):
                count += len(one)
                if count > MOST_VALUES:
                    raise too_many_values()
            match one:
                case str() as text if not text.isascii():
                    _check_characters(text)
                case dict() as fields:
                    held += [*fields, *fields.values()]
                case list() as items:
                    held += items
        return given


def too_many_values() -> BridgeError:
    return BridgeError(400, "invalid_request", f"the body has more than {MOST_VALUES} values")


def _same(value: Any, nothing: Any) -> bool:
    """As numbers are in JSON: 0.0 is 0, and true is no number."""
    return bool(value == nothing) and isinstance(value, bool) == isinstance(nothing, bool)


def _check_characters(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        shown = ascii(text[max(0, error.start - 20) : error.end])
        message = f"the body has a lone surrogate, which is no character, at the end of {shown}"
        raise BridgeError(400, "invalid_request", message) from error


class TextPart(Strict):
    type: Literal["text"]
    text: str


class InputAudio(Strict):
    data: Annotated[str, Field(description="A sound file in base64.")]
    format: Annotated[str, Field(description="`wav`, `mp3`, `flac`, `ogg`: what the file says of itself counts.")]


class AudioPart(Strict):
    type: Literal["input_audio"]
    input_audio: InputAudio


class ImageUrl(Strict):
    url: Annotated[str, Field(description="A `data:` URL: nothing is fetched.")]
    detail: Annotated[Literal["auto"], Field(description="An image's size decides.")] = "auto"


class ImagePart(Strict):
    type: Literal["image_url"]
    image_url: ImageUrl


Part = Annotated[
    Annotated[TextPart, Tag("<text>")]
    | Annotated[AudioPart, Tag("<input_audio>")]
    | Annotated[ImagePart, Tag("<image_url>")],
    Discriminator(
        lambda part: f"<{part.get('type')}>" if isinstance(part, dict) else None,
        custom_error_type="no_part",
        custom_error_message="a part with the type 'text', 'input_audio' or 'image_url' was expected",
    ),
]
Content = Annotated[
    Annotated[str, Tag("<str>")] | Annotated[list[Part], Field(min_length=1), Tag("<parts>")],
    Discriminator(lambda content: "<str>" if isinstance(content, str) else "<parts>"),
]


class EarlierAudio(Strict):
    id: Annotated[str, Field(description="Of an answer's `message.audio`, until it expires.")]

    data: Annotated[str | None, Field(description="As the answer had it: has no effect, as the others.")] = None
    expires_at: int | None = None
    transcript: str | None = None


class Message(Lenient):
    role: Literal["system", "developer", "user", "assistant"]
    content: Content | None = None
    name: str | None = None
    audio: EarlierAudio | None = None


class Voice(Strict):
    id: str


VoiceName = Annotated[
    Annotated[str, Tag("<str>")] | Annotated[Voice, Tag("<voice>")],
    Discriminator(
        lambda voice: {str: "<str>", dict: "<voice>"}.get(type(voice)),
        custom_error_type="no_voice",
        custom_error_message="a name, or an object with an id, was expected",
    ),
]
StopText = Annotated[str, Field(min_length=1)]
Stop = Annotated[
    Annotated[StopText, Tag("<str>")] | Annotated[list[StopText], Field(max_length=4), Tag("<list>")],
    Discriminator(
        lambda stop: {str: "<str>", list: "<list>"}.get(type(stop)),
        custom_error_type="no_stop",
        custom_error_message="a text, or a list of up to 4 texts, was expected",
    ),
]


class AudioOut(Strict):
    voice: VoiceName = "default"
    format: str = "wav"


class StreamOptions(Strict):
    include_usage: bool = False
    include_obfuscation: Annotated[Literal[False], Field(description="Events are not padded.")] = False


Penalty = Annotated[float, Field(ge=-2, le=2)]
Tokens = Annotated[int, Field(ge=1, lt=1 << 63, description="The stages that come with omnizmq take up to 1048576.")]
Seed = Annotated[
    int,
    Field(
        ge=-(1 << 63), lt=1 << 63, description="The stages that come with omnizmq take 0 to 4294967294, some one more."
    ),
]


class SpeechBody(Body):
    """`POST /v1/audio/speech`."""

    model: str
    input: Annotated[str, Field(min_length=1, max_length=4096, description="What is said.")]
    voice: VoiceName = "default"
    response_format: Annotated[str, Field(description="`mp3`, `wav`, `flac`, `opus`, `pcm`, `aac`.")] = "mp3"
    speed: Annotated[float, Field(ge=0.25, le=4)] = 1.0
    stream_format: Literal["audio", "sse"] = "audio"
    params: Params = {}


class ChatBody(Body):
    """`POST /v1/chat/completions`."""

    model: str
    messages: Annotated[list[Message], Field(min_length=1)]
    modalities: Annotated[list[Literal["text", "audio"]], Field(min_length=1)] = ["text"]
    audio: AudioOut | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_completion_tokens: Tokens | None = None
    max_tokens: Annotated[Tokens | None, Field(description="The older name of `max_completion_tokens`.")] = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    stop: Stop | None = None
    seed: Seed | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    logit_bias: Annotated[dict[str, Annotated[float, Field(ge=-100, le=100)]], Field(max_length=1024)] | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=20, description="Needs `logprobs`.")] = 0
    user: Annotated[str | None, Field(description="Has no effect.")] = None
    metadata: Annotated[dict[str, str], Field(max_length=16, description="Comes back with a whole answer.")] | None = (
        None
    )
    params: Params = {}
