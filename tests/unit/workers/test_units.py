"""What the embedded voice says, and in which pieces: the splitter, the cleaning, the cutting of phonemes."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnizmq.workers.engines.speech import MAX_PHONEMES, runs, speakable
from omnizmq.workers.engines.units import MAX_CHARS, UnitSplitter


def split(*deltas: str, clause_words: int = 6) -> list[str]:
    splitter = UnitSplitter(clause_words)
    units = [unit for delta in deltas for unit in splitter.push(delta)]
    return units + splitter.finish()


@pytest.mark.parametrize(
    "units",
    [
        ["Hello there.", "How are you?", "I am fine!"],
        ["Dr. Smith met Mrs. Jones at 3.14 p.m.", "The end."],
        ["1. Cats are nice.", "2. Dogs too."],
        ["**1.** Cats are nice.", "**Two.**", "Then."],
        ["First, look: 1. Cats."],
        ["It is 5.", "Then it is 6."],
        ["Small animals, e.g. mice, i.e. rodents."],
        ["J. K. Rowling wrote it.", "So do I.", "Then?"],
        ["No.", "It is No. 5 again."],
        ["We left on Jan. 5 with the U.S. Navy."],
        ['"Hi!" she said.', '"Bye."', "He left."],
        ["Wait... what?", "Wait...", "What?!", "Oh."],
        ["It costs 1,000 dollars or 2.50 euros at 12:30."],
        ["One two three four five six,", "seven eight, nine."],
        ["One, two, three."],
        ["It came from Mt. Fuji vs. the sea etc. and more."],
    ],
    ids=lambda units: units[0],
)
def test_a_unit_ends_where_a_sentence_ends(units: list[str]) -> None:
    assert split(" ".join(units)) == units


def test_a_line_is_a_unit() -> None:
    assert split("A title\n\n- one\n- two.\n  three") == ["A title", "- one", "- two.", "three"]


def test_a_comma_ends_a_unit_after_enough_words() -> None:
    text = "one, two three, four five six, seven"
    assert split(text, clause_words=1) == ["one,", "two three,", "four five six,", "seven"]
    assert split(text, clause_words=3) == ["one, two three,", "four five six,", "seven"]


def test_a_unit_comes_as_soon_as_the_next_word_begins() -> None:
    splitter = UnitSplitter()
    assert splitter.push("It is red.") == []
    assert splitter.push(" ") == []
    assert splitter.push("T") == ["It is red."]
    assert splitter.push("hen blue") == []
    assert splitter.finish() == ["Then blue"]
    assert splitter.finish() == []


def test_a_text_without_an_end_is_cut_between_words() -> None:
    units = split("word " * 100)
    assert " ".join(units) == " ".join(["word"] * 100)
    assert max(map(len, units)) <= MAX_CHARS
    assert split("x" * 400) == ["x" * 150, "x" * 150, "x" * 100]


@pytest.mark.parametrize("chars", range(MAX_CHARS - 3, MAX_CHARS + 4))
def test_a_sentence_that_ends_at_the_limit_is_cut_the_same_in_letters(chars: int) -> None:
    text = "word " * 20 + "x" * (chars - 101) + ". Next one."
    units = split(text)
    assert split(*text) == units
    assert (units[0] == text[:chars]) == (chars <= MAX_CHARS)


def test_a_megabyte_is_cut_in_linear_time() -> None:
    assert sum(map(len, split("word " * 200_000))) > 900_000


TEXTS = st.lists(
    st.sampled_from(
        ["a", "Be", "12", "Dr", "e.g", "1", " ", "  ", "\n", ".", "...", ",", ";", "!", "?", '"', "x" * 60]
    ),
    max_size=60,
).map("".join)


@given(TEXTS, st.lists(st.integers(0, 400), max_size=8))
def test_where_the_stream_is_cut_changes_nothing(text: str, cuts: list[int]) -> None:
    marks = [0, *sorted(cut for cut in cuts if cut <= len(text)), len(text)]
    deltas = [text[a:b] for a, b in itertools.pairwise(marks)]
    units = split(text)
    assert split(*deltas) == units
    assert split(*text) == units
    assert "".join("".join(units).split()) == "".join(text.split())
    assert all(unit == unit.strip() and 0 < len(unit) <= MAX_CHARS for unit in units)


@pytest.mark.parametrize(
    ("text", "words", "foreign"),
    [
        ("The café in Zürich.", "The café in Zürich.", 0),
        ("Łódź and Dvořák", "Lódz and Dvorák", 0),
        ("**bold** and `code`", "bold and code", 0),
        ("# Title <b>here</b> #3", "Title here #3", 0),
        ("[sound](/bad/)", "[sound] (/bad/)", 0),
        ("5 < 6 & 20% of £3", "5 < 6 & 20% of £3", 0),
        ("Hello 世界, you 😀!", "Hello , you !", 3),
        ("12345678901234567 1,234,567", "1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 1,234,567", 0),
        ("a\u200bb\x00c\td", "abc d", 0),
        ("", "", 0),
        (" \n ", "", 0),
        ("!!! *** % & …", "", 0),
        ("你好", "", 2),
        ("Привет", "", 6),
        ("👩\u200d👧", "", 2),
    ],
)
def test_only_english_is_spoken_and_the_rest_is_counted(text: str, words: str, foreign: int) -> None:
    assert speakable(text) == (words, foreign)


def test_phonemes_are_cut_between_words() -> None:
    assert runs("həlˈO ðˈɛɹ.") == ["həlˈO ðˈɛɹ."]
    assert runs("one two three", longest=7) == ["one two", "three"]
    assert runs("abcdefgh ij", longest=3) == ["abc", "def", "gh", "ij"]
    assert all(len(run) <= MAX_PHONEMES for run in runs("sˈɛvən " * 300))


def test_pauses_alone_are_not_spoken() -> None:
    assert runs("") == []
    assert runs("!!! … (“”)") == []
