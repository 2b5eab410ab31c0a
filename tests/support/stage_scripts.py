"""What a well-behaved worker may report next about one stage of one attempt. For tests that choose among it."""

from __future__ import annotations

from dataclasses import dataclass, field

from omnizmq.pipeline import Plan
from omnizmq.protocol import ErrorInfo, Text
from omnizmq.router import lifecycle as life


@dataclass
class StageScript:
    """`follow` tells it which of its events was chosen. What a final stage says is the same in every attempt: `whole`,
    in pieces of `cut` characters, or as many as there are outputs."""

    name: str
    final: bool
    relays_to: tuple[str, ...]
    whole: str
    cut: int | None = None
    registered: bool = False
    outputs: int = 0
    said: int = 0
    ended: bool = False
    relayed: set[str] = field(default_factory=set)
    done: bool = False

    @classmethod
    def of(cls, plan: Plan, name: str, max_outputs: int) -> StageScript:
        relays = tuple(edge.target for edge in plan.outgoing[name] if edge.mode == "relay")
        whole = "".join(f"{name}{n}" for n in range(1, max_outputs + 1))
        return cls(name, name in plan.final_stages, relays, whole)

    def next(self, *, aborting: bool = False) -> list[life.Event]:
        """Good reports, the most usual one first. The list is empty when the stage has reported its end."""
        if self.done:
            return []
        if not self.registered:
            return [life.Registered(self.name)]
        events: list[life.Event] = []
        missing = [target for target in self.relays_to if target not in self.relayed]
        if missing:
            events.append(life.RelayArrived(self.name, missing[0], f"{self.name}>{missing[0]}".encode()))
        else:
            events += [self._report("stop"), self._report("length")]
        if self.final and not self.ended and self.said < len(self.whole):
            events += [life.OutputArrived(self.name, self.outputs + 1, self._piece, last) for last in (False, True)]
        if aborting:
            events.append(self._report("abort"))
        return events

    def to_its_end(self) -> life.Event:
        """The next report of a stage that says all it has to say."""
        events = self.next()
        outputs = [event for event in events if isinstance(event, life.OutputArrived)]
        if not outputs:
            return events[0]
        return outputs[self.said + len(self._piece.text) >= len(self.whole)]

    @property
    def _piece(self) -> Text:
        return Text(self.whole[self.said :][: self.cut or len(self.name) + 1])

    def failure(self) -> life.StageFinished:
        """The report of an engine that broke."""
        return self._report(None, ErrorInfo("stage_error", "it broke", self.name, f"{self.name}/0", False))

    def confirmed(self) -> life.StageFinished:
        """The report of a stage that was told to abort."""
        return self._report("abort")

    def blames(self, stage: str, replica: str) -> life.StageFinished:
        """The report of a stage whose other end is gone."""
        return self._report(None, ErrorInfo("replica_lost", "it is gone", stage, replica, True))

    def _report(self, reason: str | None, error: ErrorInfo | None = None) -> life.StageFinished:
        note = f"note of {self.name}" if self.outputs else None
        return life.StageFinished(self.name, reason, error, {"tokens": self.outputs}, note, self.outputs)

    def follow(self, event: life.Event) -> None:
        match event:
            case life.Registered():
                self.registered = True
            case life.OutputArrived():
                self.outputs, self.ended = event.seq, event.last
                self.said += len(event.content.text) if isinstance(event.content, Text) else 0
            case life.RelayArrived():
                self.relayed.add(event.target)
            case life.StageFinished():
                self.done = True
