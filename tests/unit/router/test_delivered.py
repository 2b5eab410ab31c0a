"""What a caller has of a stage over several attempts: skipped by offset, compared by hash, credited by count."""

from __future__ import annotations

import pytest
from hypothesis import given
from support.delivered_model import MismatchError, Told
from support.properties import Dice, checked, dice

from omnizmq.errors import ReplicaLostError
from omnizmq.protocol import Audio, Content, Text, TextWithLogprobs, TokenLogprob
from omnizmq.router.delivered import Delivered, Passed


def made_of(*texts: str, ended: bool = False) -> Delivered:
    """The caller has these, and the next attempt begins."""
    delivered = Delivered("thinker", hashed=True)
    for text in texts:
        delivered.pass_on(Text(text), last=False, cut=False)
    if ended:
        delivered.pass_on(None, last=True, cut=False)
    delivered.begin_attempt("thinker/0")
    return delivered


def says(delivered: Delivered, text: str | None, *, last: bool = False) -> Passed | None:
    return delivered.pass_on(None if text is None else Text(text), last=last, cut=False)


class TestF2WhatTheCallerHasIsSkipped:
    @pytest.mark.parametrize(
        "outputs", [["Hello, world"], ["Hello, ", "world"], ["Hel", "lo, w", "orld"], list("Hello, world")]
    )
    def test_f2_whatever_the_cuts(self, outputs: list[str]) -> None:
        delivered = made_of("Hello", ", wor")
        passed = [says(delivered, text) for text in outputs]
        assert "".join(one.content.text for one in passed if one is not None and isinstance(one.content, Text)) == "ld"

    def test_f2_the_last_output_may_be_cut_in_the_middle(self) -> None:
        delivered = made_of("Hel")
        assert says(delivered, "Hello", last=True) == Passed(Text("lo"), True)

    def test_f2_characters_are_counted_and_not_bytes(self) -> None:
        delivered = made_of("é", "日本")
        assert says(delivered, "é日") is None
        assert says(delivered, "本語") == Passed(Text("語"), False)

    def test_f2_sound_is_cut_between_samples(self) -> None:
        delivered = Delivered("voice", hashed=True)
        delivered.pass_on(Audio(b"aaaabbbb", 24_000), last=False, cut=False)
        delivered.begin_attempt("thinker/0")
        assert delivered.pass_on(Audio(b"aaaa", 24_000), last=False, cut=False) is None
        assert delivered.pass_on(Audio(b"bbbbcccc", 24_000), last=True, cut=False) == Passed(
            Audio(b"cccc", 24_000), True
        )

    def test_f2_an_end_that_was_delivered_is_not_delivered_again(self) -> None:
        delivered = made_of("Hi", ended=True)
        assert says(delivered, "Hi", last=True) is None

    def test_f2_an_end_that_was_not_delivered_is(self) -> None:
        delivered = made_of("Hi")
        assert says(delivered, "Hi", last=True) == Passed(None, True)

    def test_f2_a_third_attempt_is_compared_with_all_that_was_delivered(self) -> None:
        delivered = made_of("ab")
        assert says(delivered, "abc") == Passed(Text("c"), False)
        delivered.begin_attempt("thinker/0")
        assert says(delivered, "ab") is None
        with pytest.raises(ReplicaLostError, match="is another one"):
            says(delivered, "x")


def scored(text: str, *tokens: bytes) -> TextWithLogprobs:
    return TextWithLogprobs(text, [TokenLogprob(token, -1.0, []) for token in tokens])


class TestF2TokensWithTheirLogprobsComeOnce:
    """They come when they are generated, their text may come later: each is counted by itself."""

    @pytest.mark.parametrize(
        ("again", "passed"),
        [
            ([scored("Hel", b"Hel"), scored("", b"lo"), scored("lo!", b"!")], [None, None, scored("lo!", b"!")]),
            ([scored("Hel", b"Hel", b"lo", b"!"), scored("lo!")], [scored("", b"!"), scored("lo!")]),
            ([scored("", b"Hel"), scored("Hello!", b"lo", b"!")], [None, scored("lo!", b"!")]),
        ],
    )
    def test_f2_whatever_the_cuts(self, again: list[Content], passed: list[Content | None]) -> None:
        delivered = Delivered("thinker", hashed=True)
        delivered.pass_on(scored("Hel", b"Hel", b"lo"), last=False, cut=False)
        delivered.begin_attempt("thinker/0")
        shares = [delivered.pass_on(content, last=False, cut=False) for content in again]
        assert [None if share is None else share.content for share in shares] == passed

    def test_f2_behind_the_end_nothing_comes(self) -> None:
        delivered = Delivered("thinker", hashed=True)
        delivered.pass_on(scored("Hi", b"Hi"), last=True, cut=False)
        delivered.begin_attempt("thinker/0")
        assert delivered.pass_on(scored("Hi", b"H", b"i"), last=True, cut=False) is None


class TestF2AMismatch:
    @pytest.mark.parametrize(
        ("outputs", "last", "why"),
        [
            (["Jello"], False, "is another one"),
            (["H", "e", "l", "l", "a"], False, "is another one"),
            (["Hell"], True, "ends 1 characters or bytes too soon"),
            ([""], True, "ends 5 characters or bytes too soon"),
        ],
    )
    def test_f2_is_found(self, outputs: list[str], last: bool, why: str) -> None:
        delivered = made_of("Hello")
        for text in outputs[:-1]:
            assert says(delivered, text) is None
        with pytest.raises(ReplicaLostError, match=f"^thinker/0 was lost after 1 outputs of thinker had.*{why}") as at:
            says(delivered, outputs[-1], last=last)
        assert (at.value.stage, at.value.replica) == ("thinker", "thinker/0"), "the one that was lost"
        assert says(delivered, "Hello!") is None, "nothing more of this attempt"

    def test_f2_also_where_it_shows_only_behind_the_end(self) -> None:
        delivered = made_of("Hello", ended=True)
        with pytest.raises(ReplicaLostError, match="goes on where it had ended"):
            says(delivered, "Hello!")

    def test_f2_an_attempt_that_ends_without_a_word_ends_too_soon(self) -> None:
        delivered = made_of("Hello")
        with pytest.raises(ReplicaLostError, match="too soon"):
            says(delivered, None, last=True)

    def test_f2_sound_at_another_rate_is_another_sound(self) -> None:
        delivered = Delivered("voice", hashed=True)
        delivered.pass_on(Audio(b"aaaa", 24_000), last=False, cut=False)
        delivered.begin_attempt("thinker/0")
        with pytest.raises(ReplicaLostError, match="16000 Hz instead of 24000"):
            delivered.pass_on(Audio(b"aaaa", 16_000), last=False, cut=False)

    def test_a3_an_abort_may_cut_it_short(self) -> None:
        delivered = made_of("Hello")
        assert delivered.pass_on(None, last=True, cut=True) == Passed(None, True)


class TestB1Credits:
    def test_b1_of_earlier_attempts_what_is_unread_counts_against_the_next_one(self) -> None:
        delivered = made_of("a", "b", "c")
        assert (delivered.credit, delivered.unread) == (-3, 3)
        assert delivered.consume(2)
        assert delivered.credit == -1
        assert says(delivered, "abc") is None
        assert delivered.credit == 0, "what was passed over counts as read"
        assert says(delivered, "d") is not None
        assert delivered.consume(4)
        assert (delivered.credit, delivered.unread) == (2, 0)

    @pytest.mark.parametrize(("deliveries", "news"), [(0, False), (-1, False), (1, True), (99, True)])
    def test_b1_what_was_never_sent_cannot_be_read(self, deliveries: int, news: bool) -> None:
        delivered = Delivered("thinker", hashed=False)
        says(delivered, "a")
        says(delivered, "b")
        assert delivered.consume(deliveries) is news
        assert delivered.unread == max(0, 2 - max(0, deliveries))
        assert delivered.consume(0) is False, "and is not given back"


# --- Any attempts --------------------------------------------------------------------------------------------------


def some_text(roll: Dice) -> Text:
    return Text("".join(roll.pick("ab") for _ in range(roll.pick([0, 1, 1, 2, 3]))))


def some_sound(roll: Dice) -> Audio:
    samples = b"".join(roll.pick([b"aaaa", b"bbbb"]) for _ in range(roll.pick([0, 1, 1, 2])))
    return Audio(samples, roll.pick([24_000, 24_000, 24_000, 16_000]))


def true_ones(roll: Dice, told: Told, kind: type[Content]) -> Content:
    """What the caller has already, cut anew, and perhaps more."""
    rest = told.whole[len(told.again) :][: roll.number(0, 4)]
    more = [roll.pick("ab") for _ in range(roll.pick([0, 0, 1, 2]))]
    if kind is Text:
        return Text("".join(map(str, rest + more)))
    return Audio(bytes(map(int, rest[: len(rest) // 4 * 4])), told.rate or 24_000)


def with_tokens(roll: Dice, content: Content | None) -> Content | None:
    """Any number of them, each of its own kind."""
    if not isinstance(content, Text):
        return content
    return scored(content.text, *(bytes([roll.number(0, 255)]) for _ in range(roll.pick([0, 1, 1, 2]))))


@checked(3000)
@given(dice)
def test_f2_every_share_is_predicted_whatever_is_said(roll: Dice) -> None:
    """Also: what the caller has only grows, and the sum of its shares is what was said, cut in any way."""
    kind = roll.pick([Text, Text, Audio])
    has_tokens = roll.pick([False, True])
    delivered, told = Delivered("stage", hashed=True), Told()
    said_all = False  # behind its last output an attempt says nothing: the lifecycle sees to that
    for _ in range(roll.number(1, 30)):
        move = roll.pick(["output"] * 6 + ["attempt", "read", "cut"])
        if move == "attempt":
            delivered.begin_attempt("thinker/0")
            told.begins_again("thinker/0")
            said_all = False
        elif move == "read":
            many = roll.number(-1, 8)
            assert delivered.consume(many) == told.reads(many)
        elif not said_all:
            some = some_text(roll) if kind is Text else some_sound(roll)
            content = roll.pick([None, some, *[true_ones(roll, told, kind)] * 4])
            content = None if move == "cut" else content
            content = with_tokens(roll, content) if has_tokens else content
            said_all = move == "cut" or roll.number(0, 5) == 0
            if not say_both(delivered, told, content, last=said_all, cut=move == "cut"):
                return
        assert (delivered.sent, delivered.ended, delivered.begun) == (told.sent, told.ended, told.begun)
        assert (delivered.consumed, delivered.credit) == (told.read, told.credit)


def say_both(delivered: Delivered, told: Told, content: Content | None, *, last: bool, cut: bool) -> bool:
    """Whether the attempt may go on."""
    before = list(told.whole)
    try:
        share = told.takes(content, last=last, cut=cut)
    except MismatchError:
        with pytest.raises(ReplicaLostError):
            delivered.pass_on(content, last=last, cut=cut)
        return False
    assert delivered.pass_on(content, last=last, cut=cut) == share
    assert told.whole[: len(before)] == before
    return True


def test_f2_it_says_how_many_outputs_of_an_attempt_the_caller_had_already() -> None:
    delivered = Delivered("thinker", hashed=True)
    for text in ("ab", "cd"):
        assert delivered.pass_on(Text(text), last=False, cut=False) is not None
    delivered.begin_attempt("thinker/0")
    assert (delivered.skipped, delivered.credit) == (0, -2)
    assert delivered.pass_on(Text("abc"), last=False, cut=False) is None
    assert (delivered.skipped, delivered.credit) == (1, -1)
    assert delivered.pass_on(Text("de"), last=False, cut=False) == (Text("e"), False)
    assert (delivered.skipped, delivered.credit) == (1, -1)
