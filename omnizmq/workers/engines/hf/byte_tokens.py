"""The tokens of a vocabulary as bytes, and a stream of tokens as text.

In a byte-level one (GPT-2's, and Qwen's) each byte is written as one printable character: those of Latin-1 that are
printable stand for themselves, the others are numbered from U+0100. In one of SentencePiece (that of Llama 2, Gemma) a
token is text with U+2581 for a space, or one byte as `<0x0A>`; in some the first one of a text has a space too many. In
any other one a token is what the library makes of it.
"""

from __future__ import annotations

import codecs
import re
from typing import Any

_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))


def _characters() -> list[str]:
    others = (chr(0x100 + n) for n in range(0x100))
    return [chr(byte) if byte in _PRINTABLE else next(others) for byte in range(0x100)]


BYTE_CHARACTERS = _characters()
"""The character of each byte, by its value."""

_BYTES = {character: byte for byte, character in enumerate(BYTE_CHARACTERS)}


_BYTE_SPACE, _SPACE = BYTE_CHARACTERS[0x20], "\u2581"
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


class Vocabulary:
    """A tokenizer's tokens as bytes; special ones are empty. `space_too_many`: the first of a text has one."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        known = {token: id_ for token, id_ in tokenizer.get_vocab().items() if isinstance(token, str)}
        piece = next((token for token in known if re.fullmatch(rf"{_SPACE}[a-z]+", token)), None)
        self._of_pieces = piece is not None
        self._of_bytes = not self._of_pieces and any(_BYTE_SPACE in token for token in known)
        self.space_too_many = piece is not None and not tokenizer.decode([known[piece]]).startswith(" ")
        self._added = {
            token: b"" if added.special else added.content.encode()
            for token, added in tokenizer.added_tokens_decoder.items()
        }

    def bytes_of(self, token: int) -> bytes:
        """Empty too for an id that the tokenizer has no token for: a model's table may be padded."""
        if token in self._added:
            return self._added[token]
        written = self._tokenizer.convert_ids_to_tokens(token)
        if written is None:
            return b""
        if self._of_bytes:
            return bytes(_BYTES[character] for character in written)
        if not self._of_pieces:
            return str(self._tokenizer.decode([token])).encode()
        byte = _BYTE.fullmatch(written)
        return bytes.fromhex(byte[1]) if byte else written.replace(_SPACE, " ").encode()


class Detokenizer:
    """Tokens in, text out: whole characters only; what can be no UTF-8 becomes U+FFFD as soon as that is known."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._begins = vocabulary.space_too_many

    def push(self, token: int) -> str:
        text = self._decoder.decode(self._vocabulary.bytes_of(token))
        if self._begins and text:
            self._begins = False
            return text.removeprefix(" ")
        return text

    def finish(self) -> str:
        """What is left of a character that was cut off."""
        return self._decoder.decode(b"", final=True)
