"""The facts of one request, sorted out: plan, last attempt, stages with their steps, zero of time (T1, T2).

What summary and verdict both need to know. Pure, and tolerant: any part of a request's facts, in any order, makes a
timeline; what they do not tell is None or empty. A step is only ever what a fact says, never derived from another (S2).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from omnizmq.protocol import Value
from omnizmq.trace.events import STEPS
from omnizmq.trace.facts import Fact


@dataclass(frozen=True, slots=True)
class StageStory:
    """One stage in one attempt. `at_ns`: step -> CLOCK_MONOTONIC time, for those of `STEPS` that happened."""

    name: str
    replica: str | None
    engine_id: str | None
    at_ns: Mapping[str, int]
    report: Mapping[str, Value]  # the detail of `finished`
    lost_ns: int | None  # when its replica died, if it did before the request had ended
    last_output_ns: int | None = None  # the last output that is known
    outputs: int | None = None  # for the caller; by its report, or as many as the router had sent on
    origin: str | None = None  # the stage whose error it ended with, its own or that of an input; None: with none

    @property
    def step(self) -> str | None:
        """The furthest step that is known; None: it has not even been bound."""
        return next((step for step in reversed(STEPS) if step in self.at_ns), None)

    @property
    def finished(self) -> bool:
        return "finished" in self.at_ns

    @property
    def ended_well(self) -> bool:
        """By its own report, with all that it had to give."""
        return self.finished and text(self.report, "finish_reason") not in (None, "abort", "error")

    @property
    def error_code(self) -> str | None:
        """Of its own report, or of its replica's death before there was one."""
        lost = self.lost_ns is not None and not self.finished
        return "replica_lost" if lost else text(self.report, "error_code")

    @property
    def failed_ns(self) -> int | None:
        """When `error_code` came to be."""
        return None if self.error_code is None else self.at_ns.get("finished", self.lost_ns)

    @property
    def who(self) -> str:
        """The replica, or where it is not known the stage."""
        return self.replica or self.name


class Timeline:
    """`facts` in the order of their times; `attempt` is the last one; `planned` stages are in topological order."""

    def __init__(self, facts: Sequence[Fact]) -> None:
        self.facts = sorted(facts, key=lambda fact: fact.at_ns)
        self.attempts = sorted({fact.attempt for fact in self.facts})
        self.attempt = max((fact.attempt for fact in self.facts), default=0)
        self.zero_ns = self._zero()
        received = self.first("received")
        self._plan = received.detail if received is not None else {}
        self.planned = self._planned()
        self.stages = self.stories(self.attempt)

    def _zero(self) -> int:
        """The client's `asked`; without one, or with one of a clock ahead of the router's, what came first."""
        asked = self.first("asked")
        others = [fact.at_ns for fact in self.facts if fact is not asked]
        if asked is None:
            return min(others, default=0)
        return min([asked.at_ns, *others])

    def _planned(self) -> tuple[str, ...]:
        known = names(self._plan, "stages")
        return known or tuple(dict.fromkeys(fact.stage for fact in self.facts if fact.stage and fact.event in STEPS))

    @property
    def pipeline(self) -> tuple[str, ...]:
        """All stages, planned or not, as far as they are known."""
        return tuple(dict.fromkeys((*names(self._plan, "all_stages"), *self.planned)))

    @property
    def final_stages(self) -> tuple[str, ...]:
        """Those whose output the caller gets, in topological order."""
        return names(self._plan, "final_stages")

    @property
    def modalities(self) -> tuple[str, ...]:
        """Those that were asked for; empty: all, or not known."""
        return names(self._plan, "modalities")

    @property
    def links(self) -> tuple[tuple[str, str], ...]:
        """The edges of the plan, producer and consumer. Where the facts name none, the stages are taken as a chain."""
        edges = names(self._plan, "edges")
        if edges:
            return tuple((source, target) for source, _, target in (edge.partition(">") for edge in edges))
        chain = names(self._plan, "stages")
        return tuple(pairwise(chain))

    @property
    def end(self) -> Fact | None:
        """What ended the request: its terminal, or a refusal of what never became a request.

        A refusal under an id that the router has received is another submission's, which bore the same id.
        """
        return self.first("terminal") or (None if self.first("received") else self.first("refused"))

    def edges(self, attempt: int) -> dict[tuple[str, str], Fact]:
        """What was counted on each edge, by producer and consumer; of several counts of one edge, the highest."""
        counts: dict[tuple[str, str], Fact] = {}
        for fact in self.of(attempt, "edge"):
            link = (fact.stage or "", text(fact.detail, "to") or "")
            if link not in counts or _chunks(fact) >= _chunks(counts[link]):
                counts[link] = fact
        return counts

    def first(self, *events: str) -> Fact | None:
        """The earliest fact that is one of these events."""
        return next((fact for fact in self.facts if fact.event in events), None)

    def latest(self, attempt: int, event: str) -> Fact | None:
        """The latest such fact of an attempt."""
        found = list(self.of(attempt, event))
        return found[-1] if found else None

    def of_event(self, event: str) -> Iterator[Fact]:
        return (fact for fact in self.facts if fact.event == event)

    def of(self, attempt: int, *events: str) -> Iterator[Fact]:
        return (fact for fact in self.facts if fact.attempt == attempt and fact.event in events)

    def stories(self, attempt: int) -> dict[str, StageStory]:
        """Every stage of the pipeline that is known, in one attempt."""
        return {stage: self._story(attempt, stage) for stage in self.pipeline}

    def _story(self, attempt: int, stage: str) -> StageStory:
        facts = [fact for fact in self.of(attempt, *STEPS) if fact.stage == stage]
        lost = next((fact for fact in self.of(attempt, "replica_lost") if fact.stage == stage), None)
        at_ns: dict[str, int] = {}
        for fact in facts:
            at_ns.setdefault(fact.event, fact.at_ns)
        replicas = [text(fact.detail, "replica") for fact in facts if fact.event == "bound"]
        replicas += [fact.owner for fact in facts if fact.owner.startswith(f"{stage}/")]
        report = next((fact.detail for fact in facts if fact.event == "finished"), {})
        last = next((fact for fact in self.of(attempt, "last_output") if fact.stage == stage), None)
        counted = number(report, "outputs")
        return StageStory(
            name=stage,
            replica=next(filter(None, replicas), None),
            engine_id=next((fact.engine_id for fact in facts if fact.engine_id), None),
            at_ns=at_ns,
            report=report,
            lost_ns=None if lost is None else lost.at_ns,
            last_output_ns=self._last_output(attempt, stage),
            outputs=number(last.detail, "outputs") if counted is None and last is not None else counted,
            origin=self._origin(attempt, stage, report, lost),
        )

    def _last_output(self, attempt: int, stage: str) -> int | None:
        """The latest that any fact tells of. What is delivered at the end may have been closed by the end itself."""
        ends = [fact.at_ns for fact in self.facts if fact.event in ("abort_asked", "terminal")]
        moments = []
        for fact in self.of(attempt, "output_ended", "last_output", "delivered", "edge"):
            if fact.stage != stage or (fact.event == "delivered" and ends and fact.at_ns >= min(ends)):
                continue
            moments.append(number(fact.detail, "last_ns") if fact.event == "edge" else fact.at_ns)
        return max(filter(None, moments), default=None)

    def _origin(self, attempt: int, stage: str, report: Mapping[str, Value], lost: Fact | None) -> str | None:
        code = text(report, "error_code")
        if code is None:
            return stage if lost is not None and not report else None
        end = self.first("terminal")
        same = end is not None and attempt == self.attempt and text(end.detail, "error_code") == code
        blamed = text(end.detail, "error_stage") if end is not None and same else None
        return text(report, "error_stage") or blamed or stage

    def ms(self, at_ns: int | None) -> float | None:
        """Milliseconds since time zero."""
        return None if at_ns is None else round((at_ns - self.zero_ns) / 1e6, 3)


def _chunks(fact: Fact) -> int:
    return number(fact.detail, "chunks") or 0


def text(detail: Mapping[str, Value], key: str) -> str | None:
    """A non-empty text of a fact's detail, else None."""
    value = detail.get(key)
    return value if isinstance(value, str) and value else None


def number(detail: Mapping[str, Value], key: str) -> int | None:
    value = detail.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def names(detail: Mapping[str, Value], key: str) -> tuple[str, ...]:
    """The names in a comma-separated text of a fact's detail."""
    return tuple(name.strip() for name in (text(detail, key) or "").split(",") if name.strip())
