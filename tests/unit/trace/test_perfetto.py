"""A Perfetto trace of requests, read back by Perfetto's own schema."""

from __future__ import annotations

import random

import msgspec
import pytest
from support import trace_stories as story
from support.perfetto_trace import decoded

from omnizmq.trace import perfetto
from omnizmq.trace.facts import Fact

OTHER = "other-fedcba9876543210"


def later(facts: list[Fact], by_ms: float, request_id: str) -> list[Fact]:
    """The same for another request, so much later."""
    return [
        msgspec.structs.replace(
            fact,
            request_id=request_id,
            external_id=request_id.rpartition("-")[0],
            at_ns=fact.at_ns + round(by_ms * 1e6),
            detail={
                key: value + round(by_ms * 1e6) if key.endswith("_ns") and isinstance(value, int) else value
                for key, value in fact.detail.items()
            },
        )
        for fact in facts
    ]


def chunks(source: str, target: str, *moments: tuple[float, float]) -> list[Fact]:
    """Each chunk's departure and arrival."""
    return [
        fact
        for seq, (sent_ms, came_ms) in enumerate(moments, 1)
        for fact in (
            story.fact(sent_ms, "chunk_sent", source, {"to": target, "seq": seq, "bytes": 256}),
            story.fact(came_ms, "chunk_came", target, {"from": source, "seq": seq}),
        )
    ]


def test_a_request_is_a_slice_on_its_own_track_and_on_each_replicas() -> None:
    trace = decoded(perfetto.encode([story.spoken()], deployment="omni"))
    assert trace.process == "omni"
    assert list(trace.tracks) == ["requests", "thinker/0", "talker/0", "code2wav/0"]
    assert all(track.names(0) == ["demo"] for track in trace.tracks.values())
    assert trace.tracks["requests"].names(1) == ["arrives", "is admitted", "runs", "cleans up"]
    talker = trace.tracks["talker/0"]
    assert talker.names(1)[2:5] == ["waits for input", "waits for slot", "runs without output"]
    waits = talker.slice("waits for input")
    assert (waits.begin_ns, waits.end_ns) == (story.ns(4), story.ns(41))


def test_slices_bear_the_three_ids_and_how_they_ended() -> None:
    trace = decoded(perfetto.encode([story.spoken()]))
    notes = trace.tracks["code2wav/0"].slice("demo").notes
    engine_id = next(fact.engine_id for fact in story.spoken() if fact.stage == "code2wav")
    assert notes == {
        "request_id": story.REQUEST,
        "external_id": "demo",
        "engine_id": engine_id,
        "attempt": 1,
        "stage": "code2wav",
        "replica": "code2wav/0",
        "finish_reason": "stop",
        "outputs": 4,
    }
    assert trace.tracks["requests"].slice("demo").notes["finish_reason"] == "stop"


def test_a_flow_leads_along_each_edge() -> None:
    trace = decoded(perfetto.encode([story.spoken()]))
    assert trace.flows == [
        (("thinker/0", "first chunk to talker"), ("talker/0", "waits for slot")),
        (("talker/0", "first chunk to code2wav"), ("code2wav/0", "waits for slot")),
    ]
    first = next(one for one in trace.tracks["thinker/0"].instants if one.name == "first chunk to talker")
    assert first.at_ns == story.ns(40.5)


def test_with_chunks_traced_a_flow_leads_from_each_departure_to_its_arrival() -> None:
    traced = chunks("thinker", "talker", (40.5, 41), (50, 52), (60, 300))
    trace = decoded(perfetto.encode([[*story.spoken(), *traced[:-1]]]))  # the third has not come
    sent, came = ("thinker/0", "chunk_sent thinker"), ("talker/0", "chunk_came talker")
    assert [flow for flow in trace.flows if flow[0] == sent] == [(sent, came)] * 2
    assert [flow[0][1] for flow in trace.flows] == ["chunk_sent thinker"] * 2 + ["first chunk to code2wav"]
    assert [one.notes["seq"] for one in trace.tracks["thinker/0"].instants if "seq" in one.notes] == [1, 2, 3]


def test_no_flow_leads_to_a_consumer_that_was_ready_before_or_never() -> None:
    facts = [fact for fact in story.spoken() if fact.event != "edge"]
    early = [story.edge(91, "thinker", "talker", 8, 45, 88), story.edge(150, "talker", "elsewhere", 1, 60, 148)]
    trace = decoded(perfetto.encode([[*facts, *early]]))
    assert trace.flows == []
    assert "first chunk to talker" in [one.name for one in trace.tracks["thinker/0"].instants]


def test_requests_that_overlap_get_lanes_below_their_replicas_track() -> None:
    three = [story.spoken(), later(story.spoken(), 50, OTHER), later(story.spoken(), 400, "third-0000000000000003")]
    trace = decoded(perfetto.encode(three))
    assert list(trace.tracks) == [
        *("requests", "requests (2)", "thinker/0", "thinker/0 (2)"),
        *("talker/0", "talker/0 (2)", "code2wav/0", "code2wav/0 (2)"),
    ]
    assert trace.tracks["talker/0"].names(0) == ["demo", "third"]
    assert trace.tracks["talker/0 (2)"].names(0) == ["other"]
    ranks = [track.rank for track in trace.tracks.values()]
    assert ranks == sorted(ranks)
    assert trace.tracks["talker/0"].parent == trace.tracks["code2wav/0"].parent
    assert trace.tracks["talker/0 (2)"].parent != trace.tracks["talker/0"].parent
    assert len(trace.flows) == 6


def test_replicas_come_in_the_order_of_the_pipeline_and_of_their_numbers() -> None:
    def bound(stage: str, replica: str, request_id: str) -> Fact:
        return msgspec.structs.replace(
            story.fact(5, "bound", stage, request_id=request_id), detail={"replica": replica}
        )

    known = [*story.asked(), bound("talker", "talker/10", story.REQUEST), bound("thinker", "thinker/1", story.REQUEST)]
    trace = decoded(perfetto.encode([[bound("talker", "talker/2", OTHER)], known]))
    assert list(trace.tracks) == ["requests", "thinker/1", "talker/2", "talker/10"]


def test_other_facts_are_instants_where_they_belong() -> None:
    detail = {"to": "code2wav", "replica": "code2wav/0", "why": "ring", "held_bytes": 1 << 63, "share": 0.5, "no": None}
    facts = [*story.spoken(), story.fact(100, "parked", "talker", {**detail, "ok": True, "least": -(1 << 63)})]
    facts.append(msgspec.structs.replace(story.fact(110, "delivered", "code2wav"), owner="router"))
    trace = decoded(perfetto.encode([facts]))
    (parked,) = [one for one in trace.tracks["talker/0"].instants if one.name == "parked talker"]
    assert parked.at_ns == story.ns(100)
    assert parked.notes == {
        "owner": "talker/0",
        **{key: value for key, value in detail.items() if key != "no"},
        "ok": True,
        "least": -(1 << 63),
    }
    assert [one.name for one in trace.tracks["requests"].instants] == ["delivered code2wav", "terminal code2wav"]


def test_a_second_attempt_is_a_slice_of_its_own() -> None:
    trace = decoded(perfetto.encode([story.redriven()]))
    assert trace.tracks["talker/0"].names(0) == ["demo", "demo (attempt 2)"]
    assert trace.tracks["talker/0"].slice("demo").notes["error_code"] == "replica_lost"


def test_a_live_request_lasts_until_now_and_says_that_it_has_not_ended() -> None:
    trace = decoded(perfetto.encode([story.started()], now_ns=story.ns(700)))
    for place in ("requests", "talker/0"):
        live = trace.tracks[place].slice("demo")
        assert (live.end_ns, live.notes["ended"]) == (story.ns(700), False)


def test_a_live_request_lasts_as_long_as_the_others_are_told_of() -> None:
    trace = decoded(perfetto.encode([story.started(), later(story.spoken(), 100, OTHER)]))
    assert trace.tracks["requests"].slice("demo").end_ns == story.ns(300)
    assert "ended" not in trace.tracks["requests (2)"].slice("other").notes


def test_a_refused_request_is_on_its_track_alone() -> None:
    refused = story.fact(1, "refused", detail={"code": "overloaded", "message": "no room"})
    trace = decoded(perfetto.encode([[story.fact(0, "asked"), refused]]))
    assert list(trace.tracks) == ["requests"]
    assert trace.tracks["requests"].slice("demo").notes["code"] == "overloaded"
    assert [one.name for one in trace.tracks["requests"].instants] == ["refused"]


@pytest.mark.parametrize("requests", [[], [[]]])
def test_without_facts_there_is_an_empty_trace(requests: list[list[Fact]]) -> None:
    assert decoded(perfetto.encode(requests)).tracks == {}


def test_a_time_before_the_boot_is_taken_as_the_boot() -> None:
    asked = msgspec.structs.replace(story.fact(0, "asked"), at_ns=-5)
    trace = decoded(perfetto.encode([[asked, *story.spoken()[1:]]]))
    assert trace.tracks["requests"].slice("demo").begin_ns == 0


@pytest.mark.parametrize("seed", range(60))
def test_any_part_of_any_facts_makes_a_good_trace(seed: int) -> None:
    chance = random.Random(seed)
    requests = []
    for number in range(chance.randint(1, 6)):
        facts = [*chance.choice((story.spoken, story.redriven, story.started))()]
        facts += chunks("talker", "code2wav", *((chance.uniform(40, 90), chance.uniform(90, 150)) for _ in range(5)))
        facts += [story.fact(chance.uniform(0, 300), chance.choice(("paused", "resumed")), "code2wav")] * 2
        facts += [story.fact(chance.uniform(0, 300), "replica_lost", "talker"), story.fact(400, "cleaned")]
        part = chance.sample(facts, chance.randint(0, len(facts)))
        requests.append(later(part, chance.uniform(0, 400), f"r{number}-000000000000000{number}"))
    decoded(perfetto.encode(requests))
