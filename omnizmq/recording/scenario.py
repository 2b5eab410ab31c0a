"""Makes a scenario of a recording: the events of one request, or all, with what the core orders upon them now. Pure.

A scenario is a recording itself. Other requests are left out where this one's orders do not depend on them, and so are
the heartbeats and ticks that it does not need.
"""

from __future__ import annotations

from collections.abc import Sequence

from omnizmq.config import Config
from omnizmq.errors import InvalidRequestError
from omnizmq.recording.file import Line
from omnizmq.recording.form import Tree
from omnizmq.recording.replayer import Step, mentions, replay
from omnizmq.router.messages import Input

Events = Sequence[tuple[Line, Input]]

_OF_REPLICAS = ("ReplicaStarting", "WorkerJoined", "ReplicaExited", "WorkerUnreachable", "DrainAsked", "StopAsked")


def request_ids(steps: Sequence[Step], id_: str) -> list[str]:
    """The request ids of those that bear this request id or external id, in order of arrival."""
    frames = [step.event.get("frame") for step in steps]
    submitted = [frame for frame in frames if isinstance(frame, dict) and frame["$"] == "Submit"]
    return [frame["request_id"] for frame in submitted if id_ in (frame["request_id"], frame["external_id"])]


def whole(config: Config, events: Events) -> list[Line]:
    """All events, with what the core orders upon them now."""
    return [_line(n, step) for n, step in enumerate(replay(config, events), 1)]


def of_request(config: Config, events: Events, request_id: str) -> list[Line]:
    """The events that the request needs, up to its end. Raises `InvalidRequestError` where it needs others' too."""
    before = list(replay(config, events))
    until = max(n for n, step in enumerate(before) if _about(step, request_id))
    wanted = _orders(before, request_id)
    for keeps in (_what_it_did, _what_it_saw):
        kept = [events[n] for n in range(until + 1) if keeps(before[n], request_id)]
        after = list(replay(config, kept))
        if _orders(after, request_id) == wanted:
            return [_line(n, step) for n, step in enumerate(after, 1)]
    raise InvalidRequestError(
        f"{request_id} depends on the requests beside it: leave --request out, and take the scenario of all"
    )


def _what_it_did(step: Step, request_id: str) -> bool:
    """Its own events, and those of replicas that lead to something."""
    if _about(step, request_id) or step.event["$"] in _OF_REPLICAS:
        return True
    return step.event["$"] == "WorkerSent" and _of_kind(step.got, "ReplicaReady")


def _what_it_saw(step: Step, request_id: str) -> bool:
    """All but what other requests, and clients, did."""
    if _about(step, request_id) or step.event["$"] not in ("ClientSent", "ClientGone", "WorkerSent"):
        return True
    frame = step.event.get("frame")
    return isinstance(frame, dict) and frame["$"] == "Heartbeat"


def _of_kind(orders: Sequence[Tree], *names: str) -> bool:
    return any(order["$"] in names for order in orders)


def _about(step: Step, request_id: str) -> bool:
    return mentions(step.event, request_id) or mentions(step.got, request_id)


def _orders(steps: Sequence[Step], request_id: str) -> list[Tree]:
    """Those about the request, in order."""
    return [order for step in steps for order in step.got if mentions(order, request_id)]


def _line(n: int, step: Step) -> Line:
    return Line(n, step.now, step.event, step.got)
