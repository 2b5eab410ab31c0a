"""A request's prompt as the tokens that CSM says: by the checkpoint's own tokenizer and chat template."""

from __future__ import annotations

from omnizmq.errors import InvalidRequestError, LaunchError
from omnizmq.protocol import Prompt, TextPart
from omnizmq.workers.engines.hf.checkpoint import Checkpoint
from omnizmq.workers.engines.hf.tokenizer import Tokenizer


class Texts:
    """Raises `LaunchError` when the checkpoint's tokenizer or its chat template cannot be used."""

    def __init__(self, checkpoint: Checkpoint, tokens: int, most: int) -> None:
        """`tokens`: how many the model knows; `most`: how many a prompt may have."""
        self._tokenizer = Tokenizer(checkpoint, tokens, most)
        if self._tokenizer.template is None:
            raise LaunchError(f"the checkpoint {checkpoint.path} has no chat template")
        self.read(Prompt("Hello.", None, None), 0)  # a template that does not work is found now

    def read(self, prompt: Prompt | None, speaker: int) -> list[int]:
        """Raises `InvalidRequestError`."""
        if prompt is None:
            raise InvalidRequestError("this talker needs a prompt: it has no input edges")
        if prompt.token_ids is not None:
            return self._tokenizer.checked(prompt.token_ids)
        # In its conversations a role is a speaker's number.
        turn = {"role": str(speaker), "content": [{"type": "text", "text": _said(prompt)}]}
        return self._tokenizer.ids([turn])


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
