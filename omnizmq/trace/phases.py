"""Facts as stretches of time: what a request, and each of its stages in each attempt, was about from when to when.

A run is cut into phases without gap or overlap. Each begins with a fact (`events` says what
follows it) and lasts until the next one that is known.
Where a stage did not end well, nothing is claimed that was not recorded: what follows the last output that is known,
and, of a stage that never reported, what follows the last of its facts, is `unknown`. Pure, and as tolerant as the
timeline.

A stage that is parked says so once for each edge and cause, and not when that ended, so it has no phase of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from omnizmq.trace.events import REQUEST_PHASES, STAGE_PHASES, STEPS
from omnizmq.trace.facts import Fact
from omnizmq.trace.timeline import StageStory, Timeline, text

UNKNOWN = "unknown"

_Moment = tuple[int, str, str]
"""When, by which fact, and what the phase that begins then is called."""


class Phase(NamedTuple):
    """`since`: the fact that began it. Times are CLOCK_MONOTONIC."""

    name: str
    since: str
    begin_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Run:
    """A request, or (`story` set) one of its stages in one attempt. `phases`: at least one. `ended`: none follows."""

    attempt: int
    phases: Sequence[Phase]
    ended: bool
    story: StageStory | None = None

    @property
    def begin_ns(self) -> int:
        return self.phases[0].begin_ns

    @property
    def end_ns(self) -> int:
        return self.phases[-1].end_ns


def request_run(timeline: Timeline, until_ns: int) -> Run | None:
    """The request itself; None for one without facts. Where it has not ended it lasts `until_ns`."""
    if not timeline.facts:
        return None
    moments: list[_Moment] = []
    for fact in timeline.facts:
        name = _request_phase(fact)
        if name and (not moments or moments[-1][2] != name):
            moments.append((fact.at_ns, fact.event, name))
    first, last = timeline.facts[0], timeline.facts[-1]
    if not moments or moments[0][0] > first.at_ns:
        moments.insert(0, (first.at_ns, first.event, "runs"))
    ended = timeline.end is not None or timeline.first("cleaned") is not None
    return Run(timeline.attempt, _phases(moments, last.at_ns if ended else max(last.at_ns, until_ns)), ended)


def _request_phase(fact: Fact) -> str | None:
    name = REQUEST_PHASES.get(fact.event)
    why = text(fact.detail, "why") if fact.event == "queued" else None
    return f"{name}: {why}" if why else name


def stage_runs(timeline: Timeline, until_ns: int, *, over: int = 0) -> list[Run]:
    """Of each attempt, those stages that had a replica. What has not ended lasts `until_ns`. `over`: of the attempts up
    to this one nothing more will be known."""
    return [
        run
        for attempt in timeline.attempts
        for story in timeline.stories(attempt).values()
        if (run := _stage_run(timeline, attempt, story, until_ns, over=attempt <= over)) is not None
    ]


def _stage_run(timeline: Timeline, attempt: int, story: StageStory, until_ns: int, *, over: bool) -> Run | None:
    steps = [(story.at_ns[step], step, STAGE_PHASES[step]) for step in STEPS[:-1] if step in story.at_ns]
    if not steps:
        return None
    end_ns = _ended_ns(timeline, attempt, story)
    for paused in _of_stage(timeline, attempt, story.name, "paused")[:1]:
        resumed = _of_stage(timeline, attempt, story.name, "resumed")
        steps = _interrupted(steps, paused.at_ns, resumed[0].at_ns if resumed else None)
    if over or end_ns is not None:
        steps = [*steps, *_after_output(steps, story, end_ns)]
    return Run(attempt, _phases(steps, until_ns if end_ns is None else end_ns), end_ns is not None, story)


def _after_output(steps: Sequence[_Moment], story: StageStory, end_ns: int | None) -> list[_Moment]:
    """What followed the last output of a stage of which no more will be known: nobody knows, unless it ended well."""
    at_ns, since, name = steps[-1]
    gave = name == STAGE_PHASES["first_output"]
    last_ns = story.last_output_ns or 0
    if story.ended_well:
        return [(last_ns, "last_output", STAGE_PHASES["running"])] if gave and at_ns < last_ns < (end_ns or 0) else []
    never_reported = "submitted" in story.at_ns and not story.finished and name != STAGE_PHASES["output_ended"]
    if not (gave or never_reported):
        return []
    begin_ns, fact = (last_ns, "last_output") if last_ns > at_ns else (at_ns, since)
    return [(begin_ns, fact, UNKNOWN)] if end_ns is None or begin_ns < end_ns else []


def _ended_ns(timeline: Timeline, attempt: int, story: StageStory) -> int | None:
    """When the stage had no more to do with the attempt. None: it still has.

    By its own report, or else its replica's death, or the moment from which its report was waited for no more.
    """
    if story.finished:
        return story.at_ns["finished"]
    if story.lost_ns is not None:
        return story.lost_ns
    later = [fact for fact in timeline.facts if fact.attempt > attempt or fact.event in ("terminal", "cleaned")]
    if "submitted" not in story.at_ns:  # it owes no report
        return later[0].at_ns if later else None
    left = _of_stage(timeline, attempt, story.name, "left_behind") or list(timeline.of_event("cleaned"))
    if left:
        return left[0].at_ns
    return timeline.facts[-1].at_ns if timeline.first("terminal") else None


def _of_stage(timeline: Timeline, attempt: int, stage: str, event: str) -> list[Fact]:
    return [fact for fact in timeline.of(attempt, event) if fact.stage == stage]


def _interrupted(steps: list[_Moment], begin_ns: int, end_ns: int | None) -> list[_Moment]:
    """Paused between two moments (None: to the end); then it goes on with whatever it had come to."""
    begin_ns = max(begin_ns, steps[0][0])
    if end_ns is not None and end_ns < begin_ns:  # before anything else that is known
        return steps
    before = [step for step in steps if step[0] <= begin_ns]
    paused = (begin_ns, "paused", STAGE_PHASES["paused"])
    if end_ns is None:
        return [*before, paused]
    reached = [step for step in steps if step[0] <= end_ns][-1]
    after = [step for step in steps if step[0] > end_ns]
    return [*before, paused, (end_ns, "resumed", reached[2]), *after]


def _phases(moments: Sequence[_Moment], end_ns: int) -> list[Phase]:
    """From each moment to the next; one that is out of order (of another clock) counts as the one before it."""
    begins: list[int] = []
    for at_ns, _, _ in moments:
        begins.append(max([at_ns, *begins[-1:]]))
    ends = [*begins[1:], max(end_ns, begins[-1])]
    return [Phase(name, since, begin, end) for (_, since, name), begin, end in zip(moments, begins, ends, strict=True)]
