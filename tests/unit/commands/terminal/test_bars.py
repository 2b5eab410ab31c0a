"""What a stage did, cell by cell (T1)."""

from __future__ import annotations

import pytest
from support import trace_stories as stories

from omnizmq.commands.terminal.bars import BLOCKS, Axis, bar
from omnizmq.trace.events import STAGE_PHASES
from omnizmq.trace.facts import Fact
from omnizmq.trace.phases import Phase, Run, stage_runs
from omnizmq.trace.timeline import Timeline


def drawn(
    facts: list[Fact],
    stage: str = "thinker",
    end_ms: float = 100.0,
    cells: int = 10,
    *,
    over: bool = False,
    now: tuple[float, str] | None = None,
) -> str:
    """Of the stage's first attempt."""
    timeline = Timeline(facts)
    runs = stage_runs(timeline, stories.ns(end_ms), over=timeline.attempt if over else 0)
    run = next((one for one in runs if one.story is not None and (one.story.name, one.attempt) == (stage, 1)), None)
    return bar(run, Axis(timeline.zero_ns, end_ms, cells), now=now)


def test_a_stage_that_ended_without_an_output_never_gives_one() -> None:
    facts = [*stories.started(), stories.finished(50, "talker", outputs=0), stories.finished(100, "thinker", outputs=0)]
    assert drawn(facts, "talker", cells=20) == "··········          "
    assert drawn(facts, cells=20) == " ·░░░░░░░░░░░░░░░░░░"


def test_no_duration_is_blank() -> None:
    assert drawn([stories.fact(0, "submitted", "thinker")], end_ms=0.0).strip() == ""


def test_what_is_over_within_a_cell_still_has_that_cell() -> None:
    facts = [stories.fact(0, "asked"), stories.fact(12, "submitted", "thinker"), stories.finished(13, "thinker")]
    assert drawn(facts) == " ·        "


def test_input_alone_is_no_computing() -> None:
    """It may wait for a slot."""
    facts = [stories.fact(0, "submitted", "talker"), stories.fact(20, "input_ready", "talker")]
    assert drawn(facts, "talker") == "··········"


def test_b1_the_first_time_that_a_caller_has_to_read() -> None:
    facts = [
        *stories.started(),
        stories.fact(20, "first_output", "thinker"),
        stories.fact(40, "paused", "thinker"),
        stories.fact(80, "resumed", "thinker"),
    ]
    assert drawn(facts) == "·░██▒▒▒▒██"


def test_f2_a_replica_that_dies_ends_its_bar() -> None:
    facts = [*stories.started(), stories.fact(50, "replica_lost", "thinker", {"replica": "thinker/0"})]
    assert drawn(facts, over=True) == "░????×    "


def test_the_legend_explains_the_marks_that_occur() -> None:
    assert BLOCKS.legend([" ··█", "·×"]) == "· waits, █ gives output, × replica lost"
    assert BLOCKS.legend(["  "]) == ""


def test_what_gave_its_last_output_long_ago_does_not_look_as_if_it_gave_any() -> None:
    gives = [*stories.started(), stories.fact(20, "first_output", "thinker")]
    assert drawn(gives) == "·░████████"
    assert drawn(gives, now=(60.0, BLOCKS.held)) == "·░████▒▒▒▒"
    quiet = [*gives, stories.edge(100, "thinker", "talker", 3, 21, 40), stories.finished(100, "thinker")]
    assert drawn(quiet) == "·░██░░░░░░"
    assert drawn([*quiet, stories.fact(39, "paused", "thinker")]) == "·░██▒▒▒▒▒▒"


@pytest.mark.parametrize(
    ("more", "shown"),
    [
        ([], "·░█???????"),  # it never reported
        ([stories.fact(90, "finished", "thinker", {"finish_reason": "abort"})], "·░█??????"),
        ([stories.edge(90, "thinker", "talker", 3, 21, 45)], "·░███?????"),
        ([stories.fact(45, "last_output", "thinker")], "·░███?????"),
        ([stories.fact(45, "delivered", "thinker"), stories.terminal(90, "error")], "·░███????"),
        ([stories.fact(90, "delivered", "thinker"), stories.terminal(90, "error")], "·░█??????"),
        ([stories.fact(45, "paused", "thinker")], "·░██▒?????"),
        ([stories.fact(45, "paused", "thinker"), stories.fact(75, "resumed", "thinker")], "·░███▒▒█??"),
        ([stories.fact(45, "output_ended", "thinker")], "·░███─────"),
        ([stories.finished(90, "thinker")], "·░███████"),
        ([stories.edge(90, "thinker", "talker", 3, 21, 45), stories.finished(90, "thinker")], "·░███░░░░"),
    ],
)
def test_t1_of_what_has_ended_nothing_is_shown_that_is_not_known(more: list[Fact], shown: str) -> None:
    facts = [*stories.started(), stories.fact(20.5, "first_output", "thinker"), *more]
    assert drawn(facts, over=True).rstrip() == shown


def test_every_phase_but_the_first_has_a_mark() -> None:
    for event, name in STAGE_PHASES.items():
        run = Run(1, [Phase(name, event, 0, 10**8)], ended=False)
        assert (bar(run, Axis(0, 100.0, 1)) == " ") == (event == "bound"), name


def test_what_took_most_of_a_cell_is_what_it_shows() -> None:
    facts = [*stories.started(), stories.fact(11, "first_output", "thinker"), stories.finished(90, "thinker")]
    assert drawn(facts, cells=1) == "█"


def test_nothing_is_drawn_after_the_end_of_the_axis_or_of_the_attempt() -> None:
    axis, given_up = Axis(0, 100.0, 10), 60.0
    run = Run(1, [Phase(STAGE_PHASES["running"], "running", 0, 10**9)], ended=False)
    assert bar(run, axis, until_ms=given_up) == "░░░░░░    "
    assert bar(None, axis, queued=[(20.0, 900.0)], until_ms=given_up) == "  ▁▁▁▁    "
    assert bar(None, Axis(0, 0.5, 2), queued=[(0.0, 0.5)]) == "▁▁"
