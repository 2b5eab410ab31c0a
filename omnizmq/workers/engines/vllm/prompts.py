"""A request's prompt as tokens: by the checkpoint's own tokenizer and, where it has one, its chat template."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from omnizmq.errors import InvalidRequestError
from omnizmq.protocol import Prompt, TextPart
from omnizmq.workers.engines.hf.byte_tokens import Vocabulary
from omnizmq.workers.engines.hf.checkpoint import Checkpoint
from omnizmq.workers.engines.hf.tokenizer import Tokenizer


class Asked(Protocol):
    """A prompt as it was read."""

    @property
    def ids(self) -> list[int]: ...

    @property
    def usage(self) -> dict[str, int | float]:
        """What `ids` are."""

    @property
    def has_items(self) -> bool:
        """Whether sounds or images are among them."""


class Reading(Protocol):
    """How a model's prompts are read."""

    vocabulary: Vocabulary

    def read(self, prompt: Prompt | None) -> Asked:
        """Raises `InvalidRequestError`."""

    def answer(self, text: str) -> list[int]:
        """A text that is to be the answer. Raises `InvalidRequestError`."""


@dataclass(frozen=True, slots=True)
class AskedText:
    ids: list[int]

    @property
    def usage(self) -> dict[str, int | float]:
        return {"prompt_tokens": len(self.ids)}

    @property
    def has_items(self) -> bool:
        return False


class Prompts:
    """Of text alone. Raises `LaunchError` when the checkpoint's tokenizer or its chat template cannot be used."""

    def __init__(self, checkpoint: Checkpoint, tokens: int, most: int) -> None:
        """`tokens`: how many the model knows; `most`: how many a text may have."""
        self._tokenizer = Tokenizer(checkpoint, tokens, most)
        self.vocabulary: Vocabulary = self._tokenizer.vocabulary
        self.read(Prompt("Hello.", None, None))  # a template that does not work is found now

    def read(self, prompt: Prompt | None) -> AskedText:
        """Raises `InvalidRequestError`."""
        return AskedText(self._ids(prompt))

    def answer(self, text: str) -> list[int]:
        """A text that is to be the answer. Raises `InvalidRequestError`."""
        return self._tokenizer.plain(text, "the text to say")

    def _ids(self, prompt: Prompt | None) -> list[int]:
        if prompt is None:
            raise InvalidRequestError("this stage needs a prompt: it has no input edges")
        if prompt.token_ids is not None:
            return self._tokenizer.checked(prompt.token_ids)
        if prompt.messages is None:
            if self._tokenizer.template is None:
                return self._tokenizer.plain(prompt.text or "", "the prompt", begins=True)
            return self._tokenizer.ids([{"role": "user", "content": prompt.text or ""}], add_generation_prompt=True)
        if self._tokenizer.template is None:
            raise InvalidRequestError("this model has no chat template: it takes a text or token ids, no messages")
        for n, message in enumerate(prompt.messages, 1):
            if not all(isinstance(part, TextPart) for part in message.content):
                raise InvalidRequestError(f"message {n} has a sound or an image: this stage takes text alone")
        turns = [
            {"role": message.role, "content": "".join(part.text for part in message.content)}  # type: ignore[union-attr]
            for message in prompt.messages
        ]
        return self._tokenizer.ids(turns, add_generation_prompt=True)
