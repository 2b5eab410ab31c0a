"""What the router of one deployment knows, and what the event at hand leads to. Pure.

The rules are in `core` (clients, replicas, time), `reports` (what workers say of requests), `driver` (what lifecycles
order) and `admission`; they share this.
"""

from __future__ import annotations

from omnizmq import protocol as wire
from omnizmq.config import Config
from omnizmq.pipeline import Pipeline
from omnizmq.router.admission import Admission
from omnizmq.router.messages import Effect, ToClient, ToWorker
from omnizmq.router.metrics import Counters
from omnizmq.router.pools import Pools, Replica
from omnizmq.router.request import Attempt, Request
from omnizmq.router.table import Table
from omnizmq.router.timers import Timers
from omnizmq.trace.facts import Fact

_NOTHING: dict[str, wire.Value] = {}
"""The detail of all facts that have none."""


class RouterState:
    """`paused` are the requests that wait for their caller to read. `effects` are to be carried out in their order;
    `may_admit`: somebody who waits may find a replica now. `now`: CLOCK_MONOTONIC in seconds."""

    def __init__(self, config: Config) -> None:
        self.limits = config.router
        self.pipeline = Pipeline(config)
        self.pools = Pools(self.pipeline.stages)
        self.requests = Table()
        self.admission = Admission(self.pools, self.requests, config.router)
        self.timers = Timers()
        self.counters = Counters()
        self.paused: set[str] = set()
        self.now = 0.0
        self.effects: list[Effect] = []
        self.may_admit = False

    def begin(self, now: float) -> None:
        """Another event is at hand."""
        self.now, self.effects, self.may_admit = now, [], False

    def wait(self, request: Request) -> None:
        """For replicas."""
        self.may_admit = True  # it may be before those for whose sake it waits
        self.admission.wait(request, self.now)
        if self.limits.trace:
            lack = self.admission.lack(request)
            del lack["since_ns"]
            self.record(request, "queued", detail=lack)

    # --- Effects ---------------------------------------------------------------------------------------------------

    def to_stage(self, attempt: Attempt, stage: str, frame: wire.RouterToWorker) -> None:
        binding = attempt.bindings[stage]
        self.effects.append(ToWorker(binding.replica, binding.incarnation, frame))

    def to_caller(self, request: Request, frame: wire.RouterToClient) -> None:
        if request.client is not None:
            self.effects.append(ToClient(request.client, frame))

    def credit(self, request: Request, stage: str) -> None:
        """B1: what the caller has consumed of the stage's outputs goes on to who makes them, as long as it does."""
        if stage in request.attempt.lifecycle.unfinished:
            delivered = request.delivered[stage]
            credit = wire.OutputCredit(*request.attempt.key, delivered.credit, delivered.skipped)
            self.to_stage(request.attempt, stage, credit)

    # --- Facts -----------------------------------------------------------------------------------------------------

    def record_before(
        self,
        frame: wire.Submit,
        event: str,
        *,
        owner: str = "router",
        at_ns: int | None = None,
        detail: dict[str, wire.Value] = _NOTHING,
    ) -> None:
        """A fact of a submission that is not a request yet."""
        if self.limits.trace:
            at_ns = int(self.now * 1e9) if at_ns is None else at_ns
            self.effects.append(Fact(frame.request_id, frame.external_id, 1, at_ns, owner, event, None, detail))

    def record(
        self,
        request: Request,
        event: str,
        stage: str | None = None,
        detail: dict[str, wire.Value] = _NOTHING,
        *,
        attempt: Attempt | None = None,
        at_ns: int | None = None,
    ) -> None:
        """A fact of the router's own, of the present attempt or of another one."""
        if self.limits.trace:
            number = (attempt or request.attempt).number
            at_ns = int(self.now * 1e9) if at_ns is None else at_ns
            external_id = request.submit.external_id
            self.effects.append(Fact(request.id, external_id, number, at_ns, "router", event, stage, detail))

    def record_of(
        self,
        replica: Replica,
        request: Request,
        attempt: Attempt,
        event: str,
        at_ns: int,
        detail: dict[str, wire.Value] = _NOTHING,
    ) -> None:
        """A fact of which a replica tells."""
        if self.limits.trace:
            external_id, number = request.submit.external_id, attempt.number
            detail = detail or _NOTHING  # a frame's own empty one is not kept
            fact = Fact(request.id, external_id, number, at_ns, replica.id, event, replica.stage, detail)
            self.effects.append(fact)
