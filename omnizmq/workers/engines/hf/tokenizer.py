"""A checkpoint's own tokenizer and chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import TemplateError
from transformers import AutoTokenizer

from omnizmq.errors import InvalidRequestError, LaunchError
from omnizmq.workers.engines.hf.byte_tokens import Vocabulary
from omnizmq.workers.engines.hf.checkpoint import Checkpoint

_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt")
"""Which a tokenizer comes in: the first holds what the last two do."""

_TRIAL = "Hello."


class Tokenizer:
    """Raises `LaunchError` when the tokenizer cannot be used."""

    def __init__(self, checkpoint: Checkpoint, tokens: int, most: int) -> None:
        """`tokens`: how many the model knows; `most`: how many a prompt may have."""
        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(checkpoint.path)
        except (OSError, ValueError) as error:
            raise LaunchError(f"the tokenizer of {checkpoint.path} cannot be used: {error}") from error
        if not self._tokenizer(_TRIAL, add_special_tokens=False).input_ids:  # the library makes an empty one of nothing
            absent = ", ".join(name for name in _FILES if not (checkpoint.path / name).exists())
            why = f"it has no {absent}" if absent else "its vocabulary is empty"
            raise LaunchError(f"the tokenizer of {checkpoint.path} cannot be used: a text has no tokens: {why}")
        self.template: str | None = self._tokenizer.chat_template or _written(checkpoint)
        self.vocabulary = Vocabulary(self._tokenizer)
        self._tokens = tokens
        self._most = most
        self._longest = max(map(len, self._tokenizer.get_vocab()))

    def ids(self, turns: Sequence[Mapping[str, Any]], **template: Any) -> list[int]:
        """Of turns, by the chat template. Raises `InvalidRequestError`; what is too long for sure is not tokenized."""
        try:
            text = self._tokenizer.apply_chat_template(turns, chat_template=self.template, tokenize=False, **template)
        except TemplateError as error:
            if type(error) is not TemplateError:  # of a subclass: the template is wrong, whatever the messages
                raise
            raise InvalidRequestError(f"the model's chat template does not take these messages: {error}") from error
        self._check_length(text, "the prompt")
        return self.checked(self._tokenizer(text, add_special_tokens=False).input_ids)

    def plain(self, text: str, what: str, *, begins: bool = False) -> list[int]:
        """Of a text in which nothing stands for a special token; where it `begins`, behind those with which this model
        begins (a BOS). Raises `InvalidRequestError` that calls it `what`."""
        self._check_length(text, what)
        return self.checked(self._tokenizer(text, add_special_tokens=begins, split_special_tokens=True).input_ids)

    def _check_length(self, text: str, what: str) -> None:
        least = -(-len(text) // self._longest)
        if least > self._most:
            raise InvalidRequestError(
                f"{what} has {len(text)} characters, {least} tokens at least: a slot holds {self._most}"
            )

    def checked(self, ids: Sequence[int]) -> list[int]:
        """Raises `InvalidRequestError` for what is no token of the model's."""
        wrong = next((n for n in ids if not 0 <= n < self._tokens), None)
        if wrong is not None:
            raise InvalidRequestError(f"token id {wrong} is none of this model's {self._tokens}")
        return list(ids)


def _written(checkpoint: Checkpoint) -> str | None:
    """The template in either of the two files in which one may come beside the tokenizer. Raises `LaunchError`."""
    file = checkpoint.path / "chat_template.jinja"
    if file.exists():
        return file.read_text(encoding="utf-8")
    if not (checkpoint.path / "chat_template.json").exists():
        return None
    template = checkpoint.json("chat_template.json").get("chat_template")
    if not isinstance(template, str):
        raise LaunchError(f"{checkpoint.path}/chat_template.json has no chat_template")
    return template
