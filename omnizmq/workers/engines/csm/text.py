"""A request's prompt as the tokens that CSM says: by the checkpoint's own tokenizer and chat template."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import AutoTokenizer

from omnizmq.errors import InvalidRequestError, LaunchError
from omnizmq.protocol import Prompt, TextPart
from omnizmq.workers.engines.hf.checkpoint import Checkpoint


class Texts:
    """Raises `LaunchError` when the checkpoint's tokenizer or its chat template cannot be used."""

    def __init__(self, checkpoint: Checkpoint, tokens: int) -> None:
        """`tokens`: how many the model knows."""
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(checkpoint.path)
        except (OSError, ValueError) as error:
            raise LaunchError(f"the tokenizer of {checkpoint.path} cannot be used: {error}") from error
        if self._tokenizer.chat_template is None:
            raise LaunchError(f"the checkpoint {checkpoint.path} has no chat template")
        self._tokens = tokens

    def read(self, prompt: Prompt | None, speaker: int) -> list[int]:
        """Raises `InvalidRequestError`."""
        if prompt is None:
            raise InvalidRequestError("this talker needs a prompt: it has no input edges")
        if prompt.token_ids is not None:
            return self._checked(prompt.token_ids)
        # In its conversations a role is a speaker's number.
        turn = {"role": str(speaker), "content": [{"type": "text", "text": _said(prompt)}]}
        text = self._tokenizer.apply_chat_template([turn], tokenize=False)
        return self._checked(self._tokenizer(text, add_special_tokens=False).input_ids)

    def _checked(self, ids: Sequence[int]) -> list[int]:
        wrong = next((n for n in ids if not 0 <= n < self._tokens), None)
        if wrong is not None:
            raise InvalidRequestError(f"token id {wrong} is none of this model's {self._tokens}")
        return list(ids)


def _said(prompt: Prompt) -> str:
    if prompt.messages is None:
        text = prompt.text or ""
    else:
        last = prompt.messages[-1] if prompt.messages else None
        if last is None or last.role != "user" or not all(isinstance(part, TextPart) for part in last.content):
            raise InvalidRequestError("this talker says a text: the last message must be the user's, of text alone")
        if any(message.role == "system" for message in prompt.messages):
            raise InvalidRequestError("this talker says a text: it follows no system message")
        text = "".join(part.text for part in last.content if isinstance(part, TextPart))
    if not text.strip():
        raise InvalidRequestError("there is nothing to say: the text is empty")
    return text
