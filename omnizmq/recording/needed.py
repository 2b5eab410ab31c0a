"""Which events of a recording one request needs. Pure.

Events are left out and the rest is replayed: where the router still orders the same about the request, upon the same
events, and still kills the same replicas, they were not needed. Other requests go or stay as wholes, heartbeats and
ticks one by one. What replicas went through and what operators ordered stays always.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from omnizmq.config import Config
from omnizmq.recording.file import Line
from omnizmq.recording.form import Tree
from omnizmq.recording.replayer import Step, mentions, replay
from omnizmq.router.messages import Input

Events = Sequence[tuple[Line, Input]]

_Unit = TypeVar("_Unit")

BUDGET = 400_000
"""Events that may be replayed to leave more out, some 40 s of work; what is not tried by then stays."""

QUESTIONS = ("AskStatus", "AskTrace", "StageAnswer")
"""Frames by which somebody looks at the deployment; they change nothing but the time at which a worker was heard."""

_ANSWERS = ("AskStage", "Traced", "Status")
"""Frames that follow a question."""

_OF_REPLICAS = ("ReplicaStarting", "WorkerJoined", "ReplicaExited", "WorkerUnreachable", "DrainAsked", "StopAsked")


def asks(step: Step) -> bool:
    """Whether the event is a question, or a worker's answer to one."""
    return _frame(step.event) in QUESTIONS


def without_answers(orders: Iterable[Tree]) -> list[Tree]:
    return [order for order in orders if _frame(order) not in _ANSWERS]


def about(orders: Iterable[Tree], request_id: str, *, questions: bool = False) -> list[Tree]:
    """The orders about the request. Of facts, what they are of: details may tell of other requests. `questions`: with
    what follows questions about it; a status tells of everybody, and is never about one."""
    out = ("Status",) if questions else _ANSWERS
    return [_essence(order) for order in orders if _frame(order) not in out and mentions(order, request_id)]


def needed(
    config: Config, events: Events, steps: Sequence[Step], request_id: str, *, questions: bool = False
) -> Events:
    """Those that the request needs, up to its end. `steps`: all events, replayed. `questions`: keep those about it."""
    return _Search(config, events, steps, request_id, questions).run()


class _Search:
    """For the least that has the same orders."""

    def __init__(self, config: Config, events: Events, steps: Sequence[Step], request_id: str, questions: bool) -> None:
        self._config = config
        self._request_id = request_id
        self._questions = questions
        self._left = BUDGET
        own = [self._is_about(step) for step in steps]
        self._until = max(i for i, is_own in enumerate(own) if is_own) + 1
        self._events = events[: self._until]
        self._wanted = {step.n: self._decisive(step) for step in steps[: self._until]}
        self._always: set[int] = set()
        self._asking: list[int] = []
        self._moments: list[int] = []
        self._others: dict[str, list[int]] = defaultdict(list)
        for i, step in enumerate(steps[: self._until]):
            self._sort(i, step, own[i])

    def run(self) -> Events:
        others, moments = self._enough()
        others = _fewer(others, lambda fewer: self._holds(fewer, moments))
        moments = _fewer(moments, lambda fewer: self._holds(others, fewer))
        return self._kept(others, moments)

    def _decisive(self, step: Step) -> list[Tree]:
        """What must be the same upon this event: orders about the request, and which replicas are killed."""
        kills = [(one["replica"], one["incarnation"]) for one in step.got if one["$"] == "KillReplica"]
        return [*about(step.got, self._request_id, questions=self._questions), *kills]

    def _is_about(self, step: Step) -> bool:
        if about(step.got, self._request_id, questions=self._questions):
            return True
        return (self._questions or not asks(step)) and mentions(step.event, self._request_id)

    def _sort(self, i: int, step: Step, own: bool) -> None:
        """Into what stays, others' requests by their ids, questions, and the rest: moments."""
        if own or self._wanted[step.n] or _of_replicas(step):
            self._always.add(i)
        elif asks(step):
            self._asking.append(i)
        elif step.event["$"] == "Ticked" or _frame(step.event) == "Heartbeat":
            self._moments.append(i)
        else:
            bearers = _ids(step.event) or _ids(step.got)
            for bearer in bearers:
                self._others[bearer].append(i)
            if not bearers:
                self._moments.append(i)

    def _enough(self) -> tuple[list[str], list[int]]:
        """Others' requests and moments, with which the orders are the same: of four choices the first."""
        everybody = list(self._others)
        beside = [other for other in everybody if self._lived_beside(other)]
        for others in ([], beside, everybody):
            if self._same(others, self._moments):
                return others, self._moments
        return everybody, sorted(self._moments + self._asking)

    def _lived_beside(self, other: str) -> bool:
        """Whether it had events while the request lived."""
        own = [i for i, (line, _) in enumerate(self._events) if mentions(line.event, self._request_id)]
        return self._others[other][-1] >= min(own, default=0)

    def _holds(self, others: Sequence[str], moments: Sequence[int]) -> bool:
        return self._left > 0 and self._same(others, moments)

    def _same(self, others: Sequence[str], moments: Sequence[int]) -> bool:
        for step in replay(self._config, self._kept(others, moments)):
            self._left -= 1
            if self._decisive(step) != self._wanted[step.n]:
                return False
        return True

    def _kept(self, others: Sequence[str], moments: Sequence[int]) -> Events:
        kept = self._always.union(moments, *(self._others[other] for other in others))
        return [self._events[i] for i in sorted(kept)]


def _fewer(units: list[_Unit], holds: Callable[[list[_Unit]], bool]) -> list[_Unit]:
    """Those without which it does not hold; first all are left out at once, then halves, quarters, …, single ones."""
    size = len(units)
    while size:
        at = 0
        while at < len(units):
            rest = units[:at] + units[at + size :]
            if holds(rest):
                units = rest
            else:
                at += size
        size //= 2
    return units


def _of_replicas(step: Step) -> bool:
    """What a replica went through, or an operator ordered."""
    states = ("ReplicaReady", "ReplicaFailed")
    return (
        step.event["$"] in _OF_REPLICAS
        or _frame(step.event) == "Operate"
        or any(order["$"] in states for order in step.got)
    )


def _frame(tree: Tree) -> str | None:
    """The name of the frame in an event or an order."""
    frame = tree.get("frame")
    return frame["$"] if isinstance(frame, dict) else None


def _essence(order: Tree) -> Tree:
    if order["$"] != "Fact":
        return order
    return {"$": "Fact", "event": order["event"], "stage": order["stage"]}


def _ids(tree: Any) -> set[str]:
    """The requests that are named in it."""
    if isinstance(tree, list):
        return set().union(*map(_ids, tree))
    if not isinstance(tree, dict):
        return set()
    own = tree.get("request_id")
    return {own} if isinstance(own, str) and own else set().union(*map(_ids, tree.values()))
