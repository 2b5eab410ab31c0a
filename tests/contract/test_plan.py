"""P1-P5: what a request's modalities select, and what each mode of an edge means in the router."""

from __future__ import annotations

import pytest
from support.pipelines import JOIN, SPEECH, config, pipeline
from support.playbook import LifePlay, RouterPlay, rid, terminal, to

from omnizmq.errors import InvalidRequestError
from omnizmq.protocol import (
    AbortStage,
    Delivery,
    FeedStage,
    Refused,
    RelayContent,
    SubmitStage,
    Terminal,
    Text,
)
from omnizmq.router import lifecycle as life

REQUEST = rid("demo")


class TestP1TwoFacts:
    @pytest.mark.parametrize(
        ("graph", "asked", "final", "last"),
        [
            (SPEECH, ["text"], {"thinker"}, "thinker"),
            (SPEECH, ["audio"], {"code2wav"}, "code2wav"),
            (SPEECH, ["audio", "text"], {"thinker", "code2wav"}, "code2wav"),
            ("a:text > b:text > c", ["text"], {"a", "b"}, "b"),
            ("a:audio > b; a > c:text", ["text", "audio"], {"a", "c"}, "c"),
            ("root > second:text; root > first:audio", None, {"first", "second"}, "first"),
            ("last:text; early > last; alone:audio", None, {"last", "alone"}, "last"),
        ],
    )
    def test_all_final_stages_of_a_type_and_the_last_of_them(
        self, graph: str, asked: list[str] | None, final: set[str], last: str
    ) -> None:
        """Ties of depth go by the order in the configuration: of two, the later one is last."""
        plan = pipeline(graph).plan(asked)
        assert plan.final_stages == final
        assert plan.last_stage == last

    def test_the_terminal_is_of_the_last_stage_though_another_one_ends_later(self) -> None:
        play = LifePlay(pipeline("thinker:text > voice:audio").plan(None))
        assert (
            play >> life.Bound() >> life.Registered("voice") << life.SubmitStage("voice") << life.SubmitStage("thinker")
        )
        assert play >> life.Registered("thinker")
        assert play >> done("voice") << life.Deliver("voice", "audio", None, True) << life.ReleaseStage("voice")
        assert (
            play
            >> done("thinker")
            << life.Deliver("thinker", "text", None, True)
            << life.ReleaseStage("thinker")
            << terminal(stage="voice", modality="audio")
        )


def done(stage: str, outputs: int = 0) -> life.StageFinished:
    return life.StageFinished(stage, "stop", None, {}, None, outputs)


class TestP2Modalities:
    @pytest.mark.parametrize("asked", [["smell"], ["text", "smell"], ["Text"], [""]])
    def test_one_that_does_not_exist_is_refused_and_those_that_do_are_named(self, asked: list[str]) -> None:
        play = RouterPlay(config(SPEECH))
        refused = to("alice", Refused, request_id=REQUEST)
        assert play >> play.submits("alice", modalities=asked) << refused
        assert play.is_empty()
        with pytest.raises(InvalidRequestError, match=r"this deployment has text, audio$"):
            play.core.pipeline.plan(asked)

    @pytest.mark.parametrize("asked", [None, []])
    def test_none_asked_for_means_all(self, asked: list[str] | None) -> None:
        assert pipeline(SPEECH).plan(asked).final_stages == {"thinker", "code2wav"}

    def test_one_that_no_stage_of_this_pipeline_makes_is_unknown_here(self) -> None:
        with pytest.raises(InvalidRequestError, match=r"unknown modality 'audio': this deployment has text$"):
            pipeline("thinker:text > talker").plan(["audio"])


class TestP3WhatRuns:
    def test_text_alone_never_reaches_the_talker(self) -> None:
        play = RouterPlay(config(SPEECH))
        assert (
            play >> play.submits("alice", modalities=["text"]) << to("thinker/0", SubmitStage, targets=[], final=True)
        )
        assert play >> play.registers("thinker/0", REQUEST)
        assert play >> play.makes("thinker/0", REQUEST, 1, "Hi", last=True) << to("alice", Delivery)
        assert play >> play.finishes("thinker/0", REQUEST, outputs=1) << to("alice", Terminal, stage="thinker")
        assert {fact.stage for fact in play.facts} == {None, "thinker"}
        assert play.is_empty()

    @pytest.mark.parametrize(
        ("graph", "asked", "runs"),
        [
            (JOIN, ["audio"], ("left", "right", "join")),
            (JOIN, ["text"], ("left",)),
            ("a > b:text; a > c:audio; c > d; e", ["text"], ("a", "b")),
            ("a > b > d:text; a > c > d; d > e:audio", ["text"], ("a", "b", "c", "d")),
            ("a:text; b > a; c > b; d > a", None, ("c", "d", "b", "a")),
        ],
    )
    def test_final_stages_and_what_they_depend_on_on_any_acyclic_graph(
        self, graph: str, asked: list[str] | None, runs: tuple[str, ...]
    ) -> None:
        assert pipeline(graph).plan(asked).names == runs


class TestP4OnlyWhatWasAskedFor:
    def test_audio_alone_delivers_no_text_though_the_thinker_runs(self) -> None:
        play = RouterPlay(config(SPEECH))
        assert play >> play.submits("alice", modalities=["audio"]) << to("code2wav/0", SubmitStage, final=True)
        assert play >> play.registers("code2wav/0", REQUEST) << to("talker/0", SubmitStage, final=False)
        assert play >> play.registers("talker/0", REQUEST) << to("thinker/0", SubmitStage, final=False)

    def test_an_output_that_comes_all_the_same_is_not_delivered_and_fails_the_request(self) -> None:
        play = LifePlay(pipeline(SPEECH).plan(["audio"]))
        for event in (life.Bound(), life.Registered("code2wav"), life.Registered("talker")):
            _ = play >> event
        _ = play << life.SubmitStage("code2wav") << life.SubmitStage("talker") << life.SubmitStage("thinker")
        play.refuses(life.OutputArrived("thinker", 1, Text("Hi"), False), "thinker is no final stage of this request")


class TestP5EveryEdgeHasItsMode:
    @pytest.mark.parametrize("arrow", [">", "=>"])
    def test_a_receiver_on_a_chunk_or_payload_edge_is_registered_early(self, arrow: str) -> None:
        play = LifePlay(pipeline(f"a:text {arrow} b:audio").plan(None))
        assert play >> life.Bound() << life.SubmitStage("b")
        assert play >> life.Registered("b") << life.SubmitStage("a")

    def test_a_relay_receiver_is_submitted_with_the_whole_output_when_its_upstream_has_finished(self) -> None:
        play = LifePlay(pipeline("a:text ~> b:audio").plan(None))
        assert play >> life.Bound() << life.SubmitStage("a")
        assert play >> life.Registered("a") >> life.RelayArrived("a", "b", b"\xc1 never decoded")
        assert (
            play
            >> done("a")
            << life.Deliver("a", "text", None, True)
            << life.ReleaseStage("a")
            << life.SubmitStage("b")
            << life.FeedStage("b", "a", b"\xc1 never decoded")
        )

    def test_edges_of_one_stage_keep_their_own_modes(self) -> None:
        """Registered early for its chunk edge, fed over its relay edge later."""
        play = LifePlay(pipeline("a > join:audio; b ~> join").plan(None))
        assert play >> life.Bound() << life.SubmitStage("join") << life.SubmitStage("b")
        assert play >> life.Registered("join") << life.SubmitStage("a")
        assert play >> life.Registered("b") >> life.RelayArrived("b", "join", b"x")
        assert play >> done("b") << life.ReleaseStage("b") << life.FeedStage("join", "b", b"x")

    def test_the_relay_waits_for_a_receiver_that_is_not_submitted_yet(self) -> None:
        play = LifePlay(pipeline("a > join > end:audio; b ~> join").plan(None))
        assert play >> life.Bound() << life.SubmitStage("end") << life.SubmitStage("b")
        assert play >> life.Registered("b") >> life.RelayArrived("b", "join", b"x")
        assert play >> done("b") << life.ReleaseStage("b")
        assert play >> life.Registered("end") << life.SubmitStage("join") << life.FeedStage("join", "b", b"x")

    @pytest.mark.parametrize("ready", ["all", "any"])
    def test_with_several_relays_all_or_any_start_the_receiver(self, ready: str) -> None:
        graph = pipeline("a ~> join:audio; b ~> join", stages={"join": {"ready": ready}})
        play = LifePlay(graph.plan(None))
        assert play >> life.Bound() << life.SubmitStage("b") << life.SubmitStage("a")
        for stage in "ab":
            assert play >> life.Registered(stage) >> life.RelayArrived(stage, "join", stage.encode())
        both = [life.FeedStage("join", "a", b"a"), life.FeedStage("join", "b", b"b")]
        _ = play >> done("b") << life.ReleaseStage("b")
        if ready == "any":
            _ = play << life.SubmitStage("join") << both.pop()
        assert play
        _ = play >> done("a") << life.ReleaseStage("a")
        if ready == "all":
            _ = play << life.SubmitStage("join")
        for feed in both:
            _ = play << feed
        assert play

    def test_what_is_over_relay_max_bytes_fails_its_stage(self) -> None:
        play = RouterPlay(config("a:text ~> b:audio", router={"relay_max_bytes": 4}))
        assert play >> play.submits("alice") << to("a/0", SubmitStage)
        assert play >> play.registers("a/0", REQUEST)
        large = play.worker("a/0", RelayContent, request_id=REQUEST, attempt=1, target="b", data=b"12345")
        _ = play >> large << to("alice", Terminal, finish_reason="error", stage="b")
        assert play << to("a/0", AbortStage)

    def test_what_is_not_is_handed_on(self) -> None:
        play = RouterPlay(config("a:text ~> b:audio", router={"relay_max_bytes": 4}))
        assert play >> play.submits("alice") << to("a/0", SubmitStage)
        assert play >> play.registers("a/0", REQUEST)
        assert play >> play.worker("a/0", RelayContent, request_id=REQUEST, attempt=1, target="b", data=b"1234")
        _ = play >> play.finishes("a/0", REQUEST) << to("alice", Delivery, stage="a", stage_finished=True)
        assert play << to("b/0", SubmitStage) << to("b/0", FeedStage, source="a", data=b"1234")

    def test_a_success_without_the_content_that_it_owes_is_none(self) -> None:
        play = LifePlay(pipeline("a ~> b:audio").plan(None))
        assert play >> life.Bound() >> life.Registered("a") << life.SubmitStage("a")
        _ = play >> done("a") << life.ReleaseStage("a") << terminal("error")
        assert play << life.ReleaseStage("b")
