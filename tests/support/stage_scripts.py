"""What a well-behaved worker may report next about one stage of one request. For tests that choose among it."""

from __future__ import annotations

from dataclasses import dataclass, field

from omnizmq.pipeline import Plan
from omnizmq.protocol import ErrorInfo, Text
from omnizmq.router import lifecycle as life


@dataclass
class StageScript:
    """`follow` tells it which of its events was chosen."""

    name: str
    final: bool
    relays_to: tuple[str, ...]
    max_outputs: int
    registered: bool = False
    outputs: int = 0
    ended: bool = False
    relayed: set[str] = field(default_factory=set)
    done: bool = False

    @classmethod
    def of(cls, plan: Plan, name: str, max_outputs: int) -> StageScript:
        relays = tuple(edge.target for edge in plan.outgoing[name] if edge.mode == "relay")
        return cls(name, name in plan.final_stages, relays, max_outputs)

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
        if self.final and not self.ended and self.outputs < self.max_outputs:
            content = Text(f"{self.name}{self.outputs + 1}")
            events += [life.OutputArrived(self.name, self.outputs + 1, content, last) for last in (False, True)]
        if aborting:
            events.append(self._report("abort"))
        return events

    def failure(self) -> life.StageFinished:
        """The report of an engine that broke."""
        return self._report(None, ErrorInfo("stage_error", "it broke", self.name, f"{self.name}/0", False))

    def _report(self, reason: str | None, error: ErrorInfo | None = None) -> life.StageFinished:
        note = f"note of {self.name}" if self.outputs else None
        return life.StageFinished(self.name, reason, error, {"tokens": self.outputs}, note, self.outputs)

    def follow(self, event: life.Event) -> None:
        match event:
            case life.Registered():
                self.registered = True
            case life.OutputArrived():
                self.outputs, self.ended = event.seq, event.last
            case life.RelayArrived():
                self.relayed.add(event.target)
            case life.StageFinished():
                self.done = True
