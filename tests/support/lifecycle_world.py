"""A lifecycle beside its model, its watch, and the scripts of its stages: all see the same events.

The model (`lifecycle_model`) is written in another way than the lifecycle and predicts each of its commands. The watch
(`lifecycle_watch`) checks what must hold whatever anyone predicts. An event that cannot be, or comes late, must change
nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from omnizmq.errors import ProtocolError
from omnizmq.pipeline import Plan
from omnizmq.protocol import Text
from omnizmq.router import lifecycle as life
from omnizmq.router.delivered import Delivered
from support.delivered_model import Told
from support.lifecycle_model import ILLEGAL, LATE, MISMATCH, Model, by_destination
from support.lifecycle_watch import Watch
from support.playbook import state_of
from support.stage_scripts import StageScript

LOST = "lost/0"


class Had(NamedTuple):
    """What the caller has of a stage."""

    text: str
    ended: bool

    def outputs(self) -> list[tuple[Text | None, bool]]:
        """A character each, and the end of its own."""
        return [(Text(char), False) for char in self.text] + [(None, True)] * self.ended


class World:
    """`feed` any event, `follow` one of a stage's own script. `has`: the texts that the caller has of final stages from
    an attempt before this one, in which all stages ran, and whether it has their end."""

    def __init__(self, plan: Plan, max_outputs: int = 2, has: Mapping[str, Had] | None = None) -> None:
        has = has or {}
        ran = plan.names if has else ()
        self.plan = plan
        self.lifecycle = life.Lifecycle("demo-0", plan, delivered(plan, has), ran)
        self.model = Model(plan, {name: told(had) for name, had in has.items()}, frozenset(ran))
        texts = {name: had.text for name, had in has.items()}
        self.watch = Watch(plan, texts, [name for name, had in has.items() if had.ended], ran)
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
            assert by_destination(map(plain, commands)) == expected, event
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

    @property
    def asks(self) -> life.Redrive | None:
        """What has to be answered before anything else happens."""
        return None if self.watch.superseded or self.watch.terminal else self.watch.asked


def delivered(plan: Plan, has: Mapping[str, Had]) -> dict[str, Delivered] | None:
    if not has:
        return None
    made = {name: Delivered(name, hashed=True) for name in plan.names if name in plan.final_stages}
    for name, had in has.items():
        for content, last in had.outputs():
            made[name].pass_on(content, last=last, cut=False)
    for one in made.values():
        one.begin_attempt(LOST)
    return made


def told(had: Had) -> Told:
    one = Told()
    for content, last in had.outputs():
        one.takes(content, last=last)
    one.begins_again(LOST)
    return one


def plain(command: life.Command) -> life.Command:
    """Without what the error of a mismatch tells people."""
    if (
        isinstance(command, life.SendTerminal)
        and command.error is not None
        and command.error.message.endswith(MISMATCH)
    ):
        return msgspec.structs.replace(command, error=msgspec.structs.replace(command.error, message=MISMATCH))
    return command
