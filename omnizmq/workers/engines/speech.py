"""What the voice can say: text to English words, and phonemes to runs of the network. Pure.

The voice reads English. Letters of other scripts would be spelled one by one, signs alone would become noise, and an
emoji would vanish: they are taken out here, and counted, so that the caller can be told.
"""

from __future__ import annotations

import re
import unicodedata

MAX_PHONEMES = 180
"""Characters of phonemes in one run of the network; they bound the time that a step takes."""

_SIGNS = frozenset("£€¥¢₹₩°§±×÷½¼¾²³µ™®©•→“”‘’–—…‐‑‒―")
_PLAIN = {"Ł": "L", "ł": "l", "Đ": "D", "đ": "d", "ı": "i", "Œ": "OE", "œ": "oe"}  # these do not decompose
_MARKUP = re.compile(r"[*_`\\{}]+|</?[A-Za-z][^<>]*>|(?<!\S)#+(?!\S)|(?<=\])(?=\()")
_LONG_NUMBER = re.compile(r"\d(?:[,.]?\d){15,}")
_BLANKS = re.compile(r"\s+")
_PAUSES = frozenset(' ;:,.!?—…"()“”')


def speakable(text: str) -> tuple[str, int]:
    """The English in `text`, and how many characters were left out because they are not.

    Markup is dropped without being counted; numbers that nobody would read as one are spelled. The result is empty when
    nothing has a letter or a digit.
    """
    kept, foreign = [], 0
    for char in unicodedata.normalize("NFC", text):
        shown = _english(char)
        foreign += shown is None
        kept.append(" " if shown is None else shown)
    words = _LONG_NUMBER.sub(lambda number: " ".join(filter(str.isdigit, number[0])), "".join(kept))
    words = _BLANKS.sub(" ", _MARKUP.sub(" ", words)).strip()
    return (words if any(char.isalnum() for char in words) else ""), foreign


def _english(char: str) -> str | None:
    """How `char` is kept; None: it is foreign. An invisible one is kept as nothing."""
    if " " <= char <= "~" or char in _SIGNS:
        return char
    if char.isspace():
        return " "
    if unicodedata.category(char) in ("Cc", "Cf", "Mn", "Me"):
        return ""
    if char.isalpha() and unicodedata.name(char, "").startswith("LATIN"):
        if char <= "ÿ":
            return char
        plain = _PLAIN.get(char) or "".join(filter(str.isascii, unicodedata.normalize("NFKD", char)))
        return plain or None
    return None


def runs(phonemes: str, longest: int = MAX_PHONEMES) -> list[str]:
    """`phonemes` in pieces of at most `longest` characters, cut between words; none where nothing would sound."""
    pieces = [""]
    for word in phonemes.split(" "):
        for part in (word[at : at + longest] for at in range(0, len(word), longest)):
            if pieces[-1] and len(pieces[-1]) + 1 + len(part) > longest:
                pieces.append("")
            pieces[-1] += f" {part}" if pieces[-1] else part
    return [piece for piece in pieces if not _PAUSES.issuperset(piece)]


def silence_note(text_came: bool) -> str:
    """Why a reply has no sound."""
    return "nothing to say: the text has no English words" if text_came else "nothing to say: the text is empty"


def foreign_note(characters: int) -> str:
    """What a reply leaves out."""
    if characters == 1:
        return "1 character that is not English was left out of the speech"
    return f"{characters} characters that are not English were left out of the speech"
