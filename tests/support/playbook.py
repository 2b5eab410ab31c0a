"""Transcripts: what goes into a pure core and what must come out, line by line.

    assert play >> Bound() << SubmitStage("talker")
    assert play >> Registered("talker") << SubmitStage("thinker")

`>>` feeds an event and `<<` names the next command that came out. Several events may follow each other; their commands
are then named together. The assertion fails when a command is another one than named, and when one is left unnamed, so
a line says everything that its events bring about.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Self, TypeVar

import msgspec
import pytest

from omnizmq import protocol as wire
from omnizmq.config import Config
from omnizmq.errors import ProtocolError
from omnizmq.pipeline import Plan
from omnizmq.router.core import RouterCore
from omnizmq.router.delivered import Delivered
from omnizmq.router.lifecycle import Event, Lifecycle, SendTerminal
from omnizmq.router.messages import (
    ClientSent,
    Effect,
    Input,
    ReplicaExited,
    ReplicaReady,
    ReplicaStarting,
    Ticked,
    ToClient,
    ToWorker,
    WorkerJoined,
    WorkerSent,
)
from omnizmq.router.request import Request
from omnizmq.trace.facts import Fact

E = TypeVar("E")
C = TypeVar("C")


class Playbook(Generic[E, C]):
    """`handle` is the core's way in."""

    def __init__(self, handle: Callable[[E], Sequence[C]]) -> None:
        self._handle = handle
        self._said: list[C] = []
        self._lines: list[str] = []

    def __rshift__(self, event: E) -> Self:
        self._lines.append(f">> {event}")
        self._said += self._handle(event)
        return self

    def __lshift__(self, expected: object) -> Self:
        self._lines.append(f"<< {expected}")
        came = self._said.pop(0) if self._said else None
        if came is None or expected != came:  # an `Expected` stands left, so that its comparison is used
            pytest.fail("\n".join([*self._lines, f"but {came if came is not None else 'nothing'} came"]), pytrace=False)
        return self

    def __bool__(self) -> bool:
        left, self._said = self._said, []
        if left:
            pytest.fail("\n".join([*self._lines, *(f"unnamed: {command}" for command in left)]), pytrace=False)
        return True


# --- One request ---------------------------------------------------------------------------------------------------


class LifePlay(Playbook[Event, Any]):
    """A transcript of one request's lifecycle."""

    def __init__(self, plan: Plan, delivered: Mapping[str, Delivered] | None = None) -> None:
        self.lifecycle = Lifecycle("demo-0", plan, delivered)
        super().__init__(self.lifecycle.handle)

    def drops(self, event: Event) -> None:
        """It is counted as late, and changes nothing."""
        before, late = state_of(self.lifecycle), self.lifecycle.late
        assert self.lifecycle.handle(event) == []
        assert self.lifecycle.late == late + 1
        assert state_of(self.lifecycle) == before

    def ignores(self, event: Event) -> None:
        """It changes nothing, not even the count of late ones."""
        before, late = state_of(self.lifecycle), self.lifecycle.late
        assert self.lifecycle.handle(event) == []
        assert self.lifecycle.late == late
        assert state_of(self.lifecycle) == before

    def refuses(self, event: Event, why: str) -> None:
        """It cannot be: an error that tells the request's story, and nothing changes."""
        before, late = state_of(self.lifecycle), self.lifecycle.late
        with pytest.raises(ProtocolError, match=why) as caught:
            self.lifecycle.handle(event)
        assert self.lifecycle.story() in caught.value.message
        assert self.lifecycle.late == late
        assert state_of(self.lifecycle) == before


def state_of(lifecycle: Lifecycle) -> str:
    """All of its state but the count of late events and the plan, to be compared."""
    facts = {name: value for name, value in vars(lifecycle).items() if name not in ("late", "plan", "delivered")}
    return repr((facts, [delivered_facts(delivered) for delivered in lifecycle.delivered.values()]))


def delivered_facts(delivered: Delivered) -> tuple[object, ...]:
    """All of its state, to be compared."""
    values = (getattr(delivered, name) for name in sorted(delivered.__slots__))
    return tuple(value.hexdigest() if hasattr(value, "hexdigest") else value for value in values)


def terminal(reason: str = "stop", **fields: Any) -> Any:
    """A terminal of which only the named fields matter."""
    return Expected(None, SendTerminal, {"finish_reason": reason, **fields})


# --- The router ----------------------------------------------------------------------------------------------------


class Expected:
    """Equals an effect to that peer with a frame of that kind, whose named fields have these values."""

    def __init__(self, to: str | None, kind: type[Any], fields: dict[str, Any]) -> None:
        self.to, self.kind, self.fields = to, kind, fields

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        to, frame = _addressed(other)
        return (
            to == self.to and type(frame) is self.kind and all(getattr(frame, k) == v for k, v in self.fields.items())
        )

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in self.fields.items())
        return f"{self.to} {self.kind.__name__}({fields})"


def _addressed(effect: object) -> tuple[str | None, object]:
    if isinstance(effect, ToClient):
        return effect.client.decode(), effect.frame
    if isinstance(effect, ToWorker):
        return effect.replica, effect.frame
    return None, effect


def to(peer: str, kind: type[Any], **fields: Any) -> Expected:
    """A frame to a client or a replica: `to("alice", Terminal, finish_reason="stop")`."""
    return Expected(peer, kind, fields)


def effect(kind: type[Any], **fields: Any) -> Expected:
    """Any other effect."""
    return Expected(None, kind, fields)


SUFFIX = "0123456789abcdef"


def rid(external_id: str, suffix: str = SUFFIX) -> str:
    """The request id that `submits` makes of an external id."""
    return f"{external_id}-{suffix}"


class RouterPlay(Playbook[Input, Effect]):
    """A transcript of a router core: clients and replicas by their names, time by `waits`.

    Facts for the trace are not part of it; they are kept in `facts`. Heartbeats to workers neither: nobody waits for
    them. Every replica is ready at the beginning, unless `ready` says otherwise, and beats while time passes, unless it
    is among the `silent` ones.
    """

    def __init__(self, config: Config, *, ready: bool = True) -> None:
        self.core = RouterCore(config)
        self.now = 100.0
        self.facts: list[Fact] = []
        self.silent: set[str] = set()
        super().__init__(self._feed)
        if ready:
            for replica in self.core.pools.replicas:
                self.starts(replica)

    def _feed(self, event: Input) -> list[Effect]:
        effects = self.core.handle(event, self.now)
        self.facts += [effect for effect in effects if isinstance(effect, Fact)]
        return [
            effect
            for effect in effects
            if not isinstance(effect, Fact)
            and not (isinstance(effect, ToWorker) and isinstance(effect.frame, wire.Ping))
        ]

    def starts(self, replica: str) -> list[Effect]:
        """Its next incarnation is spawned, joins, and becomes ready. What that brings about besides."""
        incarnation = self.core.pools.replicas[replica].incarnation + 1
        effects = self._feed(ReplicaStarting(replica, incarnation, 1000 + incarnation))
        effects += self._feed(WorkerJoined(replica, incarnation, f"ipc://{replica}#{incarnation}"))
        effects += self._feed(self.beats(replica))
        return [one for one in effects if not isinstance(one, ReplicaReady)]

    @property
    def now_ns(self) -> int:
        return int(self.now * 1e9)

    def waits(self, seconds: float) -> Self:
        """Time passes, with heartbeats and a tick in every second of it, and a tick at its end."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + 1.0)
            for replica in self.core.pools.replicas.values():
                if replica.state in ("ready", "draining") and replica.id not in self.silent:
                    self._said += self._feed(self.beats(replica.id))
            _ = self >> Ticked()
        return self

    # --- Inputs ----------------------------------------------------------------------------------------------------

    def submits(self, client: str, external_id: str = "demo", **fields: Any) -> ClientSent:
        frame = submission(external_id, **fields)
        return ClientSent(client.encode(), frame)

    def worker(self, replica: str, kind: type[Any], incarnation: int | None = None, **fields: Any) -> WorkerSent:
        """A frame of the replica's present incarnation, or of another one."""
        number = self.core.pools.replicas[replica].incarnation if incarnation is None else incarnation
        return WorkerSent(replica, number, kind(incarnation=number, **fields))

    def beats(self, replica: str, state: str = "idle", since: float | None = None) -> WorkerSent:
        since_ns = self.now_ns if since is None else int(since * 1e9)
        return self.worker(
            replica,
            wire.Heartbeat,
            state=state,
            since_ns=since_ns,
            text=state,
            rings=[],
            late_frames=0,
            bad_frames=0,
            discarded=0,
        )

    def registers(self, replica: str, request: str, attempt: int = 1) -> WorkerSent:
        return self.reports(replica, request, "registered", attempt)

    def reports(self, replica: str, request: str, fact: str, attempt: int = 1) -> WorkerSent:
        return self.worker(
            replica, wire.StageFact, request_id=request, attempt=attempt, fact=fact, at_ns=self.now_ns, detail={}
        )

    def has_input(self, replica: str, request: str, attempt: int = 1) -> WorkerSent:
        return self.reports(replica, request, "input_ready", attempt)

    def makes(
        self,
        replica: str,
        request: str,
        seq: int,
        made: str | bytes | None = None,
        *,
        last: bool = False,
        attempt: int = 1,
    ) -> WorkerSent:
        """Text, or sound at 24 kHz, or nothing."""
        head = {"request_id": request, "attempt": attempt}
        return self.worker(
            replica, wire.Output, **head, seq=seq, content=content_of(made), last=last, at_ns=self.now_ns
        )

    def pauses(self, replica: str, request: str, paused: bool = True, attempt: int = 1) -> WorkerSent:
        head = {"request_id": request, "attempt": attempt}
        return self.worker(replica, wire.StagePaused, **head, paused=paused, at_ns=self.now_ns)

    def has_read(self, client: str, request: str, stage: str, outputs: int) -> ClientSent:
        return ClientSent(client.encode(), wire.Consumed(request, stage, outputs))

    def orders(
        self, client: str, action: str, target: str, *, timeout_s: float = 30.0, force: bool = False, call: int = 1
    ) -> ClientSent:
        """An operator's order."""
        return ClientSent(client.encode(), wire.Operate(call, action, target, timeout_s, force))

    def finishes(self, replica: str, request: str, reason: str | None = "stop", **fields: Any) -> WorkerSent:
        report = {
            "attempt": 1,
            "error": None,
            "usage": {},
            "note": None,
            "outputs": 0,
            "edges": [],
            "at_ns": self.now_ns,
        }
        report |= fields
        return self.worker(replica, wire.StageFinished, request_id=request, finish_reason=reason, **report)

    def dies(self, replica: str, why: str = "killed by SIGKILL") -> ReplicaExited:
        return ReplicaExited(replica, self.core.pools.replicas[replica].incarnation, why)

    # --- Questions -------------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        document: dict[str, Any] = msgspec.json.decode(wire.encode_json(self.core.status(self.now)))
        return document

    @property
    def live(self) -> list[str]:
        """The ids of all requests that have not settled."""
        return [request.id for request in self.core.requests]

    @property
    def waiting(self) -> list[str]:
        """The ids of those that wait for replicas, in their order."""
        entries = sorted(entry for _, entry in self.core.queue._line_of.values())
        return [entry.request_id for entry in entries]

    def request(self, request_id: str) -> Request:
        request = self.core.requests.get(request_id)
        assert request is not None
        return request

    def counts(self, name: str) -> int:
        return int(getattr(self.core.counters, name))

    def brings(self, event: Input) -> tuple[list[Effect], list[str]]:
        """What an event brings about: effects, and the events of facts."""
        before = len(self.facts)
        effects = self._feed(event)
        return effects, [fact.event for fact in self.facts[before:]]

    def is_empty(self) -> bool:
        """B3: nothing of any request is left in any table."""
        status = self.status()
        requests = self.core.requests
        tables = (requests, requests._by_id, requests._by_external, self.core.queue, self.core.state.timers)
        return not any(map(len, tables)) and not any(
            status[key] for key in ("live_requests", "bindings", "queued", "paused", "leftovers")
        )


def content_of(made: str | bytes | None) -> wire.Content | None:
    if isinstance(made, bytes):
        return wire.Audio(made, 24_000)
    return None if made is None else wire.Text(made)


def submission(external_id: str = "demo", **fields: Any) -> wire.Submit:
    """A good one, of which some fields may be replaced. `suffix` is the random part of the request id."""
    suffix = fields.pop("suffix", SUFFIX)
    good: dict[str, Any] = {
        "request_id": rid(external_id, suffix),
        "external_id": external_id,
        "prompt": wire.Prompt("Hello.", None, None),
        "modalities": None,
        "params": {},
        "priority": 0,
        "deadline_s": None,
        "affinity": None,
        "window": 1024,
        "at_ns": 100,
        "traceparent": None,
    }
    return wire.Submit(**good | fields)
