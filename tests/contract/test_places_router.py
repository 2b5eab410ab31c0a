"""B1 and B2 in the router: who takes a place, who waits, in which order, and how much goes unread."""

from __future__ import annotations

from typing import Any

import pytest
from support.pipelines import SPEECH, config
from support.playbook import RouterPlay, rid, to

from omnizmq.protocol import Abort, AbortAck, Delivery, ErrorInfo, OutputCredit, Refused, SubmitStage, Terminal
from omnizmq.router.messages import ClientSent, ToWorker

REQUEST = rid("demo")
BROKEN = ErrorInfo("stage_error", "it broke", None, None, False)
TWO = "thinker:text > voice:audio"


def thinker(places: int = 1, **router: Any) -> RouterPlay:
    return RouterPlay(config("thinker:text", stages={"thinker": {"max_inflight": places}}, router=router))


def fails(play: RouterPlay, external_id: str, replica: str = "thinker/0") -> None:
    """The shortest way for a request to leave its place."""
    play._said.clear()
    _ = play >> play.finishes(replica, rid(external_id), None, error=BROKEN)


def submitted(play: RouterPlay) -> list[str]:
    """Who has got its first submission by now."""
    said, play._said = play._said, []
    frames = [one.frame for one in said if isinstance(one, ToWorker)]
    return [frame.external_id for frame in frames if isinstance(frame, SubmitStage)]


class TestB1PausedAndRegisteredRequests:
    def test_b1_one_that_waits_for_its_input_takes_no_place(self) -> None:
        stages = {"voice": {"max_inflight": 1}}
        play = RouterPlay(config(TWO, stages=stages))
        for name in ("a", "b"):
            assert play >> play.submits("alice", name) << to("voice/0", SubmitStage, request_id=rid(name))
            assert play >> play.registers("voice/0", rid(name)) << to("thinker/0", SubmitStage)
        assert play >> play.has_input("voice/0", rid("a"))
        assert play >> play.submits("alice", "c")
        assert play.waiting == [rid("c")], "now the voice has its one request"
        (voice,) = play.status()["stages"]["voice"]["replicas"]
        assert (voice["active"], voice["inflight"]) == (1, 2)

    def test_b1_64_paused_ones_do_not_keep_the_65th_out(self) -> None:
        play = thinker(places=64)
        for n in range(64):
            assert play >> play.submits("alice", f"slow{n}") << to("thinker/0", SubmitStage)
            assert play >> play.pauses("thinker/0", rid(f"slow{n}"))
        assert play >> play.submits("bob", "fast") << to("thinker/0", SubmitStage, request_id=rid("fast"))
        assert play.status()["paused"] == 64
        assert [fact.event for fact in play.facts].count("paused") == 64

    def test_b1_a_pause_lets_in_who_waits(self) -> None:
        play = thinker()
        assert play >> play.submits("alice", "a") << to("thinker/0", SubmitStage)
        assert play >> play.submits("bob", "b")
        assert play >> play.pauses("thinker/0", rid("a")) << to("thinker/0", SubmitStage, request_id=rid("b"))
        assert play >> play.pauses("thinker/0", rid("a"), paused=False)
        assert play >> play.submits("bob", "c"), "both compute: that is one more than there are places"
        assert play.status()["stages"]["thinker"]["replicas"][0]["active"] == 2

    def test_b1_a_pause_is_a_fact_once(self) -> None:
        play = thinker()
        assert play >> play.submits("alice") << to("thinker/0", SubmitStage)
        for paused in (True, False, True, True):
            assert play >> play.pauses("thinker/0", REQUEST, paused)
        assert [fact.event for fact in play.facts].count("paused") == 1
        assert play.status()["paused"] == 1

    def test_b1_a_request_is_paused_as_a_whole(self) -> None:
        """Where one of its callers' windows is full, its other stages take no place either, until it goes on."""
        stages = {"thinker": {"max_inflight": 1}}
        play = RouterPlay(config(TWO, stages=stages))
        assert play >> play.submits("alice", "a") << to("voice/0", SubmitStage)
        assert play >> play.pauses("voice/0", rid("a"))
        assert play >> play.submits("bob", "b", modalities=["text"]) << to("thinker/0", SubmitStage)

    @pytest.mark.parametrize("how", ["abort", "error"])
    def test_b1_one_that_ends_paused_is_paused_no_more(self, how: str) -> None:
        play = thinker()
        assert play >> play.submits("alice") << to("thinker/0", SubmitStage)
        assert play >> play.pauses("thinker/0", REQUEST)
        if how == "abort":
            _ = play.brings(ClientSent(b"carol", Abort(1, "demo")))
        _ = play.brings(play.finishes("thinker/0", REQUEST, None, error=BROKEN))
        assert play.is_empty()

    def test_b1_max_registered_bounds_them_all(self) -> None:
        stages = {"voice": {"max_inflight": 2, "max_registered": 3}}
        play = RouterPlay(config(TWO, stages=stages))
        for n in range(3):
            assert play >> play.submits("alice", f"a{n}") << to("voice/0", SubmitStage)
        assert play >> play.submits("alice", "more")
        assert play.waiting == [rid("more")]

    def test_b1_without_one_it_is_four_times_max_inflight(self) -> None:
        play = RouterPlay(config(TWO, stages={"voice": {"max_inflight": 2}}))
        for n in range(8):
            assert play >> play.submits("alice", f"a{n}") << to("voice/0", SubmitStage)
        assert play >> play.submits("alice", "more")

    def test_b1_one_left_behind_takes_its_place_though_it_was_paused(self) -> None:
        """Nobody knows what it does."""
        play = thinker()
        assert play >> play.submits("alice", "a") << to("thinker/0", SubmitStage)
        assert play >> play.pauses("thinker/0", rid("a"))
        _ = play.brings(ClientSent(b"carol", Abort(1, "a")))
        assert play.waits(5) << to("alice", Terminal, finish_reason="abort")
        assert play >> play.submits("bob", "b")
        assert play.waiting == [rid("b")]

    @pytest.mark.parametrize(("replica", "ended"), [("talker/0", False), ("thinker/0", True)])
    def test_b1_a_pause_of_who_delivers_nothing_is_none(self, replica: str, ended: bool) -> None:
        play = RouterPlay(config(SPEECH))
        assert play >> play.submits("alice") << to("code2wav/0", SubmitStage)
        assert play >> play.registers("code2wav/0", REQUEST) << to("talker/0", SubmitStage)
        assert play >> play.registers("talker/0", REQUEST) << to("thinker/0", SubmitStage)
        if ended:
            _ = play.brings(play.finishes("talker/0", REQUEST, None, error=BROKEN))
        assert play >> play.pauses(replica, REQUEST)
        assert play.status()["paused"] == 0
        assert (play.counts("bad_frames"), play.counts("late_frames")) == ((0, 1) if ended else (1, 0))
        assert play >> play.has_read("alice", REQUEST, "thinker", 1)


class TestB1Credits:
    def play(self) -> RouterPlay:
        """Alice has three outputs of the thinker and none of the voice."""
        play = RouterPlay(config(TWO))
        assert play >> play.submits("alice") << to("voice/0", SubmitStage)
        assert play >> play.registers("voice/0", REQUEST) << to("thinker/0", SubmitStage)
        assert play >> play.registers("thinker/0", REQUEST)
        for seq in (1, 2, 3):
            assert play >> play.makes("thinker/0", REQUEST, seq, "x") << to("alice", Delivery)
        return play

    def test_b1_it_goes_on_to_who_made_them(self) -> None:
        play = self.play()
        read = play.has_read("alice", REQUEST, "thinker", 2)
        assert play >> read << to("thinker/0", OutputCredit, request_id=REQUEST, attempt=1, consumed=2)
        assert play >> read, "once: they are cumulative"
        assert play >> play.has_read("alice", REQUEST, "thinker", 1)

    def test_b1_a_credit_for_what_was_never_sent_is_one_for_what_was(self) -> None:
        play = self.play()
        read = play.has_read("alice", REQUEST, "thinker", 1_000_000)
        assert play >> read << to("thinker/0", OutputCredit, consumed=3)
        assert play >> play.makes("thinker/0", REQUEST, 4, "x") << to("alice", Delivery)
        assert play >> play.has_read("alice", REQUEST, "thinker", 4) << to("thinker/0", OutputCredit, consumed=4)
        assert play >> play.has_read("alice", REQUEST, "voice", 1)

    @pytest.mark.parametrize("stage", ["voice", "nobody", ""])
    def test_b1_one_for_another_stage_is_none(self, stage: str) -> None:
        play = self.play()
        assert play >> play.has_read("alice", REQUEST, stage, 3)

    def test_b1_nobody_else_reads_for_the_caller(self) -> None:
        play = self.play()
        assert play >> play.has_read("bob", REQUEST, "thinker", 3)
        assert play.status()["counters"]["unconsumed"] == 3

    def test_b1_a_stage_that_has_finished_needs_none(self) -> None:
        play = self.play()
        assert play >> play.finishes("thinker/0", REQUEST, outputs=3) << to("alice", Delivery)
        assert play >> play.has_read("alice", REQUEST, "thinker", 3)
        assert play.status()["counters"]["unconsumed"] == 1, "the mark of its end"

    def test_b1_a_paused_stage_learns_that_the_caller_reads_elsewhere(self) -> None:
        """It is no slow reader; and its own count is what it was."""
        play = self.play()
        assert play >> play.pauses("voice/0", REQUEST)
        _ = play >> play.has_read("alice", REQUEST, "thinker", 2) << to("thinker/0", OutputCredit, consumed=2)
        assert play << to("voice/0", OutputCredit, consumed=0)


class TestB2Priorities:
    def test_b2_higher_ones_are_admitted_first_and_equal_ones_in_their_order(self) -> None:
        play = thinker()
        assert play >> play.submits("alice", "first") << to("thinker/0", SubmitStage)
        for name, priority in (("low", -1), ("a", 0), ("b", 0), ("high", 7), ("c", 0)):
            assert play >> play.submits("alice", name, priority=priority)
        order = ["first"]
        while play.waiting:
            fails(play, order[-1])
            order += submitted(play)
        assert order == ["first", "high", "a", "b", "c", "low"]

    def test_b2_the_engine_is_told(self) -> None:
        play = thinker()
        assert play >> play.submits("alice", priority=7) << to("thinker/0", SubmitStage, priority=7)

    @pytest.mark.parametrize(("waited", "order"), [(9.5, ["new", "old"]), (10.0, ["old", "new"])])
    def test_b2_waiting_raises_it(self, waited: float, order: list[str]) -> None:
        """By one for each `priority_age_s`: 2 s here, so that 5 more are worth 10 s."""
        play = thinker(priority_age_s=2.0)
        assert play >> play.submits("alice", "first") << to("thinker/0", SubmitStage)
        assert play >> play.submits("alice", "old")
        assert play.waits(waited)
        assert play >> play.submits("alice", "new", priority=5)
        assert play.waiting == [rid(name) for name in order]

    def test_b2_nothing_starves_behind_a_stream_of_higher_ones(self) -> None:
        play = thinker(priority_age_s=1.0)
        assert play >> play.submits("alice", "r0") << to("thinker/0", SubmitStage)
        assert play >> play.submits("alice", "low", priority=-3)
        running, admitted = "r0", []
        for n in range(1, 12):
            assert play >> play.submits("alice", f"r{n}", priority=3)
            _ = play.waits(1)
            fails(play, running)
            (running,) = submitted(play)
            admitted.append(running)
        assert admitted.index("low") == 6, "r7 came 6 s after it, which is what its priority is worth"

    def test_b2_a_request_that_needs_two_busy_stages_is_not_starved_by_those_that_need_one(self) -> None:
        """From some time on it keeps the places that it needs from all that come after it."""
        stages = {"thinker": {"max_inflight": 1}, "voice": {"max_inflight": 1, "max_registered": 1}}
        play = RouterPlay(config(TWO, stages=stages, router={"priority_age_s": 1.0}))
        assert play >> play.submits("alice", "holds") << to("voice/0", SubmitStage)
        assert play >> play.submits("alice", "both")
        assert play.waits(4)
        assert play >> play.registers("voice/0", rid("holds")) << to("thinker/0", SubmitStage)
        assert play >> play.submits("bob", "t0", modalities=["text"])
        _ = play.brings(play.finishes("thinker/0", rid("holds"), outputs=0))
        running = "t0"
        for n in range(1, 4):
            assert play >> play.submits("bob", f"t{n}", modalities=["text"])
            _ = play.waits(1)
            fails(play, running)
            running, *_ = [*submitted(play), "nobody"]
        assert running == "nobody", "a thinker is kept"
        assert play.waiting[0] == rid("both")
        fails(play, "holds", "voice/0")
        assert submitted(play) == ["both"], "and then it has both"

    def test_b2_a_higher_priority_is_not_held_up_by_who_starves(self) -> None:
        stages = {"voice": {"max_inflight": 1, "max_registered": 1}}
        play = RouterPlay(config(TWO, stages=stages, router={"priority_age_s": 1.0}))
        assert play >> play.submits("alice", "holds") << to("voice/0", SubmitStage)
        assert play >> play.submits("alice", "both")
        assert play.waits(5)
        assert play >> play.submits("bob", "low", modalities=["text"])
        assert (
            play
            >> play.submits("bob", "high", modalities=["text"], priority=50)
            << to("thinker/0", SubmitStage, request_id=rid("high"))
        )
        assert play.waiting == [rid("both"), rid("low")]

    def test_b2_when_who_starved_is_gone_nothing_is_kept(self) -> None:
        stages = {"voice": {"max_inflight": 1, "max_registered": 1}}
        play = RouterPlay(config(TWO, stages=stages, router={"priority_age_s": 1.0}))
        assert play >> play.submits("alice", "holds") << to("voice/0", SubmitStage)
        assert play >> play.submits("alice", "both")
        assert play.waits(6)
        gone = ClientSent(b"alice", Abort(1, "both"))
        assert play >> gone << to("alice", Terminal, request_id=rid("both")) << to("alice", AbortAck)
        assert play >> play.submits("bob", "text", modalities=["text"]) << to("thinker/0", SubmitStage)

    def test_b2_a_deadline_passes_in_the_queue_too(self) -> None:
        play = thinker()
        assert play >> play.submits("alice", "first") << to("thinker/0", SubmitStage)
        assert play >> play.submits("bob", "second", deadline_s=3.0, priority=100)
        assert play.waits(2.5)
        assert play.waits(0.5) << to("bob", Terminal, request_id=rid("second"), finish_reason="error")

    @pytest.mark.parametrize("priority", [101, -101, 2**63 - 1])
    def test_b2_what_is_no_priority_is_refused(self, priority: int) -> None:
        play = thinker()
        assert play >> play.submits("alice", priority=priority) << to("alice", Refused)
