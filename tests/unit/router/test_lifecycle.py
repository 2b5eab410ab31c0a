"""One request's life, beside its contract (`tests/contract`) and its properties: what else it promises."""

from __future__ import annotations

from support.pipelines import SPEECH, pipeline
from support.playbook import LifePlay, terminal

from omnizmq.protocol import ErrorInfo, Text
from omnizmq.router import lifecycle as life

LATE = ErrorInfo("deadline_exceeded", "too late", None, None, False)


def done(stage: str, **fields: object) -> life.StageFinished:
    report = {"error": None, "usage": {}, "note": None, "outputs": 0} | fields
    return life.StageFinished(stage, "stop", **report)


class TestStory:
    def test_an_error_tells_what_every_stage_has_done(self) -> None:
        play = LifePlay(pipeline(SPEECH).plan(None))
        assert (
            play
            >> life.Bound()
            >> life.Registered("code2wav")
            << life.SubmitStage("code2wav")
            << life.SubmitStage("talker")
        )
        story = "demo-0 running: thinker[-] talker[submitted] code2wav[submitted,registered]"
        assert play.lifecycle.story() == story
        play.refuses(life.Registered("thinker"), "thinker was not submitted")


class TestBeforeItIsBound:
    def test_no_stage_can_report(self) -> None:
        play = LifePlay(pipeline(SPEECH).plan(None))
        play.refuses(life.Registered("code2wav"), "code2wav was not submitted")
        play.refuses(life.ReplicaLost("code2wav", "code2wav/0", "killed"), "code2wav is not bound")

    def test_timers_mean_nothing(self) -> None:
        play = LifePlay(pipeline(SPEECH).plan(None))
        play.ignores(life.AbortTimedOut())
        play.ignores(life.GraceExpired())

    def test_it_can_fail(self) -> None:
        play = LifePlay(pipeline("thinker:text").plan(None))
        assert play >> life.Failed(LATE) << terminal("error", error=LATE) << life.ReleaseStage("thinker")
        assert play.lifecycle.settled
        play.refuses(life.Bound(), "bound twice")
        play.ignores(life.ReplicaLost("thinker", "thinker/0", "killed"))


class TestRelays:
    def test_one_that_comes_twice_is_dropped_and_the_first_one_counts(self) -> None:
        play = LifePlay(pipeline("a ~> b:audio").plan(None))
        assert play >> life.Bound() >> life.Registered("a") << life.SubmitStage("a")
        assert play >> life.RelayArrived("a", "b", b"first")
        play.drops(life.RelayArrived("a", "b", b"second"))
        _ = play >> done("a") << life.ReleaseStage("a") << life.SubmitStage("b") << life.FeedStage("b", "a", b"first")
        assert play
        play.drops(life.RelayArrived("a", "b", b"third"))

    def test_what_was_handed_on_is_not_kept(self) -> None:
        """It may be 32 MiB, and the request may go on for minutes."""
        play = LifePlay(pipeline("a ~> b:audio").plan(None))
        assert (
            play
            >> life.Bound()
            >> life.Registered("a")
            >> life.RelayArrived("a", "b", b"large")
            << life.SubmitStage("a")
        )
        _ = play >> done("a") << life.ReleaseStage("a") << life.SubmitStage("b") << life.FeedStage("b", "a", b"large")
        assert play
        assert "large" not in repr(vars(play.lifecycle))

    def test_a_receiver_that_has_finished_is_not_fed(self) -> None:
        play = LifePlay(pipeline("a > join:audio; b ~> join", stages={"join": {"ready": "any"}}).plan(None))
        assert play >> life.Bound() << life.SubmitStage("join") << life.SubmitStage("b")
        assert play >> life.Registered("join") >> life.Registered("b") << life.SubmitStage("a")
        _ = play >> done("join") << life.Deliver("join", "audio", None, True) << life.ReleaseStage("join")
        assert play << life.StartGrace(("a", "b"))
        assert play >> life.RelayArrived("b", "join", b"x")
        assert play >> done("b") << life.ReleaseStage("b")

    def test_an_edge_that_is_none_or_no_relay_is_refused(self) -> None:
        play = LifePlay(pipeline("a > b:audio").plan(None))
        assert play >> life.Bound() >> life.Registered("b") << life.SubmitStage("b") << life.SubmitStage("a")
        play.refuses(life.RelayArrived("a", "b", b"x"), "no relay edge from a to b")
        play.refuses(life.RelayArrived("a", "nobody", b"x"), "no relay edge from a to nobody")
        play.refuses(life.RelayArrived("b", "a", b"x"), "no relay edge from b to a")


class TestDelivered:
    def test_it_counts_what_the_caller_was_sent_marks_of_ends_too(self) -> None:
        play = LifePlay(pipeline("thinker:text").plan(None))
        assert play >> life.Bound() >> life.Registered("thinker") << life.SubmitStage("thinker")
        output = life.OutputArrived("thinker", 1, Text("a"), False)
        assert play >> output << life.Deliver("thinker", "text", Text("a"), False)
        assert play.lifecycle.delivered["thinker"].sent == 1
        _ = play >> done("thinker", outputs=1) << life.Deliver("thinker", "text", None, True)
        assert play << life.ReleaseStage("thinker") << terminal()
        assert play.lifecycle.delivered["thinker"].sent == 2

    def test_an_output_that_says_nothing_is_no_delivery(self) -> None:
        play = LifePlay(pipeline("thinker:text").plan(None))
        assert play >> life.Bound() >> life.Registered("thinker") << life.SubmitStage("thinker")
        assert play >> life.OutputArrived("thinker", 1, None, False) << life.PassOver("thinker")
        assert play.lifecycle.delivered["thinker"].credit == 1, "nobody will ever read it"


class TestAnotherAttempt:
    """F2: a loss is answered by whoever knows the replicas; a lifecycle is one attempt."""

    def lost(self) -> LifePlay:
        play = LifePlay(pipeline("thinker:text > voice:audio").plan(None))
        assert (
            play >> life.Bound() >> life.Registered("voice") << life.SubmitStage("voice") << life.SubmitStage("thinker")
        )
        gone = life.ReplicaLost("thinker", "thinker/0", "killed")
        error = ErrorInfo("replica_lost", "thinker/0 died: killed", "thinker", "thinker/0", True)
        assert play >> gone << life.ReleaseStage("thinker") << life.Redrive(error)
        return play

    def test_what_still_computes_is_aborted_behind_it_and_there_is_no_terminal(self) -> None:
        play = self.lost()
        assert play >> life.Superseded() << life.AbortStage("voice") << life.StartAbortTimer()
        play.drops(life.OutputArrived("voice", 1, None, True))
        assert not play.lifecycle.settled
        assert play >> done("voice") << life.ReleaseStage("voice")
        assert play.lifecycle.settled
        play.refuses(life.Superseded(), "superseded without having asked for it")

    def test_what_does_not_confirm_is_left_behind(self) -> None:
        play = self.lost()
        assert play >> life.Superseded() << life.AbortStage("voice") << life.StartAbortTimer()
        assert play >> life.AbortTimedOut() << life.LeaveBehind("voice")
        assert play.lifecycle.settled

    def test_where_none_follows_the_loss_is_the_requests_error(self) -> None:
        play = self.lost()
        _ = play >> life.Failed(LATE) << terminal("error", error=LATE)
        assert play << life.AbortStage("voice") << life.StartAbortTimer()

    def test_one_that_waits_for_its_replicas_says_which_stages_ran_before(self) -> None:
        plan = pipeline("thinker:text > voice:audio").plan(None)
        lifecycle = life.Lifecycle("demo-0", plan, None, ("voice",))
        ended = lifecycle.handle(life.AbortAsked())[-1]
        assert ended == terminal("abort", usage={}, usage_incomplete=("voice",))


class TestAfterTheEnd:
    def test_a_stage_that_does_not_confirm_is_left_behind_and_what_it_says_is_dropped(self) -> None:
        play = LifePlay(pipeline("thinker:text").plan(None))
        assert play >> life.Bound() << life.SubmitStage("thinker")
        _ = play >> life.Failed(LATE) << terminal("error") << life.AbortStage("thinker") << life.StartAbortTimer()
        assert play
        assert not play.lifecycle.settled
        assert play >> life.AbortTimedOut() << life.LeaveBehind("thinker")
        assert play.lifecycle.settled
        play.ignores(life.AbortTimedOut())
        play.drops(done("thinker"))

    def test_a_replica_that_dies_behind_it_is_no_second_end(self) -> None:
        play = LifePlay(pipeline("thinker:text").plan(None))
        assert play >> life.Bound() << life.SubmitStage("thinker")
        _ = play >> life.Failed(LATE) << terminal("error") << life.AbortStage("thinker") << life.StartAbortTimer()
        assert play
        assert play >> life.ReplicaLost("thinker", "thinker/0", "killed") << life.ReleaseStage("thinker")
        assert play.lifecycle.settled
