"""Feeds a recording to a fresh router core and compares what it orders. Pure.

Facts of the trace are in a recording, to be read, and in no comparison: they decide nothing, and what they tell grows
from version to version.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from omnizmq.config import Config
from omnizmq.recording import form
from omnizmq.recording.file import Line
from omnizmq.recording.trees import parting
from omnizmq.router.core import RouterCore
from omnizmq.router.messages import Input


class Step(msgspec.Struct, frozen=True):
    """One event, what the recorded core ordered upon it, and what this one did; all as trees."""

    n: int
    now: float
    event: dict[str, Any]
    expected: list[Any]
    got: list[Any]

    @property
    def agrees(self) -> bool:
        return commands(self.expected) == commands(self.got)


class Difference(msgspec.Struct, frozen=True):
    """Where two lists of orders part: the place (`3.frame.attempt`), and what is there in each."""

    where: str
    expected: Any
    got: Any


def replay(config: Config, events: Iterable[tuple[Line, Input]]) -> Iterator[Step]:
    """Each event with both cores' orders. What comes behind a difference is that difference's consequence."""
    core = RouterCore(config)
    for line, event in events:
        got = form.tree(core.handle(event, line.now))
        yield Step(line.n, line.now, line.event, [form.completed(effect) for effect in line.effects], got)


def difference(step: Step) -> Difference:
    """The first, of a step that does not agree."""
    where, expected, got = parting(commands(step.expected), commands(step.got))
    return Difference(where, expected, got)


def commands(orders: Iterable[Any]) -> list[Any]:
    """Those that are more than facts of the trace."""
    return [order for order in orders if order["$"] != "Fact"]


def mentions(tree: Any, request_id: str) -> bool:
    """Whether an event or an order is about the request."""
    if isinstance(tree, dict):
        return tree.get("request_id") == request_id or any(mentions(item, request_id) for item in tree.values())
    return isinstance(tree, list) and any(mentions(item, request_id) for item in tree)
