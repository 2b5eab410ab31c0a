"""C1-C6: when a request is complete, and its one terminal, in the router."""

from __future__ import annotations

import itertools

import pytest
from support.pipelines import SPEECH, config, pipeline
from support.playbook import LifePlay, RouterPlay, rid, terminal, to

from omnizmq.protocol import AbortStage, Audio, Delivery, EdgeCount, ErrorInfo, SubmitStage, Terminal, Text
from omnizmq.router import lifecycle as life

REQUEST = rid("demo")
BROKEN = ErrorInfo("stage_error", "it broke", "talker", "talker/0", False)
LATE = ErrorInfo("deadline_exceeded", "too late", None, None, False)
CHAIN = ("thinker", "talker", "code2wav")


@pytest.fixture
def play() -> LifePlay:
    """Thinker, talker and code2wav are submitted and registered."""
    play = LifePlay(pipeline(SPEECH).plan(None))
    for event in (life.Bound(), *(life.Registered(stage) for stage in reversed(CHAIN))):
        _ = play >> event
    for stage in reversed(CHAIN):
        _ = play << life.SubmitStage(stage)
    assert play
    return play


def text(last: bool = True) -> life.OutputArrived:
    return life.OutputArrived("thinker", 1, Text("Hi"), last)


SOUND = Audio(b"\0" * 8, 24_000)


def audio(last: bool = True) -> life.OutputArrived:
    return life.OutputArrived("code2wav", 1, SOUND, last)


def done(stage: str, reason: str = "stop", **fields: object) -> life.StageFinished:
    report = {"error": None, "usage": {"tokens": 1}, "note": None, "outputs": int(stage != "talker")} | fields
    return life.StageFinished(stage, reason if report["error"] is None else None, **report)


def delivered(stage: str, content: Text | None, stage_finished: bool = True) -> life.Deliver:
    return life.Deliver(stage, {"thinker": "text", "code2wav": "audio"}[stage], content, stage_finished)


class TestC1Complete:
    def test_when_every_final_stages_output_has_ended(self, play: LifePlay) -> None:
        assert play >> text() << delivered("thinker", Text("Hi"))
        assert not play.lifecycle.complete
        assert play >> audio(last=False) << delivered("code2wav", SOUND, False)
        assert not play.lifecycle.complete
        assert (
            play
            >> life.OutputArrived("code2wav", 2, None, True)
            << delivered("code2wav", None)
            << life.StartGrace(CHAIN)
        )
        assert play.lifecycle.complete

    def test_a_success_without_a_marked_end_ends_the_output(self, play: LifePlay) -> None:
        assert play >> text(last=False) << delivered("thinker", Text("Hi"), False)
        assert play >> done("thinker") << delivered("thinker", None) << life.ReleaseStage("thinker")

    def test_other_stages_do_not_count(self, play: LifePlay) -> None:
        """The talker is no final stage: complete without it."""
        assert (
            play
            >> text()
            >> audio()
            << delivered("thinker", Text("Hi"))
            << delivered("code2wav", SOUND)
            << life.StartGrace(CHAIN)
        )


class TestC2TheTerminalWaitsForEveryReport:
    @pytest.mark.parametrize("order", list(itertools.permutations(CHAIN)))
    def test_in_whichever_order_they_arrive(self, play: LifePlay, order: tuple[str, ...]) -> None:
        _ = play >> text() >> audio() << delivered("thinker", Text("Hi")) << delivered("code2wav", SOUND)
        assert play << life.StartGrace(CHAIN)
        for stage in order[:2]:
            assert play >> done(stage) << life.ReleaseStage(stage)
        usage = {stage: {"tokens": 1} for stage in CHAIN}
        assert play >> done(order[2]) << life.ReleaseStage(order[2]) << terminal(usage=usage, usage_incomplete=())
        assert play.lifecycle.settled

    def test_reports_alone_do_not_make_it_complete(self, play: LifePlay) -> None:
        assert play >> done("talker") << life.ReleaseStage("talker")
        assert play.lifecycle.phase is life.Phase.RUNNING

    def test_a_report_that_claims_more_than_arrived_is_no_success(self, play: LifePlay) -> None:
        assert play >> text() << delivered("thinker", Text("Hi"))
        _ = (
            play
            >> done("thinker", outputs=2)
            << life.ReleaseStage("thinker")
            << terminal(
                "error",
                error=ErrorInfo("protocol_error", "thinker reported 2 outputs and 1 arrived", "thinker", None, False),
            )
        )
        assert play << life.AbortStage("talker") << life.AbortStage("code2wav") << life.StartAbortTimer()

    @pytest.mark.parametrize("reason", [None, "", "error", "tool_calls"])
    def test_nor_is_one_without_a_reason_that_exists(self, play: LifePlay, reason: str | None) -> None:
        report = life.StageFinished("talker", reason, None, {}, None, 0)
        _ = play >> report << life.ReleaseStage("talker") << terminal("error")
        assert play << life.AbortStage("thinker") << life.AbortStage("code2wav") << life.StartAbortTimer()

    def test_nor_is_one_of_a_stage_that_never_registered(self) -> None:
        """Its source would wait for it for ever."""
        play = LifePlay(pipeline(SPEECH).plan(None))
        assert play >> life.Bound() << life.SubmitStage("code2wav")
        _ = play >> done("code2wav", outputs=0) << life.ReleaseStage("code2wav") << terminal("error")
        assert play << life.ReleaseStage("thinker") << life.ReleaseStage("talker")

    def test_the_reason_of_a_stage_that_was_cut_short_is_the_requests(self, play: LifePlay) -> None:
        _ = play >> text() >> audio() << delivered("thinker", Text("Hi")) << delivered("code2wav", SOUND)
        assert play << life.StartGrace(CHAIN)
        for stage, reason in (("code2wav", "stop"), ("talker", "stop")):
            assert play >> done(stage, reason) << life.ReleaseStage(stage)
        assert play >> done("thinker", "length") << life.ReleaseStage("thinker") << terminal("length", stage="code2wav")


class TestC3DataIsNeverWithheld:
    def test_the_whole_text_is_there_while_audio_is_on_its_way(self, play: LifePlay) -> None:
        assert play >> text() << delivered("thinker", Text("Hi"), stage_finished=True)
        assert play >> audio(last=False) << delivered("code2wav", SOUND, stage_finished=False)

    def test_the_last_audio_is_there_while_a_report_is_awaited(self, play: LifePlay) -> None:
        _ = play >> text() << delivered("thinker", Text("Hi"))
        assert play >> audio() << delivered("code2wav", SOUND) << life.StartGrace(CHAIN)
        assert play.lifecycle.phase is life.Phase.RUNNING

    def test_the_terminal_is_a_message_of_its_own(self) -> None:
        """Outputs say that a stage's output has ended; only the terminal says that the request has."""
        assert "finish_reason" not in Delivery.__struct_fields__
        assert "content" not in Terminal.__struct_fields__
        play = RouterPlay(config("thinker:text"))
        assert play >> play.submits("alice") << to("thinker/0", SubmitStage)
        assert play >> play.registers("thinker/0", REQUEST)
        assert (
            play >> play.makes("thinker/0", REQUEST, 1, "Hi", last=True) << to("alice", Delivery, stage_finished=True)
        )
        assert play >> play.finishes("thinker/0", REQUEST, outputs=1) << to("alice", Terminal, stage="thinker")


class TestC4OneTerminalAndNothingAfterIt:
    def test_late_frames_are_dropped_and_counted(self, play: LifePlay) -> None:
        _ = play >> life.Failed(LATE) << terminal("error", error=LATE)
        for stage in CHAIN:
            _ = play << life.AbortStage(stage)
        assert play << life.StartAbortTimer()
        play.drops(text())
        play.drops(audio())
        play.ignores(life.AbortAsked())
        play.ignores(life.Failed(LATE))
        play.ignores(life.GraceExpired())
        for stage in CHAIN:
            assert play >> done(stage) << life.ReleaseStage(stage)
            play.drops(done(stage))
        assert play.lifecycle.settled

    def test_the_router_drops_and_counts_them_when_it_has_forgotten_the_request(self) -> None:
        play = RouterPlay(config("thinker:text"))
        assert play >> play.submits("alice") << to("thinker/0", SubmitStage)
        error = ErrorInfo("stage_error", "it broke", None, None, False)
        assert play >> play.finishes("thinker/0", REQUEST, None, error=error) << to("alice", Terminal)
        assert play >> play.makes("thinker/0", REQUEST, 1, "Hi") >> play.finishes("thinker/0", REQUEST)
        assert play.counts("late_frames") == 2
        assert play.is_empty()

    def test_an_output_that_comes_twice_is_delivered_once(self, play: LifePlay) -> None:
        assert play >> text(last=False) << delivered("thinker", Text("Hi"), False)
        play.drops(text(last=False))
        play.drops(text(last=True))

    @pytest.mark.parametrize("seq", [-1, 0, 3])
    def test_one_out_of_order_is_an_error_and_changes_nothing(self, play: LifePlay, seq: int) -> None:
        assert play >> text(last=False) << delivered("thinker", Text("Hi"), False)
        play.refuses(life.OutputArrived("thinker", seq, None, False), f"output {seq} of thinker is out of order")

    def test_so_is_one_after_the_last(self, play: LifePlay) -> None:
        assert play >> text() << delivered("thinker", Text("Hi"))
        play.refuses(life.OutputArrived("thinker", 2, None, False), "output 2 of thinker is out of order")


class TestC5AWithheldTerminal:
    @pytest.fixture
    def withheld(self, play: LifePlay) -> LifePlay:
        """All outputs are complete; code2wav has reported."""
        _ = play >> text() >> audio() << delivered("thinker", Text("Hi")) << delivered("code2wav", SOUND)
        assert play << life.StartGrace(CHAIN)
        assert play >> done("code2wav") << life.ReleaseStage("code2wav")
        return play

    def test_complete_outputs_stand_when_an_upstream_stage_fails(self, withheld: LifePlay) -> None:
        assert withheld >> done("thinker") << life.ReleaseStage("thinker")
        assert (
            withheld
            >> done("talker", error=BROKEN)
            << life.ReleaseStage("talker")
            << terminal(
                usage={"thinker": {"tokens": 1}, "code2wav": {"tokens": 1}}, usage_incomplete=("talker",), error=None
            )
        )

    def test_when_it_ends_without_having_been_asked(self, withheld: LifePlay) -> None:
        assert withheld >> done("talker", "abort") << life.ReleaseStage("talker")
        assert withheld >> done("thinker") << life.ReleaseStage("thinker") << terminal(usage_incomplete=("talker",))

    def test_when_its_replica_dies(self, withheld: LifePlay) -> None:
        assert withheld >> life.ReplicaLost("talker", "talker/0", "killed") << life.ReleaseStage("talker")
        assert withheld >> done("thinker") << life.ReleaseStage("thinker") << terminal(usage_incomplete=("talker",))

    def test_when_it_stays_silent(self, withheld: LifePlay) -> None:
        """It cannot wait for ever."""
        assert withheld >> done("thinker") << life.ReleaseStage("thinker")
        _ = withheld >> life.GraceExpired() << terminal(usage_incomplete=("talker",), error=None)
        assert withheld << life.AbortStage("talker") << life.StartAbortTimer()

    def test_one_that_failed_and_one_that_is_silent_are_both_named(self, withheld: LifePlay) -> None:
        assert withheld >> done("thinker", error=BROKEN) << life.ReleaseStage("thinker")
        _ = withheld >> life.GraceExpired() << terminal(usage_incomplete=("thinker", "talker"))
        assert withheld << life.AbortStage("talker") << life.StartAbortTimer()

    def test_when_the_deadline_passes_meanwhile(self, withheld: LifePlay) -> None:
        """The caller has all that it asked for: that is no `deadline_exceeded`."""
        _ = withheld >> life.Failed(LATE) << terminal(usage_incomplete=("thinker", "talker"), error=None)
        assert withheld << life.AbortStage("thinker") << life.AbortStage("talker") << life.StartAbortTimer()

    def test_a_stage_that_had_not_even_been_submitted_is_released(self) -> None:
        """`join` needs any of its inputs, so it is complete while `late` waits for `first`, which then fails."""
        stages = {"join": {"ready": "any"}}
        play = LifePlay(pipeline("early ~> join:audio; first ~> late ~> join", stages=stages).plan(None))
        assert play >> life.Bound() << life.SubmitStage("first") << life.SubmitStage("early")
        for stage in ("early", "first"):
            assert play >> life.Registered(stage)
        assert play >> life.RelayArrived("early", "join", b"x")
        _ = play >> done("early", outputs=0) << life.ReleaseStage("early")
        assert play << life.SubmitStage("join") << life.FeedStage("join", "early", b"x")
        assert play >> life.Registered("join")
        _ = play >> done("join", outputs=0) << life.Deliver("join", "audio", None, True) << life.ReleaseStage("join")
        assert play << life.StartGrace(("first",))
        _ = play >> done("first", error=BROKEN) << life.ReleaseStage("first") << terminal(usage_incomplete=("first",))
        assert play << life.ReleaseStage("late")
        assert play.lifecycle.settled

    def test_what_failed_is_not_handed_on_and_starts_nobody(self) -> None:
        stages = {"join": {"ready": "any"}}
        play = LifePlay(
            pipeline("early > join:audio; first ~> late > join; late ~> other:text", stages=stages).plan(["audio"])
        )
        assert play >> life.Bound() << life.SubmitStage("join") << life.SubmitStage("first")
        assert play >> life.Registered("first") >> life.RelayArrived("first", "late", b"x")
        assert play >> life.Registered("join") << life.SubmitStage("early")
        _ = play >> life.OutputArrived("join", 1, None, True) << life.Deliver("join", "audio", None, True)
        assert play << life.StartGrace(("early", "first", "join"))
        assert play >> done("first", error=BROKEN) << life.ReleaseStage("first")
        assert play >> life.Registered("early")
        assert play >> done("early", outputs=0) << life.ReleaseStage("early")
        _ = play >> done("join") << life.ReleaseStage("join") << terminal(usage_incomplete=("first",))
        assert play << life.ReleaseStage("late")

    def test_while_some_final_output_is_missing_the_error_is_the_requests(self, play: LifePlay) -> None:
        """What was delivered stands."""
        assert play >> text() << delivered("thinker", Text("Hi"))
        assert play >> done("thinker") << life.ReleaseStage("thinker")
        _ = play >> done("talker", error=BROKEN) << life.ReleaseStage("talker") << terminal("error", error=BROKEN)
        assert play << life.AbortStage("code2wav") << life.StartAbortTimer()

    def test_the_router_waits_terminal_grace_s(self) -> None:
        play = RouterPlay(config("thinker:text", router={"terminal_grace_s": 3.0, "abort_timeout_s": 2.0}))
        assert play >> play.submits("alice") << to("thinker/0", SubmitStage)
        assert play >> play.registers("thinker/0", REQUEST)
        assert play >> play.makes("thinker/0", REQUEST, 1, "Hi", last=True) << to("alice", Delivery)
        assert play.waits(2.9)
        _ = play.waits(0.1) << to("alice", Terminal, finish_reason="stop", usage_incomplete=["thinker"])
        assert play << to("thinker/0", AbortStage)
        assert play >> play.finishes("thinker/0", REQUEST, "abort")
        assert play.is_empty()


class TestC6Usage:
    def test_of_every_stage_with_what_went_over_its_edges(self) -> None:
        play = RouterPlay(config("thinker:text > voice:audio"))
        assert play >> play.submits("alice") << to("voice/0", SubmitStage)
        assert play >> play.registers("voice/0", REQUEST) << to("thinker/0", SubmitStage)
        assert play >> play.registers("thinker/0", REQUEST)
        edges = [EdgeCount("voice", 3, 300, 1, 2, 0), EdgeCount("other", 1, 5, 1, 2, 0)]
        thinker = play.finishes("thinker/0", REQUEST, usage={"completion_tokens": 7}, edges=edges)
        assert play >> thinker << to("alice", Delivery)
        sent = {"chunks_out": 4, "bytes_out": 305}
        sent |= {"chunks_to.voice": 3, "bytes_to.voice": 300, "chunks_to.other": 1, "bytes_to.other": 5}
        usage = {"thinker": {"completion_tokens": 7, **sent}, "voice": {"audio_s": 0.5}}
        voice = play.finishes("voice/0", REQUEST, usage={"audio_s": 0.5}, note="nothing to say")
        _ = play >> voice << to("alice", Delivery)
        assert play << to("alice", Terminal, usage=usage, usage_incomplete=[], notes={"voice": "nothing to say"})
