"""A lifecycle beside its model, its watch, and the scripts of its stages: all see the same events.

The model (`lifecycle_model`) is written in another way than the lifecycle and predicts each of its commands. The watch
(`lifecycle_watch`) checks what must hold whatever anyone predicts. An event that cannot be, or comes late, must change
nothing.
"""

from __future__ import annotations

from omnizmq.errors import ProtocolError
from omnizmq.pipeline import Plan
from omnizmq.router import lifecycle as life
from support.lifecycle_model import ILLEGAL, LATE, Model, by_destination
from support.lifecycle_watch import Watch
from support.playbook import state_of
from support.stage_scripts import StageScript


class World:
    """`feed` any event, `follow` one of a stage's own script."""

    def __init__(self, plan: Plan, max_outputs: int = 2) -> None:
        self.plan = plan
        self.lifecycle = life.Lifecycle("demo-0", plan)
        self.model = Model(plan)
        self.watch = Watch(plan)
        self.scripts = {name: StageScript.of(plan, name, max_outputs) for name in plan.names}
        self.late = 0

    def feed(self, event: life.Event) -> None:
        before = state_of(self.lifecycle)
        expected = self.model.predict(event)
        commands, refusal = self._handle(event)
        if refusal is not None:
            assert expected == ILLEGAL, f"{event} was refused: {refusal}"
            assert self.lifecycle.story() in refusal
            assert state_of(self.lifecycle) == before
            return
        assert expected != ILLEGAL, f"{event} was accepted: {self.lifecycle.story()}"
        self.late += expected == LATE
        assert self.lifecycle.late == self.late
        if isinstance(expected, str):
            assert commands == []
            assert state_of(self.lifecycle) == before
        else:
            assert by_destination(commands) == expected, event
        self.watch.saw(event, commands)
        self.watch.check(self.lifecycle)

    def _handle(self, event: life.Event) -> tuple[list[life.Command], str | None]:
        """The commands, or why there are none."""
        try:
            return self.lifecycle.handle(event), None
        except ProtocolError as error:
            return [], error.message

    def follow(self, event: life.Event) -> None:
        self.feed(event)
        self.scripts[event.stage].follow(event)  # type: ignore[union-attr]

    @property
    def awaited(self) -> list[StageScript]:
        return [self.scripts[name] for name in self.lifecycle.unfinished if not self.scripts[name].done]
