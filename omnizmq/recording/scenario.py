"""Makes a scenario of a recording: the events of one request, or all, with what the core orders upon them now. Pure.

A scenario is a recording itself. Questions (`status`, `trace` of a live request) are left out unless they are asked
for; with a request, so is whatever it does not need (`needed`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from omnizmq.config import Config
from omnizmq.errors import InvalidRequestError
from omnizmq.recording.file import Line
from omnizmq.recording.form import Tree
from omnizmq.recording.needed import Events, about, asks, needed, without_answers
from omnizmq.recording.replayer import Step, commands, replay


def request_ids(steps: Sequence[Step], id_: str) -> list[str]:
    """The request ids of those that bear this request id or external id, in order of arrival."""
    return [frame["request_id"] for frame in _submitted(steps) if id_ in (frame["request_id"], frame["external_id"])]


def whole(config: Config, events: Events, *, questions: bool = False) -> list[Line]:
    """All events, with what the core orders upon them now."""
    steps = list(replay(config, events))
    if not questions:
        kept = [event for event, step in zip(events, steps, strict=True) if not asks(step)]
        fewer = list(replay(config, kept))
        if [without_answers(step.got) for step in fewer] == [
            without_answers(step.got) for step in steps if not asks(step)
        ]:
            steps = fewer
    return _lines(steps)


def of_request(config: Config, events: Events, request_id: str, *, questions: bool = False) -> list[Line]:
    """The events that the request needs, up to its end. Raises `InvalidRequestError` where what was recorded about it
    is not what the core orders now: what came then is no answer to it."""
    steps = list(replay(config, events))
    for step in steps:
        if _about(step.expected, request_id) != _about(step.got, request_id):
            raise InvalidRequestError(
                f"{request_id}: what was recorded about it is not what this omnizmq orders, first at event {step.n}: "
                f"look at it with --show {step.n}; leave --request out for a scenario of all"
            )
    return _lines(list(replay(config, needed(config, events, steps, request_id, questions=questions))))


def others(lines: Sequence[Line], request_id: str) -> list[str]:
    """The request ids of the other requests in it, in order of arrival."""
    return [frame["request_id"] for frame in _submitted(lines) if frame["request_id"] != request_id]


def _about(orders: Sequence[Tree], request_id: str) -> list[Tree]:
    return about(commands(orders), request_id)


def _submitted(of: Sequence[Step] | Sequence[Line]) -> list[Tree]:
    frames = [one.event.get("frame") for one in of]
    return [frame for frame in frames if isinstance(frame, dict) and frame["$"] == "Submit"]


def _lines(steps: Sequence[Step]) -> list[Line]:
    return [Line(n, step.now, _anywhere(step.event), _anywhere(step.got)) for n, step in enumerate(steps, 1)]


def _anywhere(tree: Any) -> Any:
    """Without the directories of sockets: a scenario is of no machine."""
    if isinstance(tree, list):
        return [_anywhere(item) for item in tree]
    if not isinstance(tree, dict):
        return tree
    return {name: _name(item) if name == "endpoint" else _anywhere(item) for name, item in tree.items()}


def _name(endpoint: Any) -> Any:
    """The name of the socket: within a deployment each has its own."""
    if not isinstance(endpoint, str):
        return _anywhere(endpoint)
    scheme, found, path = endpoint.partition("://")
    return f"{scheme}://{path.rpartition('/')[2]}" if found else endpoint
