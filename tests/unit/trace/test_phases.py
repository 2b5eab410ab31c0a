"""Facts as stretches of time."""

from __future__ import annotations

import itertools
import random

import pytest
from support import trace_stories as story

from omnizmq.trace.facts import Fact
from omnizmq.trace.phases import Run, request_run, stage_runs
from omnizmq.trace.timeline import Timeline


def ms(at_ns: int) -> float:
    return (at_ns - story.BOOT_NS) / 1e6


def shown(run: Run) -> list[tuple[str, float, float]]:
    return [(phase.name, ms(phase.begin_ns), ms(phase.end_ns)) for phase in run.phases]


def of_stage(facts: list[Fact], stage: str, attempt: int = 1, until_ms: float = 1000) -> Run:
    runs = stage_runs(Timeline(facts), story.ns(until_ms))
    (found,) = [run for run in runs if run.story is not None and (run.story.name, run.attempt) == (stage, attempt)]
    return found


def of_request(facts: list[Fact], until_ms: float = 1000) -> Run:
    run = request_run(Timeline(facts), story.ns(until_ms))
    assert run is not None
    return run


def test_a_stage_is_cut_at_its_facts() -> None:
    run = of_stage(story.spoken(), "code2wav")
    assert shown(run) == [
        ("waits for submission", 2, 3),
        ("waits for registration", 3, 4),
        ("waits for input", 4, 61),
        ("waits for slot", 61, 62),
        ("runs without output", 62, 80),
        ("gives output", 80, 190),
        ("report awaited", 190, 199),
    ]
    assert run.ended
    assert run.story is not None
    assert run.story.who == "code2wav/0"


def test_a_live_stage_lasts_until_now() -> None:
    run = of_stage(story.started(), "talker", until_ms=500)
    assert shown(run)[-1] == ("waits for input", 4, 500)
    assert not run.ended


def test_a_fact_that_is_missing_is_not_made_up() -> None:
    facts = [fact for fact in story.spoken() if fact.event not in ("registered", "running")]
    assert [name for name, _, _ in shown(of_stage(facts, "talker"))] == [
        "waits for submission",
        "waits for registration",
        "waits for slot",
        "gives output",
        "runs without output",
    ]


def test_a_pause_interrupts_what_it_falls_into() -> None:
    facts = [*story.spoken(), story.fact(85, "paused", "code2wav"), story.fact(120, "resumed", "code2wav")]
    assert shown(of_stage(facts, "code2wav"))[4:] == [
        ("runs without output", 62, 80),
        ("gives output", 80, 85),
        ("paused", 85, 120),
        ("gives output", 120, 190),
        ("report awaited", 190, 199),
    ]


def test_after_a_pause_comes_what_the_stage_has_come_to_meanwhile() -> None:
    facts = [*story.spoken(), story.fact(85, "paused", "code2wav"), story.fact(195, "resumed", "code2wav")]
    assert shown(of_stage(facts, "code2wav"))[5:] == [
        ("gives output", 80, 85),
        ("paused", 85, 195),
        ("report awaited", 195, 199),
    ]


def test_a_pause_that_has_not_ended_lasts_to_the_end() -> None:
    facts = [*story.spoken(), story.fact(85, "paused", "code2wav")]
    assert shown(of_stage(facts, "code2wav"))[-1] == ("paused", 85, 199)


def test_a_pause_that_ended_before_anything_else_is_known_is_left_out() -> None:
    facts = [story.fact(at_ms, event, "code2wav") for at_ms, event in ((70, "paused"), (75, "resumed"))]
    facts += [story.fact(80, "first_output", "code2wav"), story.finished(90, "code2wav")]
    assert shown(of_stage(facts, "code2wav")) == [("gives output", 80, 90)]
    assert shown(of_stage([fact for fact in facts if fact.event != "resumed"], "code2wav"))[-1] == ("paused", 80, 90)


def test_a_step_that_is_out_of_order_counts_as_its_predecessor() -> None:
    facts = [story.fact(at_ms, event, "talker") for at_ms, event in ((5, "submitted"), (9, "registered"))]
    facts += [story.fact(7, "input_ready", "talker"), story.fact(12, "running", "talker"), story.finished(20, "talker")]
    assert shown(of_stage(facts, "talker")) == [
        ("waits for registration", 5, 9),
        ("waits for input", 9, 9),
        ("waits for slot", 9, 12),
        ("runs without output", 12, 20),
    ]


def test_a_stage_that_lost_its_replica_ends_then() -> None:
    facts = [*story.started(), story.fact(30, "replica_lost", "thinker", {"replica": "thinker/0", "reason": "x"})]
    run = of_stage(facts, "thinker")
    assert shown(run)[-2:] == [("runs without output", 8, 8), ("unknown", 8, 30)]
    assert run.ended


def test_what_is_not_known_of_a_stage_that_did_not_end_well_is_not_claimed() -> None:
    gave = [*story.started(), story.fact(40, "first_output", "thinker"), story.terminal(500, "error")]
    assert shown(of_stage(gave, "thinker"))[-2:] == [("gives output", 40, 40), ("unknown", 40, 500)]
    abort = story.fact(450, "finished", "thinker", {"finish_reason": "abort"})
    later = [*gave, story.fact(60, "last_output", "thinker", {"outputs": 3}), abort]
    assert shown(of_stage(later, "thinker"))[-2:] == [("gives output", 40, 60), ("unknown", 60, 450)]
    assert shown(of_stage([*gave, story.fact(60, "output_ended", "thinker")], "thinker"))[-1][0] == "report awaited"
    assert shown(of_stage([*gave, story.fact(60, "paused", "thinker"), abort], "thinker"))[-1][0] == "paused"


def test_what_ended_well_ran_on_after_its_last_output() -> None:
    assert shown(of_stage(story.spoken(), "talker"))[-2:] == [
        ("gives output", 60, 148),
        ("runs without output", 148, 150),
    ]


def test_a_stage_that_was_left_behind_ends_then() -> None:
    left = [story.fact(30, "abort_asked"), story.fact(80, "left_behind", "thinker", {"replica": "thinker/0"})]
    facts = [*story.started(), *left, story.terminal(81, "abort"), story.fact(900, "cleaned")]
    assert shown(of_stage(facts, "thinker"))[-1] == ("unknown", 8, 80)
    assert shown(of_stage(facts, "talker"))[-1] == ("unknown", 4, 900)


def test_a_stage_that_was_never_submitted_owes_no_report() -> None:
    facts = [*story.asked(), *story.bound(), story.terminal(50, "error"), story.fact(70, "cleaned")]
    assert shown(of_stage(facts, "talker")) == [("waits for submission", 2, 50)]
    again = [*story.asked(), *story.bound(), story.fact(30, "redriven", attempt=2)]
    assert shown(of_stage(again, "talker")) == [("waits for submission", 2, 30)]


def test_each_attempt_has_its_own() -> None:
    facts = story.redriven()
    assert shown(of_stage(facts, "talker"))[-1] == ("waits for input", 4, 50)
    assert shown(of_stage(facts, "talker", attempt=2))[0] == ("waits for submission", 60, 61)


def test_a_request_is_cut_at_what_its_client_and_the_router_did() -> None:
    waited = [story.fact(2, "queued", detail={"why": "full", "lacks": "talker"}), *story.bound(30)]
    end = [story.fact(60, "withheld", detail={"stages": "talker"}), story.terminal(80), story.fact(95, "cleaned")]
    assert shown(of_request([*story.asked(), *waited, *end])) == [
        ("arrives", 0, 1),
        ("is admitted", 1, 2),
        ("queued: full", 2, 30),
        ("runs", 30, 60),
        ("terminal withheld", 60, 80),
        ("cleans up", 80, 95),
    ]


def test_why_it_is_queued_may_change() -> None:
    queued = [story.fact(at_ms, "queued", detail={"why": why}) for at_ms, why in ((2, "behind"), (9, "full"))]
    run = of_request([*story.asked(), *queued], until_ms=40)
    assert shown(run)[2:] == [("queued: behind", 2, 9), ("queued: full", 9, 40)]
    assert not run.ended


def test_a_refused_request_has_arrived_alone() -> None:
    run = of_request([story.fact(0, "asked"), story.fact(1, "refused", detail={"code": "overloaded", "message": "x"})])
    assert shown(run) == [("arrives", 0, 1)]
    assert run.ended


def test_a_refusal_of_another_submission_with_its_id_ends_no_request() -> None:
    refused = story.fact(9, "refused", detail={"code": "invalid_request", "message": "taken"})
    assert not of_request([*story.started(), refused]).ended
    end = Timeline([*story.spoken(), refused]).end
    assert end is not None
    assert end.event == "terminal"


def test_without_facts_there_is_nothing() -> None:
    assert request_run(Timeline([]), 5) is None
    assert stage_runs(Timeline([]), 5) == []


@pytest.mark.parametrize("seed", range(50))
def test_any_part_of_the_facts_is_cut_without_gap_or_overlap(seed: int) -> None:
    chance = random.Random(seed)
    whole = [*story.redriven(), *story.spoken(), story.fact(85, "paused", "code2wav"), story.fact(99, "cleaned")]
    whole += [story.fact(chance.uniform(0, 300), "resumed", "code2wav"), story.fact(70, "abort_asked")]
    timeline = Timeline(chance.sample(whole, chance.randint(1, len(whole))))
    until_ns = timeline.facts[-1].at_ns
    runs = [*stage_runs(timeline, until_ns), request_run(timeline, until_ns)]
    for run in filter(None, runs):
        assert run.phases
        assert all(phase.begin_ns <= phase.end_ns for phase in run.phases)
        assert all(one.end_ns == other.begin_ns for one, other in itertools.pairwise(run.phases))
        assert run.end_ns <= until_ns


def test_of_what_is_over_without_an_end_nothing_is_claimed_after_its_last_fact() -> None:
    facts = [*story.started(), story.fact(20, "first_output", "thinker")]
    (live,) = [run for run in stage_runs(Timeline(facts), story.ns(100)) if run.story and run.story.name == "thinker"]
    (over,) = [
        run for run in stage_runs(Timeline(facts), story.ns(100), over=1) if run.story and run.story.name == "thinker"
    ]
    assert shown(live)[-1] == ("gives output", 20, 100)
    assert shown(over)[-2:] == [("gives output", 20, 20), ("unknown", 20, 100)]
    assert not over.ended
