"""What a worker says when it is asked where a request is, and when it says that one is parked (T1)."""

from __future__ import annotations

from collections.abc import Collection

import pytest
from support.gate_play import (
    CODE2WAV,
    INCARNATION,
    NOW,
    RID,
    THINKER,
    GatePlay,
    answers,
    asks_abort,
    chunk,
    closes,
    engine_failed,
    engine_id,
    frees,
    gives_credit,
    made,
    reads,
    rows,
    small,
    submit,
    target,
    took,
)

from omnizmq import protocol as wire
from omnizmq.errors import StageError
from omnizmq.workers.messages import RouterSent, StageAsked, ToRouter
from omnizmq.workers.ring import Share

SIZE = 80_000
RECORD = 64 + SIZE
SHARES = {"code2wav": Share(2 * RECORD, 2 * RECORD)}
OTHER = "other-0123456789abcdef"


def ask(play: GatePlay, rid: str = RID, attempt: int = 1, at_work_on: Collection[str] = ()) -> wire.StageAnswer:
    asked = StageAsked(wire.AskStage(9, rid, attempt), "stepping", 77, frozenset(at_work_on))
    (command,) = play.gate.handle(asked, play.now)
    assert isinstance(command, ToRouter)
    assert isinstance(command.frame, wire.StageAnswer)
    return command.frame


def feed(play: GatePlay, *events: object) -> None:
    for event in events:
        play._handle(event)


def parked(play: GatePlay) -> list[wire.StageFact]:
    return play.parked


def talker(*, final: bool = False, shares: dict[str, Share] | None = None, rid: str = RID, window: int = 2) -> GatePlay:
    """It has a chunk of its thinker's, and has told nobody anything."""
    play = GatePlay(shares=shares)
    frame = submit(THINKER, targets=[target(window=window)], final=final, rid=rid)
    feed(play, RouterSent(frame), chunk(1, rid=rid))
    return play


class TestAnswer:
    def test_t1_who_answers_about_what(self) -> None:
        answer = ask(talker())
        assert (answer.call, answer.request_id, answer.attempt, answer.incarnation) == (9, RID, 1, INCARNATION)
        assert (answer.engine, answer.engine_since_ns, answer.at_ns) == ("stepping", 77, NOW)
        assert (answer.running, answer.slots, answer.waiting) == (1, 64, 0)

    def test_t1_whether_the_engine_does_that_for_this_request(self) -> None:
        play = talker()
        assert ask(play, at_work_on=[engine_id(RID), engine_id(OTHER)]).engaged
        assert not ask(play, at_work_on=[engine_id(OTHER)]).engaged
        assert not ask(play, "nobody-1", at_work_on=[engine_id("nobody-1")]).engaged

    @pytest.mark.parametrize(("rid", "attempt"), [("nobody-1", 1), (RID, 2)])
    def test_t1_what_is_not_here_is_gone(self, rid: str, attempt: int) -> None:
        answer = ask(talker(), rid, attempt)
        assert (answer.state, answer.inputs, answer.edges, answer.caller) == ("GONE", [], [], None)
        assert (answer.since_ns, answer.made_ns, answer.outputs) == (0, 0, 0)

    def test_t1_the_edge_in_counts_what_came_and_what_the_engine_took(self) -> None:
        play = talker()
        play.now = 2_000
        feed(play, chunk(2), took(1))
        assert ask(play).inputs == [wire.InputState("thinker", "thinker/0", "chunk", 2, 1, False, False, 2_000)]

    def test_t1_the_edge_out_says_why_no_chunk_may_go_and_since_when(self) -> None:
        play = talker()
        feed(play, made(to={"code2wav": [small(1), small(2), small(3)]}))
        (edge,) = ask(play).edges
        assert (edge.target, edge.replica, edge.mode) == ("code2wav", "code2wav/0", "chunk")
        assert (edge.made, edge.sent, edge.consumed, edge.window) == (3, 2, 0, 2)
        assert (edge.full, edge.full_since_ns) == ("credit", NOW)
        assert ask(play).state == "PARKED"
        feed(play, gives_credit(2))
        (edge,) = ask(play).edges
        assert (edge.full, edge.full_since_ns, edge.sent, edge.consumed) == (None, 0, 3, 2)

    def test_t1_a_full_ring_names_who_holds_it(self) -> None:
        play = talker(shares=SHARES, window=8)
        frame = submit(THINKER, targets=[target(window=8)], rid=OTHER)
        feed(play, RouterSent(frame), chunk(1, rid=OTHER), answers())
        feed(play, made(to={"code2wav": [rows(SIZE, 1), rows(SIZE, 2)]}, rid=OTHER))
        feed(play, made(to={"code2wav": [rows(SIZE, 3)]}))
        (edge,) = ask(play).edges
        assert (edge.full, edge.held_bytes, edge.quota_bytes) == ("ring", 2 * RECORD, 2 * RECORD)
        assert edge.holders == [OTHER]
        feed(play, made(to={"code2wav": [rows(SIZE, 4)]}, rid=OTHER))
        (theirs,) = ask(play, OTHER).edges
        assert theirs.full == "line", "the first in the line is another one"
        assert theirs.holders == [], "it names others, not itself"
        feed(play, frees(1, 2))
        assert ask(play).edges[0].full is None

    def test_t1_the_caller_that_has_to_read(self) -> None:
        play = GatePlay()
        feed(play, RouterSent(submit(prompt="hi", final=True, window=2)))
        feed(play, *(made(text) for text in ("one", "two", "three")))
        answer = ask(play)
        assert answer.state == "PAUSED"
        assert answer.caller == wire.CallerState(2, 0, 2, 6, 8 << 20, 1, True, NOW)
        assert answer.outputs == 3
        play.now = 5_000
        feed(play, reads(1))
        answer = ask(play)
        assert answer.caller is not None
        assert (answer.caller.consumed, answer.caller.sent, answer.caller.waiting) == (1, 3, 0)

    def test_t1_a_request_that_waits_for_a_slot(self) -> None:
        play = GatePlay(slots=1)
        feed(play, RouterSent(submit(prompt="hi")), RouterSent(submit(prompt="hi", rid=OTHER)))
        answer = ask(play, OTHER)
        assert (answer.state, answer.running, answer.slots, answer.waiting) == ("QUEUED", 1, 1, 1)

    @pytest.mark.parametrize(
        ("state", "since_ns"),
        [("WAITING_FOR_CHUNK", 1_000), ("RUNNING", 2_000), ("PARKED", 3_000), ("ABORTING", 4_000)],
    )
    def test_t1_since_when_it_is_in_its_state(self, state: str, since_ns: int) -> None:
        play = GatePlay()
        feed(play, RouterSent(submit(THINKER, targets=[CODE2WAV])))
        steps = [
            (2_000, chunk(1)),
            (3_000, made(to={"code2wav": [small(1), small(2)]})),
            (4_000, asks_abort()),
        ]
        for at_ns, event in steps:
            if ask(play).state == state:
                break
            play.now = at_ns
            feed(play, event)
        play.now = 9_000
        answer = ask(play)
        assert (answer.state, answer.since_ns) == (state, since_ns)

    def test_to_be_asked_changes_nothing(self) -> None:
        play = talker()
        before = play.state()
        assert ask(play) == ask(play)
        assert (play.state(), play.gate.late, play.gate.live) == (before, 0, 1)


class TestParked:
    def test_t1_an_edge_without_credit_is_told_once(self) -> None:
        play = talker()
        feed(play, made(to={"code2wav": [small(1), small(2)]}))
        (fact,) = parked(play)
        assert (fact.request_id, fact.attempt, fact.incarnation, fact.at_ns) == (RID, 1, INCARNATION, NOW)
        where = {"to": "code2wav", "replica": "code2wav/0"}
        assert fact.detail == {**where, "why": "credit", "sent": 2, "unconsumed": 2}
        feed(play, gives_credit(2), made(to={"code2wav": [small(3), small(4)]}))
        assert play.state() == "PARKED"
        assert len(parked(play)) == 1

    def test_t1_another_cause_is_another_fact(self) -> None:
        play = talker(shares=SHARES, window=3)
        feed(play, answers(), made(to={"code2wav": [rows(SIZE, 1), rows(SIZE, 2), rows(SIZE, 3)]}))
        feed(play, frees(1), gives_credit(0))
        causes = [fact.detail["why"] for fact in parked(play)]
        assert causes == ["ring", "credit"]
        assert parked(play)[0].detail["held_bytes"] == parked(play)[0].detail["quota_bytes"] == 2 * RECORD

    def test_c6_the_report_says_for_how_long_an_edge_kept_it_waiting(self) -> None:
        play = talker()
        for at_ns, event in (
            (1_000, made(to={"code2wav": [small(1), small(2)]})),
            (1_500, gives_credit(1)),  # 500 ns
            (2_000, made(to={"code2wav": [small(3)]})),
            (2_300, engine_failed(StageError("boom"))),  # 300 more, and it still waits
        ):
            play.now = at_ns
            commands = play._handle(event)
        (report,) = [one.frame for one in commands if isinstance(getattr(one, "frame", None), wire.StageFinished)]
        assert report.edges == [wire.EdgeCount("code2wav", 3, 0, 1_000, 2_000, 800)]

    def test_c6_a_closed_edge_keeps_nobody_waiting(self) -> None:
        play = talker()
        feed(play, made(to={"code2wav": [small(1), small(2)]}))
        play.now = 1_400
        feed(play, closes())
        play.now = 9_000
        commands = play._handle(engine_failed(StageError("boom")))
        (report,) = [one.frame for one in commands if isinstance(getattr(one, "frame", None), wire.StageFinished)]
        assert report.edges[0].parked_ns == 400


class TestEachChunk:
    def test_t1_with_trace_chunks_both_ends_tell_of_each(self) -> None:
        play = GatePlay(trace_chunks=True)
        feed(play, RouterSent(submit(THINKER, targets=[CODE2WAV])))
        told = [
            (one.frame.fact, one.frame.detail)
            for event in (chunk(1), chunk(2), chunk(2), made(to={"code2wav": [small(5)]}))
            for one in play._handle(event)
            if isinstance(one, ToRouter) and isinstance(one.frame, wire.StageFact) and "chunk" in one.frame.fact
        ]
        assert told == [
            ("chunk_came", {"from": "thinker", "seq": 1}),
            ("chunk_came", {"from": "thinker", "seq": 2}),
            ("chunk_sent", {"to": "code2wav", "seq": 1, "bytes": 0}),
        ]

    def test_t1_without_it_none_is_told(self) -> None:
        play = talker()
        commands = play._handle(made(to={"code2wav": [small(5)]}))
        facts = [one.frame.fact for one in commands if isinstance(getattr(one, "frame", None), wire.StageFact)]
        assert facts == ["first_output"]
