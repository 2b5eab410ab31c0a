"""A request at one moment: its facts and the live answers laid over each other, stage by stage (T2).

Live answers are newer than facts and say what a fact cannot (what a stage does now), so where both speak the answer
counts; what has once happened has happened, whichever says so. Without answers the facts alone make the scene. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from omnizmq.trace.facts import Fact
from omnizmq.trace.live import Live, LiveStage, WorkerAnswer
from omnizmq.trace.timeline import StageStory, Timeline, number, text
from omnizmq.trace.words import duration

LONG_NS = 1_000_000_000
"""A step that takes longer, or a stage that makes nothing for longer, is looked at as if it were stuck."""


@dataclass(frozen=True, slots=True)
class Node:
    """A stage of the plan. `parked`: why, since when and for whom it may not go on, as far as facts tell, by consumer;
    `sent_ns`: its last chunk, over any edge; `gave_ns`: that, or its last output for the caller; 0: none that is known
    of."""

    story: StageStory
    live: LiveStage | None
    silent: bool
    parked: Mapping[str, Fact]
    paused_ns: int | None
    sent_ns: int
    gave_ns: int

    @property
    def name(self) -> str:
        return self.story.name

    @property
    def replica(self) -> str | None:
        return (self.live and self.live.replica) or self.story.replica

    @property
    def who(self) -> str:
        """The replica, or where it is not known the stage."""
        return self.replica or self.name

    @property
    def answer(self) -> WorkerAnswer | None:
        return None if self.live is None else self.live.answer

    @property
    def submitted(self) -> bool:
        told = self.live is not None and self.live.submitted
        return told or any(step in self.story.at_ns for step in ("submitted", "registered", "running"))

    @property
    def registered(self) -> bool:
        told = self.live is not None and self.live.registered
        return told or bool({"registered", "input_ready", "running", "first_output"} & self.story.at_ns.keys())

    @property
    def output_ended(self) -> bool:
        return "output_ended" in self.story.at_ns or (self.live is not None and self.live.output_ended)

    @property
    def finished(self) -> bool:
        return self.story.finished or (self.live is not None and self.live.finished)

    @property
    def pending(self) -> bool:
        """It was given the request, and has not reported its end."""
        return self.submitted and not self.finished

    @property
    def has_input(self) -> bool:
        """As far as is known. A stage that computes has had some."""
        if {"input_ready", "running", "first_output"} & self.story.at_ns.keys():
            return True
        return self.answer is not None and not self.answer.state.startswith("WAITING")

    @property
    def has_given(self) -> bool:
        """Content or a chunk, or the end of its output."""
        told = self.answer
        if told is not None and (told.outputs or any(edge.made or edge.sent for edge in told.edges)):
            return True
        return self.output_ended or "first_output" in self.story.at_ns

    @property
    def engine(self) -> tuple[str, int]:
        """What its engine does, and since when: as its worker says now, or else as its last heartbeat said."""
        told = self.answer or self.live
        return ("", 0) if told is None else (told.engine, told.engine_since_ns or 0)

    @property
    def for_others(self) -> bool:
        """Whether its engine does that for other requests alone, as its worker says."""
        return self.answer is not None and self.answer.engaged is False

    @property
    def moved_ns(self) -> int:
        """When it last gave something, as far as is known; else when it could begin."""
        steps = self.story.at_ns
        begun = (steps.get(step, 0) for step in ("registered", "input_ready", "running", "first_output"))
        return max(self.gave_ns, *begun)


class Scene:
    """`now_ns` is None without live answers; `nodes` are the planned stages in topological order. `until_ns`: when the
    request was over; what edges counted after it was not known then. None: it is not, or all that happened counts."""

    def __init__(self, timeline: Timeline, live: Live | None = None, *, until_ns: int | None = None) -> None:
        self.timeline = timeline
        self.until_ns = until_ns
        self.live = live if live is not None and live.attempt >= timeline.attempt else None
        self.attempt = timeline.attempt if self.live is None else self.live.attempt
        self.now_ns = None if self.live is None else self.live.now_ns
        stages: Mapping[str, LiveStage] = {} if self.live is None else self.live.stages
        stories = timeline.stories(self.attempt)
        names = tuple(dict.fromkeys((*timeline.planned, *stages)))
        self._links = self._find_links()
        self._counts = timeline.edges(self.attempt)
        self.nodes = {name: self._node(stories.get(name) or _untold(name), stages.get(name)) for name in names}

    def _find_links(self) -> tuple[tuple[str, str], ...]:
        """Of the plan; where no fact tells it, those of which the workers speak."""
        if self.timeline.links or self.live is None:
            return self.timeline.links
        answers = [(name, stage.answer) for name, stage in self.live.stages.items() if stage.answer]
        links = [(edge.source, name) for name, answer in answers for edge in answer.inputs]
        links += [(name, edge.target) for name, answer in answers for edge in answer.edges]
        return tuple(dict.fromkeys(links))

    def _node(self, story: StageStory, live: LiveStage | None) -> Node:
        answer = None if live is None else live.answer
        sent = [edge.last_ns for edge in answer.edges] if answer else []
        counts = [fact for (source, _), fact in self._counts.items() if source == story.name]
        sent += [number(fact.detail, "last_ns") or 0 for fact in counts]
        replica = (live and live.replica) or story.replica
        sent_ns = max(sent, default=0)
        return Node(
            story=story,
            live=live,
            silent=self.live is not None and replica is not None and replica in self.live.silent,
            parked={} if answer else self._parked(story.name),
            paused_ns=None if answer else self._paused_ns(story.name),
            sent_ns=self._by_then(sent_ns),
            gave_ns=self._by_then(max(sent_ns, story.last_output_ns or 0)),
        )

    def _by_then(self, at_ns: int) -> int:
        return at_ns if self.until_ns is None else min(at_ns, self.until_ns)

    def _parked(self, stage: str) -> dict[str, Fact]:
        """By consumer, the latest fact of an edge that has probably not moved since."""
        facts = [fact for fact in self.timeline.of(self.attempt, "parked") if fact.stage == stage]
        latest = {text(fact.detail, "to") or "": fact for fact in facts}
        return {target: fact for target, fact in latest.items() if self._still_parked(stage, target, fact)}

    def _still_parked(self, stage: str, target: str, parked: Fact) -> bool:
        """The first time alone is a fact. If the edge's count is known, it was parked at the end if it was parked in
        all for as long as nothing was sent there at the end, or, where it went on in the end, for most of the time;
        else if nothing is known of the stage since."""
        count = self._counts.get((stage, target))
        if count is None:
            return all(fact.at_ns <= parked.at_ns for fact in self.timeline.facts if fact.stage == stage)
        last_ns, parked_ns = (number(count.detail, key) or 0 for key in ("last_ns", "parked_ns"))
        if self.until_ns is not None and last_ns >= self.until_ns:  # it went on in the end
            return parked_ns * 2 > self.until_ns - parked.at_ns
        return parked_ns >= count.at_ns - last_ns - LONG_NS // 10

    def _paused_ns(self, stage: str) -> int | None:
        """Since when it waits for its caller to read; of several pauses only the first is a fact."""
        facts = [fact for fact in self.timeline.of(self.attempt, "paused", "resumed") if fact.stage == stage]
        return facts[-1].at_ns if facts and facts[-1].event == "paused" else None

    # --- The graph -------------------------------------------------------------------------------------------------

    def sources(self, stage: str) -> list[Node]:
        return [self.nodes[source] for source, target in self._links if target == stage and source in self.nodes]

    def targets(self, stage: str) -> list[Node]:
        return [self.nodes[target] for source, target in self._links if source == stage and target in self.nodes]

    def chunks(self, source: str, target: str) -> int | None:
        """How many the producer reported to have sent on an edge; None: it has not."""
        count = self._counts.get((source, target))
        return None if count is None else number(count.detail, "chunks")

    @property
    def complete(self) -> bool:
        """Whether all final output has ended, as the router says, or as facts do."""
        if self.live is not None and self.live.deliveries:
            return all(delivery.ended for delivery in self.live.deliveries.values())
        final = [self.nodes[name] for name in self.timeline.final_stages if name in self.nodes]
        return bool(final) and all(node.output_ended for node in final)

    @property
    def unfinished(self) -> list[Node]:
        return [node for node in self.nodes.values() if not node.finished]

    @property
    def last(self) -> list[Node]:
        """The unfinished stages for which no other unfinished one waits: where a stalled chain is taken up."""
        unfinished = self.unfinished
        found = [node for node in unfinished if all(target.finished for target in self.targets(node.name))]
        return found or unfinished

    # --- Times -----------------------------------------------------------------------------------------------------

    @property
    def last_ns(self) -> int:
        """The latest that is known to have happened; where nothing is, now."""
        facts = self.timeline.facts
        return facts[-1].at_ns if facts else self.now_ns or self.timeline.zero_ns

    def at(self, at_ns: int) -> str:
        """A moment on the request's own clock; where no fact tells when that began, how long ago it was."""
        age_ns = self.age_ns(at_ns)
        if not self.timeline.facts and age_ns is not None:
            return f"{duration(age_ns / 1e6)} ago"
        ms = (at_ns - self.timeline.zero_ns) / 1e6
        return f"{ms:.0f} ms" if abs(ms) >= 10 else f"{ms:.1f} ms"

    def age_ns(self, at_ns: int) -> int | None:
        """How long ago that was; None: nobody knows what time it is."""
        return None if self.now_ns is None else max(0, self.now_ns - at_ns)

    def since(self, at_ns: int) -> str:
        age_ns = self.age_ns(at_ns)
        if age_ns is None:
            return f"since {self.at(at_ns)}"
        within = self.timeline.facts and at_ns >= self.timeline.zero_ns
        return f"for {duration(age_ns / 1e6)}" + (f" (since {self.at(at_ns)})" if within else "")

    def moves(self, at_ns: int) -> bool:
        """Whether that is just now."""
        age_ns = self.age_ns(at_ns)
        return age_ns is not None and age_ns < LONG_NS

    def moved_to_the_end(self, at_ns: int) -> bool:
        """Whether that was just before the request was over, or went on after it."""
        return self.until_ns is not None and self.until_ns - at_ns < LONG_NS


def _untold(name: str) -> StageStory:
    return StageStory(name=name, replica=None, engine_id=None, at_ns={}, report={}, lost_ns=None)
