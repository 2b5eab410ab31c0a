"""What SmolLM2 is asked: a prompt and sampling parameters to the body of a chat completion. Pure.

The model has 135 million parameters. Alone it rambles; after a system line and four example turns it answers simple
questions in good English. A caller's own system message replaces both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omnizmq.errors import InvalidRequestError
from omnizmq.protocol import Message, Param, Prompt, TextPart
from omnizmq.workers.engines.settings import SAY_CHARS, Setting, number, read_params, text, texts, whole

SYSTEM = "You are a helpful assistant. Answer in one or two short English sentences."

EXAMPLES = (
    ("How are you?", "I am fine, thank you. How can I help you today?"),
    ("Why is the sky blue?", "The sky is blue because air scatters blue light more than red light."),
    ("Say exactly: Red is warm. Green is calm.", "Red is warm. Green is calm."),
    ("What is the capital of Italy?", "The capital of Italy is Rome."),
)

MAX_TOKENS = 256
"""Tokens of an answer when the request names no number: a small model that repeats itself comes to an end."""

PARAMS: dict[str, Setting] = {
    "max_tokens": whole(1, 1 << 20),
    "temperature": number(0.0, 2.0),
    "top_p": number(0.0, 1.0),
    "top_k": whole(0, 1 << 20),
    "seed": whole(0, (1 << 32) - 2),
    "stop": texts(16),
    "say": text(SAY_CHARS),
}

LONG_CHARS = 1000
"""A conversation above this is long (about 250 tokens, at 130 a second)."""

_ROLES = ("system", "user", "assistant")

Chat = list[dict[str, str]]


def sampling(params: Mapping[str, Param]) -> dict[str, Any]:
    """The sampling part of the body, and `say`. Greedy by default; `top_k = 0` and `top_p = 1` switch those two off.

    Without `seed`, a temperature above zero draws differently each time. Raises `InvalidRequestError`.
    """
    stop = params.get("stop")
    given = {**params, "stop": [stop]} if isinstance(stop, str) else params
    defaults = {"max_tokens": MAX_TOKENS, "temperature": 0.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0}
    return {**defaults, **read_params(given, PARAMS)}


def chat(prompt: Prompt | None) -> Chat:
    """The conversation, with the system line and example turns before it. Raises `InvalidRequestError`."""
    if prompt is None:
        raise InvalidRequestError("smollm needs a prompt: it has no input edges")
    if prompt.token_ids is not None:
        raise InvalidRequestError("smollm takes text or messages, not token ids")
    if prompt.messages is not None:
        turns = [_turn(message) for message in prompt.messages]
    else:
        turns = [{"role": "user", "content": prompt.text or ""}]
    _check(turns)
    return turns if turns[0]["role"] == "system" else [*_opening(), *turns]


def is_long(messages: Chat) -> bool:
    """Whether computing the conversation takes more than about two seconds; its opening is in every slot already."""
    opening = _opening()
    own = messages[len(opening) :] if messages[: len(opening)] == opening else messages
    return sum(len(turn["content"]) for turn in own) > LONG_CHARS


def _opening() -> Chat:
    opening = [{"role": "system", "content": SYSTEM}]
    for question, answer in EXAMPLES:
        opening.append({"role": "user", "content": question})
        opening.append({"role": "assistant", "content": answer})
    return opening


def _turn(message: Message) -> dict[str, str]:
    if message.role not in _ROLES:
        raise InvalidRequestError(f"message role {message.role!r} is unknown: it must be one of {', '.join(_ROLES)}")
    words = []
    for part in message.content:
        if not isinstance(part, TextPart):
            kind = type(part).__name__.removesuffix("Part").lower()
            raise InvalidRequestError(f"smollm understands text only: a message has an {kind} part")
        words.append(part.text)
    return {"role": message.role, "content": "".join(words)}


def _check(turns: Chat) -> None:
    if not turns or turns[-1]["role"] != "user":
        raise InvalidRequestError("the last message must be the user's")
    if not turns[-1]["content"].strip():
        raise InvalidRequestError("the prompt is empty")
    if any(turn["role"] == "system" for turn in turns[1:]):
        raise InvalidRequestError("a system message can only be the first")
