"""Facts and live answers laid over each other (T2): what each says alone, and how moments are told."""

from __future__ import annotations

import pytest
from support import trace_stories as stories
from support.live_stories import answer, came, chain, document, sent, stage
from support.trace_stories import fact, ns

from omnizmq.protocol import Value
from omnizmq.trace.facts import Fact
from omnizmq.trace.live import read
from omnizmq.trace.scene import Scene
from omnizmq.trace.timeline import Timeline

STARTED = stories.started()


def scene(facts: list[Fact], live: dict[str, object] | None = None) -> Scene:
    return Scene(Timeline(facts), read(live))


def test_moments_are_on_the_requests_clock_as_far_as_facts_tell_when_it_began() -> None:
    assert scene(STARTED).since(ns(5)) == "since 5.0 ms"
    assert scene(STARTED, chain()).since(ns(0)) == "for 10.0 s (since 0.0 ms)"
    assert scene(STARTED, chain()).since(ns(-1)) == "for 10.0 s"
    unknown = scene([], chain())
    assert (unknown.since(ns(8000)), unknown.at(ns(8000)), unknown.last_ns) == ("for 2.0 s", "2.0 s ago", ns(10_000))
    assert scene(STARTED, chain()).last_ns == ns(8)


def test_who_has_a_stage_is_known_from_either() -> None:
    facts = [*stories.asked(), *stories.bound(2)]
    assert scene(facts).nodes["talker"].replica == "talker/0"
    unbound = document(stages={"talker": stage("talker", replica=None)})
    assert scene(facts, unbound).nodes["talker"].replica == "talker/0"
    assert scene([], document(stages={"talker": stage("talker")})).nodes["talker"].replica == "talker/0"
    assert scene([], unbound).nodes["talker"].who == "talker"


@pytest.mark.parametrize(
    ("told", "given"),
    [
        (answer(), False),
        (answer(outputs=1), True),
        (answer(edges=[sent("x", 0, made=1)]), True),
        (answer(edges=[sent("x", 0), sent("y", 2, made=0)]), True),
        (answer(inputs=[came("x", 3)]), False),
    ],
)
def test_a_stage_has_given_something_when_its_worker_says_so(told: dict[str, object], given: bool) -> None:
    assert scene([], document(stages={"a": stage("a", told)})).nodes["a"].has_given is given


def test_the_last_chunk_counts_over_whichever_edge_it_went() -> None:
    two = answer(edges=[sent("x", 1, last_ms=50), sent("y", 1, last_ms=70)])
    assert scene([], document(stages={"a": stage("a", two)})).nodes["a"].sent_ns == ns(70)
    counts = [stories.edge(90, "thinker", target, 1, 1, last_ms) for target, last_ms in (("talker", 60), ("x", 80))]
    assert scene([*STARTED, *counts]).nodes["thinker"].sent_ns == ns(80)


def test_all_final_output_has_ended_as_the_router_says_or_as_facts_do() -> None:
    ended = [*STARTED, fact(90, "output_ended", "thinker")]
    assert not scene(ended).complete
    assert scene([*ended, fact(91, "output_ended", "code2wav")]).complete
    plan: dict[str, Value] = {"stages": "a", "all_stages": "a"}
    assert not scene([fact(1, "received", detail=plan)]).complete


def test_what_others_did_since_does_not_say_that_a_stage_went_on() -> None:
    parked = fact(85, "parked", "talker", {"to": "code2wav", "why": "credit"})
    others = [*STARTED, parked, fact(95, "output_ended", "thinker")]
    assert list(scene(others).nodes["talker"].parked) == ["code2wav"]
    assert not scene([*others, fact(96, "paused", "talker")]).nodes["talker"].parked


def test_a_replica_is_silent_whoever_tells_which_it_is() -> None:
    facts = [*stories.asked(), *stories.bound(2)]
    for one, live in ((facts, stage("talker", replica=None)), ([], stage("talker")), (facts, stage("talker"))):
        assert scene(one, document(stages={"talker": live}, silent=["talker/0"])).nodes["talker"].silent
        assert not scene(one, document(stages={"talker": live}, silent=["thinker/0"])).nodes["talker"].silent


def test_an_edge_over_which_nothing_went_was_used_at_no_time() -> None:
    nothing = fact(91, "edge", "thinker", {"to": "talker", "chunks": 0, "last_ns": 0})
    assert scene([*STARTED, nothing]).nodes["thinker"].sent_ns == 0


@pytest.mark.parametrize(
    ("parked_ms", "last_ms", "still"),
    [
        (8000, 9000, True),  # it went on in the end, and was parked for most of the time before
        (3000, 9000, False),
        (7500, 500, True),  # nothing was sent since, and it was parked all that time
        (3000, 500, False),
    ],
)
def test_an_edge_is_parked_at_the_end_as_its_count_tells(parked_ms: int, last_ms: float, still: bool) -> None:
    parked = fact(85, "parked", "thinker", {"to": "talker", "why": "credit"})
    count = stories.edge(8010, "thinker", "talker", 20, 41, last_ms)
    count.detail["parked_ns"] = parked_ms * 10**6
    over = Scene(Timeline([*STARTED, parked, count]), until_ns=ns(8000))
    assert bool(over.nodes["thinker"].parked) is still
