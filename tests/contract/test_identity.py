"""I1, I2, I3: a request's three ids, in the router."""

from __future__ import annotations

import pytest
from support.pipelines import SPEECH, config
from support.playbook import RouterPlay, effect, rid, submission, to

from omnizmq import protocol as wire
from omnizmq.errors import InvalidRequestError
from omnizmq.protocol import Abort, AbortAck, AbortStage, Refused, SubmitStage, Terminal
from omnizmq.router.messages import ClientSent, Drained, StopAsked

FIRST, SECOND = rid("demo", "0" * 16), rid("demo", "1" * 16)


@pytest.fixture
def play() -> RouterPlay:
    return RouterPlay(config("thinker:text"))


def asks(client: str, external_id: str, suffix: str = "0" * 16) -> ClientSent:
    return ClientSent(client.encode(), submission(external_id, suffix=suffix))


def aborts(what: str) -> ClientSent:
    return ClientSent(b"carol", Abort(7, what))


class TestI1ThreeIds:
    def test_a_request_id_is_the_external_id_and_64_bits(self) -> None:
        request_id = wire.make_request_id("demo", bytes(range(8)))
        assert request_id == "demo-0001020304050607"
        assert wire.check_request_id(request_id, "demo") == request_id

    @pytest.mark.parametrize("entropy", [b"", b"short", b"nine bytes"])
    def test_not_with_fewer_or_more(self, entropy: bytes) -> None:
        with pytest.raises(ValueError, match="8 random bytes"):
            wire.make_request_id("demo", entropy)

    def test_each_stage_and_attempt_has_an_engine_id_of_its_own(self) -> None:
        ids = {wire.make_engine_id(FIRST, attempt, stage) for attempt in (1, 2) for stage in ("thinker", "talker")}
        assert len(ids) == 4

    def test_every_fact_has_the_request_id_and_a_stages_also_its_engine_id(self) -> None:
        play = RouterPlay(config(SPEECH))
        request = rid("demo")
        for event in (
            play.submits("alice"),
            *(play.registers(f"{stage}/0", request) for stage in ("code2wav", "talker", "thinker")),
            play.makes("thinker/0", request, 1, "Hi", last=True),
            play.finishes("thinker/0", request, outputs=1, edges=[wire.EdgeCount("talker", 1, 9, 1, 2, 0)]),
            play.dies("talker/0"),
        ):
            _ = play >> event
        assert {fact.event for fact in play.facts} >= {"asked", "received", "bound", "registered", "edge", "terminal"}
        for fact in play.facts:
            assert (fact.request_id, fact.external_id, fact.attempt) == (request, "demo", 1)
            assert fact.engine_id == (None if fact.stage is None else f"{request}/1/{fact.stage}")

    def test_frames_carry_the_request_id_and_a_submission_all_three(self, play: RouterPlay) -> None:
        assert (
            play
            >> asks("alice", "demo")
            << to("thinker/0", SubmitStage, request_id=FIRST, external_id="demo", engine_id=f"{FIRST}/1/thinker")
        )
        assert play >> aborts("demo") << to("thinker/0", AbortStage, request_id=FIRST) << to("carol", AbortAck)
        assert play >> play.finishes("thinker/0", FIRST, "abort") << to("alice", Terminal, request_id=FIRST)


class TestI2OneExternalIdTwoRequests:
    @pytest.fixture(autouse=True)
    def three(self, play: RouterPlay) -> None:
        """Two bear `demo`; a third one's id merely starts with it."""
        for event in (asks("alice", "demo"), asks("bob", "demo", "1" * 16), asks("bob", "demo-2")):
            assert play >> event << to("thinker/0", SubmitStage)

    def test_an_abort_by_external_id_ends_all_that_bear_exactly_that(self, play: RouterPlay) -> None:
        assert (
            play
            >> aborts("demo")
            << to("thinker/0", AbortStage, request_id=FIRST)
            << to("thinker/0", AbortStage, request_id=SECOND)
            << to("carol", AbortAck, call=7, matched=2)
        )

    def test_an_abort_by_request_id_ends_that_one(self, play: RouterPlay) -> None:
        assert (
            play >> aborts(SECOND) << to("thinker/0", AbortStage, request_id=SECOND) << to("carol", AbortAck, matched=1)
        )

    @pytest.mark.parametrize("id_", ["dem", "demo-", "DEMO", "", "demo-2-", "*"])
    def test_a_part_of_an_id_means_nobody(self, play: RouterPlay, id_: str) -> None:
        assert play >> aborts(id_) << to("carol", AbortAck, matched=0)

    def test_both_end_each_for_its_own_caller(self, play: RouterPlay) -> None:
        _ = play >> aborts("demo") << effect_of_abort(FIRST) << effect_of_abort(SECOND) << to("carol", AbortAck)
        assert play >> play.finishes("thinker/0", SECOND, "abort") << to("bob", Terminal, request_id=SECOND)
        assert play >> play.finishes("thinker/0", FIRST, "abort") << to("alice", Terminal, request_id=FIRST)
        assert play.live == [rid("demo-2", "0" * 16)]


def effect_of_abort(request_id: str) -> object:
    return to("thinker/0", AbortStage, request_id=request_id)


BAD_IDS = ["", "a b", "a\nb", "a\0b", "é", "a" * 129, "\x7f", "a\tb", "a" * 10_000_000]


class TestI3IdsAreData:
    @pytest.mark.parametrize("external_id", BAD_IDS, ids=[repr(one[:9]) for one in BAD_IDS])
    def test_length_and_characters_are_checked_at_the_door(self, play: RouterPlay, external_id: str) -> None:
        assert play >> asks("alice", external_id) << to("alice", Refused)
        assert play.counts("refused") == 1
        assert play.facts == []
        assert play.is_empty()

    @pytest.mark.parametrize("external_id", BAD_IDS, ids=[repr(one[:9]) for one in BAD_IDS])
    def test_the_error_is_clear_and_short(self, external_id: str) -> None:
        with pytest.raises(InvalidRequestError, match="1 to 128 printable ASCII characters, no spaces") as caught:
            wire.check_external_id(external_id)
        assert len(caught.value.message) < 200

    @pytest.mark.parametrize(
        "external_id", ["a", "a" * 128, "../../etc/passwd", "$(reboot)", "a/b#1", "'\";--", "%s{0}"]
    )
    def test_anything_else_is_an_id_and_never_more(self, play: RouterPlay, external_id: str) -> None:
        assert play >> asks("alice", external_id) << to("thinker/0", SubmitStage, external_id=external_id)
        assert play >> aborts(external_id) << to("thinker/0", AbortStage) << to("carol", AbortAck, matched=1)

    @pytest.mark.parametrize(
        "request_id",
        ["", "demo", "demo-", "demo-0123", "other-0123456789abcdef", "demo-0123456789ABCDEF", "x" * 10_000_000],
    )
    def test_a_request_id_belongs_to_its_external_id(self, play: RouterPlay, request_id: str) -> None:
        sent = ClientSent(b"alice", submission("demo", request_id=request_id))
        assert play >> sent << to("alice", Refused, request_id=request_id[:256])
        assert play.is_empty()

    def test_one_that_is_in_use_is_refused_and_its_bearer_is_left_alone(self, play: RouterPlay) -> None:
        assert play >> asks("alice", "demo") << to("thinker/0", SubmitStage)
        facts = len(play.facts)
        assert play >> asks("bob", "demo") << to("bob", Refused, request_id=FIRST)
        assert len(play.facts) == facts, "nothing is written into the other's trace"
        assert play >> play.finishes("thinker/0", FIRST, "abort") << to("alice", Terminal, finish_reason="error")

    def test_one_whose_bearer_was_left_behind_is_in_use_until_its_replica_confirms(self, play: RouterPlay) -> None:
        assert play >> asks("alice", "demo") << to("thinker/0", SubmitStage)
        assert play >> aborts("demo") << to("thinker/0", AbortStage) << to("carol", AbortAck)
        assert play.waits(6) << to("alice", Terminal, finish_reason="abort")
        assert play >> asks("alice", "demo") << to("alice", Refused)
        assert play >> play.finishes("thinker/0", FIRST, "abort")
        assert play >> asks("alice", "demo") << to("thinker/0", SubmitStage)


def test_i1_a_refusal_has_its_ids_too() -> None:
    play = RouterPlay(config("thinker:text"))
    assert play >> StopAsked("enough") << effect(Drained)
    assert play >> asks("alice", "demo") << to("alice", Refused)
    asked, refused = play.facts
    assert (asked.event, asked.owner, asked.request_id, asked.at_ns) == ("asked", "client", FIRST, 100)
    assert (refused.event, refused.owner, refused.request_id) == ("refused", "router", FIRST)
    assert refused.detail["code"] == "unavailable"
