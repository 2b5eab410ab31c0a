"""A caller's prompt, checked and put on the wire.

A prompt is a string, a list of token ids, or a list of chat messages: mappings with `role` and `content`, where content
is a string or a list of parts: `{"type": "text", "text": …}`, `{"type": "audio", "data": bytes}`,
`{"type": "image", "data": bytes}`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from omnizmq.errors import InvalidRequestError
from omnizmq.protocol import AudioPart, ImagePart, Message, Prompt, TextPart

PromptInput = str | Sequence[int] | Sequence[Mapping[str, Any]]
ROLES = ("system", "user", "assistant")

TOKENS = 1 << 32
"""No token id is as large: a token counts four bytes of a prompt."""


def as_prompt(prompt: PromptInput) -> Prompt:
    """Raises `InvalidRequestError` that says what is wrong and where."""
    if isinstance(prompt, str):
        _check_text(prompt, "the prompt")
        return Prompt(prompt, None, None)
    if not _is_list(prompt) or not prompt:
        raise InvalidRequestError(f"a prompt is a string, token ids or chat messages, not {_shown(prompt)}")
    if isinstance(prompt[0], int):
        return Prompt(None, None, [_token(item, n) for n, item in enumerate(prompt, 1)])
    return Prompt(None, [_message(item, f"message {n}") for n, item in enumerate(prompt, 1)], None)


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray | memoryview)


def _token(item: object, number: int) -> int:
    if isinstance(item, int) and not isinstance(item, bool) and 0 <= item < TOKENS:
        return item
    raise InvalidRequestError(f"token {number} is {_shown(item)}; a token id is a whole number from 0 to {TOKENS - 1}")


def _message(item: object, where: str) -> Message:
    if not isinstance(item, Mapping) or not {"role", "content"} >= item.keys() or len(item) != 2:
        raise InvalidRequestError(f"{where} needs exactly `role` and `content`, got {_shown(item)}")
    role, content = item["role"], item["content"]
    if role not in ROLES:
        raise InvalidRequestError(f"{where} has role {role!r}; roles are {', '.join(ROLES)}")
    if isinstance(content, str):
        _check_text(content, where)
        return Message(role, [TextPart(content)])
    if not _is_list(content) or not content:
        raise InvalidRequestError(f"{where}: content is a string or a list of parts, not {_shown(content)}")
    return Message(role, [_part(part, f"{where}, part {n}") for n, part in enumerate(content, 1)])


def _part(part: object, where: str) -> TextPart | AudioPart | ImagePart:
    if isinstance(part, Mapping):
        match part.get("type"), part.get("text"), part.get("data"):
            case "text", str(text), None:
                _check_text(text, where)
                return TextPart(text)
            case "audio", None, bytes(data):
                return AudioPart(data)
            case "image", None, bytes(data):
                return ImagePart(data)
    raise InvalidRequestError(
        f"{where} is {_shown(part)}; a part is {{type: text, text}}, {{type: audio, data}} or {{type: image, data}}"
    )


def _check_text(text: str, where: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(f"{where} is no valid text: character {error.start} cannot be UTF-8") from error


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:80] + "…"
