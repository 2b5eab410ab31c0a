"""A request's prompt as token ids, by the checkpoint's own tokenizer and chat template."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transformers import AutoTokenizer

from omnizmq.errors import InvalidRequestError, LaunchError
from omnizmq.protocol import Message, Prompt, TextPart
from omnizmq.workers.engines.qwen3_omni.byte_tokens import Vocabulary
from omnizmq.workers.engines.qwen3_omni.checkpoint import Checkpoint


class Prompts:
    """Raises `LaunchError` when the checkpoint's tokenizer cannot be used."""

    def __init__(self, checkpoint: Checkpoint, tokens: int) -> None:
        """`tokens`: of the model's table."""
        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(checkpoint.path)
        except (OSError, ValueError) as error:
            raise LaunchError(f"the tokenizer of {checkpoint.path} cannot be used: {error}") from error
        self._template = self._tokenizer.chat_template or _template(checkpoint)
        self._tokens = tokens
        self.vocabulary = Vocabulary(self._tokenizer)

    def ids(self, prompt: Prompt | None) -> list[int]:
        """Raises `InvalidRequestError`."""
        if prompt is None:
            raise InvalidRequestError("a thinker needs a prompt: it has no input edges")
        if prompt.token_ids is not None:
            return self._checked(prompt.token_ids)
        if prompt.messages is not None:
            turns = [{"role": message.role, "content": _content(message)} for message in prompt.messages]
        else:
            turns = [{"role": "user", "content": prompt.text or ""}]
        text = self._tokenizer.apply_chat_template(
            turns, chat_template=self._template, add_generation_prompt=True, tokenize=False
        )
        ids: list[int] = self._tokenizer(text, add_special_tokens=False).input_ids
        return ids

    def _checked(self, ids: Sequence[int]) -> list[int]:
        wrong = next((n for n in ids if not 0 <= n < self._tokens), None)
        if wrong is not None:
            raise InvalidRequestError(f"token id {wrong} is none of this model's {self._tokens}")
        return list(ids)


def _template(checkpoint: Checkpoint) -> str:
    """Of the checkpoint itself, in either of the two files in which one may come."""
    written = checkpoint.path / "chat_template.jinja"
    if written.exists():
        return written.read_text(encoding="utf-8")
    template = checkpoint.json("chat_template.json").get("chat_template")
    if not isinstance(template, str):
        raise LaunchError(f"{checkpoint.path}/chat_template.json has no chat_template")
    return template


def _content(message: Message) -> str:
    words = []
    for part in message.content:
        if not isinstance(part, TextPart):
            kind = type(part).__name__.removesuffix("Part").lower()
            raise InvalidRequestError(f"this thinker understands text only: a message has an {kind} part")
        words.append(part.text)
    return "".join(words)
