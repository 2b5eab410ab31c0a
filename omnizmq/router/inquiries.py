"""Questions about live requests: where is it, now (T1). Pure.

Whoever asks gets what the router knows of the request, and what the workers that it is bound to say of it. They are
asked when somebody looks, never on a request's way, and have `ANSWER_S` to answer: one that is silent so long is named,
and that is an answer too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from omnizmq import protocol as wire
from omnizmq.router.messages import Effect, ToClient, ToWorker
from omnizmq.router.pools import AttemptKey, Replica
from omnizmq.router.request import Request
from omnizmq.router.state import RouterState

ANSWER_S = 0.5
"""How long workers may take. The socket thread of a worker that lives answers within some 50 ms."""

MAX_OPEN = 256
"""Requests that may be asked about at once; beyond it the oldest question is answered with what has come."""


@dataclass
class _Inquiry:
    """One question to workers, for all that ask it meanwhile: `askers` are clients and the numbers of their calls.
    `asked`: stage -> who was asked, of those that have not answered."""

    request_id: str
    attempt: int
    due: float
    asked: dict[str, str]
    askers: list[tuple[bytes, int]]
    answers: dict[str, wire.StageAnswer] = field(default_factory=dict)


class Inquiries:
    """Of one deployment's clients."""

    def __init__(self, state: RouterState) -> None:
        self._state = state
        self._count = 0
        self._open: dict[int, _Inquiry] = {}  # in the order in which they are due
        self._about: dict[AttemptKey, _Inquiry] = {}

    def __len__(self) -> int:
        return len(self._open)

    def ask(self, client: bytes, frame: wire.AskTrace) -> list[Effect]:
        """The newest live request that is meant; its bound workers are asked first where there are any."""
        bearers = self._state.requests.bearers(frame.id)
        if not bearers:
            return [ToClient(client, wire.Traced(frame.call, None))]
        request = max(bearers, key=lambda one: one.arrived)
        asker = (client, frame.call)
        if request.attempt.key in self._about:
            self._about[request.attempt.key].askers.append(asker)
            return []
        asked = self._to_ask(request)
        inquiry = _Inquiry(*request.attempt.key, self._state.now + ANSWER_S, dict(asked), [asker])
        if not asked:
            return self._answers(inquiry, silent=False)
        effects = self._make_room()
        self._count += 1
        self._open[self._count] = self._about[request.attempt.key] = inquiry
        question = wire.AskStage(self._count, *request.attempt.key)
        return effects + [ToWorker(*request.attempt.bindings[stage], question) for stage in asked]

    def came(self, replica: Replica, answer: wire.StageAnswer) -> list[Effect]:
        """From its present incarnation. One that is late, or about what was not asked, is dropped and counted."""
        inquiry = self._open.get(answer.call)
        key: AttemptKey = (answer.request_id, answer.attempt)
        meant = inquiry is not None and key == (inquiry.request_id, inquiry.attempt)
        if inquiry is None or not meant or inquiry.asked.get(replica.stage) != replica.id:
            self._state.counters.late_frames += 1
            return []
        del inquiry.asked[replica.stage]
        inquiry.answers[replica.stage] = answer
        return [] if inquiry.asked else self._close(answer.call, silent=False)

    def next(self) -> float | None:
        """When the next one is due, if any is open."""
        return next(iter(self._open.values())).due if self._open else None

    def due(self) -> list[Effect]:
        """The answers whose time has come, with whoever was silent."""
        over = [call for call, inquiry in self._open.items() if inquiry.due <= self._state.now]
        return [effect for call in over for effect in self._close(call, silent=True)]

    def _make_room(self) -> list[Effect]:
        if len(self._open) < MAX_OPEN:
            return []
        return self._close(next(iter(self._open)), silent=False)

    def _close(self, call: int, *, silent: bool) -> list[Effect]:
        inquiry = self._open.pop(call)
        del self._about[inquiry.request_id, inquiry.attempt]
        return self._answers(inquiry, silent=silent)

    def _to_ask(self, request: Request) -> dict[str, str]:
        """Stages whose end is awaited, and the replicas that have them."""
        attempt, replicas = request.attempt, self._state.pools.replicas
        return {
            stage: attempt.bindings[stage].replica
            for stage in attempt.lifecycle.unfinished
            if attempt.binds(replicas[attempt.bindings[stage].replica])
        }

    def _answers(self, inquiry: _Inquiry, *, silent: bool) -> list[Effect]:
        """To all that asked. `silent`: who has not answered had the time."""
        request = self._state.requests.get(inquiry.request_id)
        document = None
        if request is not None:
            same = request.attempt.number == inquiry.attempt  # else nobody was asked about this one
            names = sorted(inquiry.asked.values()) if silent and same else []
            answers = inquiry.answers if same else {}
            document = wire.encode_json(inspection(self._state, request, answers, names))
        return [ToClient(client, wire.Traced(call, document)) for client, call in inquiry.askers]


def inspection(
    state: RouterState, request: Request, answers: Mapping[str, wire.StageAnswer], silent: Iterable[str]
) -> dict[str, Any]:
    """The document: what the router knows of the request at this moment, and what its workers have answered."""
    attempt = request.attempt
    waits = request.id in state.admission.queue
    return {
        "request_id": request.id,
        "external_id": request.submit.external_id,
        "attempt": attempt.number,
        "now_ns": _ns(state.now),
        "phase": attempt.lifecycle.phase.value,
        "caller": request.client is not None,
        "deadline_ns": None if request.deadline is None else _ns(request.deadline),
        "queue": state.admission.lack(request) if waits else None,
        "deliveries": {
            stage: {"sent": delivered.sent, "consumed": delivered.consumed, "ended": delivered.ended}
            for stage, delivered in request.delivered.items()
        },
        "stages": {stage: _stage(state, request, stage, answers.get(stage)) for stage in request.plan.names},
        "silent": list(silent),
    }


def _stage(state: RouterState, request: Request, stage: str, answer: wire.StageAnswer | None) -> dict[str, Any]:
    binding = request.attempt.bindings.get(stage)
    known = request.attempt.lifecycle.facts(stage)
    document: dict[str, Any] = {**known, "replica": None, "answer": None if answer is None else _answer(answer)}
    if binding is None:
        return document
    replica = state.pools.replicas[binding.replica]
    same = replica.incarnation == binding.incarnation
    return document | {
        "replica": replica.id,
        "incarnation": binding.incarnation,
        "pid": replica.pid if same else None,
        "state": replica.state if same else "dead",
        "engine": replica.engine_state,
        "engine_since_ns": _ns(replica.engine_since),
        "engine_text": replica.engine_text,
        "heard_ns": _ns(replica.last_seen),
    }


def _answer(answer: wire.StageAnswer) -> dict[str, Any]:
    """As JSON: without the ids, which the document has."""
    document: dict[str, Any] = msgspec.structs.asdict(answer)
    for name in ("call", "request_id", "attempt", "incarnation"):
        del document[name]
    document["waiting_for_slot"] = document.pop("waiting")
    document["inputs"] = [_ends(edge, source="from") for edge in answer.inputs]
    document["edges"] = [_ends(edge, target="to") for edge in answer.edges]
    document["caller"] = None if answer.caller is None else msgspec.structs.asdict(answer.caller)
    return document


def _ends(edge: wire.InputState | wire.EdgeState, **names: str) -> dict[str, Any]:
    return {names.get(key, key): value for key, value in msgspec.structs.asdict(edge).items()}


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
