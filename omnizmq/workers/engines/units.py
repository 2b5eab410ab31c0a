"""A stream of text to units that are spoken one by one. Pure; English.

A unit ends at a line's end, at a sentence's end, or at a comma, semicolon or colon once it has enough words. Whether a
full stop ends a sentence is known when the word after it begins: "Dr.", "e.g.", "3.14", "J. K." and "1." do not. A text
without any end is cut between words. Where the stream is cut into deltas changes nothing.
"""

from __future__ import annotations

import re

CLAUSE_WORDS = 6
"""Words after which a comma ends a unit. Lower speaks sooner and pauses more."""

MAX_CHARS = 150
"""Characters of a unit, which bound the time that a step takes."""

_PIECE_CHARS = 1024  # a long text is looked at in pieces, or cutting it would take quadratic time

_BREAK = re.compile(r"""\n|(?P<stop>[.!?…]+["'”’)\]*_]*)(?=\s\S)|(?P<clause>[,;:]["'”’)\]*_]*)(?=\s)""")
_BLANKS = re.compile(r"\s+")
_OPENING = "\"'“‘([*_"
_CLOSING = "\"'”’)]*_"

# A full stop after these ends nothing.
# fmt: off
_NEVER_LAST = frozenset((
    "mr", "mrs", "ms", "mx", "dr", "prof", "st", "mt", "gen", "gov", "sen", "rep", "capt", "lt", "col", "sgt",
    "maj", "rev", "hon", "vs", "cf", "approx", "e.g", "i.e", "viz", "al", "fr", "msgr",
))
# fmt: on
# Nor after these where a number follows.
# fmt: off
_BEFORE_NUMBER = frozenset((
    "no", "nos", "vol", "fig", "p", "pp", "ch", "sec", "art", "jan", "feb", "mar", "apr", "jun", "jul", "aug",
    "sep", "sept", "oct", "nov", "dec",
))
# fmt: on
_MAY_BE_LAST = frozenset(("a.m", "p.m", "ph.d", "b.c", "a.d"))
_DOTTED = re.compile(r"(?:[^\W\d_]\.)+[^\W\d_]")


class UnitSplitter:
    """`push` what comes, `finish` at the end; both return the units that are complete, stripped and never empty."""

    def __init__(self, clause_words: int = CLAUSE_WORDS, max_chars: int = MAX_CHARS) -> None:
        self._clause_words = clause_words
        self._max_chars = max_chars
        self._text = ""

    def push(self, text: str) -> list[str]:
        units = []
        for start in range(0, len(text), _PIECE_CHARS):
            # Runs of blanks become one, so that what follows a mark lies within the next two characters.
            piece = self._text + text[start : start + _PIECE_CHARS]
            self._text = _BLANKS.sub(_one_blank, piece).lstrip()
            units += self._cut(longest=self._max_chars + 1)
        return units

    def finish(self) -> list[str]:
        units = self._cut(longest=self._max_chars)
        rest, self._text = self._text.strip(), ""
        return [*units, rest] if rest else units

    def _cut(self, longest: int) -> list[str]:
        units = []
        while (end := self._end(longest)) is not None:
            if unit := self._text[:end].strip():
                units.append(unit)
            self._text = self._text[end:].lstrip()
        return units

    def _end(self, longest: int) -> int | None:
        """Where the first unit ends; None while that is not known."""
        for mark in _BREAK.finditer(self._text):
            if mark.end() > self._max_chars:
                break
            if self._ends(mark):
                return mark.end()
        return self._cut_between_words() if len(self._text) > longest else None

    def _ends(self, mark: re.Match[str]) -> bool:
        before = self._text[: mark.start()]
        if mark["clause"]:
            return len(before.split()) >= self._clause_words
        if mark["stop"]:
            return _ends_sentence(before, mark["stop"], self._text[mark.end() + 1])
        return True

    def _cut_between_words(self) -> int:
        start = self._text[: self._max_chars]
        blank = start.rfind(" ")
        return blank if blank > 0 else self._max_chars


def _one_blank(blanks: re.Match[str]) -> str:
    return "\n" if "\n" in blanks[0] else " "


def _ends_sentence(before: str, stop: str, following: str) -> bool:
    """Whether `stop`, after the text `before` and in front of a word that begins with `following`, ends a sentence."""
    if following.islower():
        return False
    if stop.rstrip(_CLOSING) != ".":
        return True
    head, _, word = before.rpartition(" ")
    word = word.lstrip(_OPENING)
    lower = word.lower()
    if word.isdigit():
        return bool(head) and head[-1] not in ":;,"  # otherwise the number of a list's entry
    if lower in _NEVER_LAST or (len(word) == 1 and word.isupper() and word != "I"):
        return False
    if _DOTTED.fullmatch(lower):
        return lower in _MAY_BE_LAST
    return not (lower in _BEFORE_NUMBER and following.isdigit())
