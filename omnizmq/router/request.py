"""A request in the router's table: what was asked, where it is bound, and how its frames and facts are built.

Pure data and pure functions of it; the rules are in `lifecycle` and `core`.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from omnizmq import protocol as wire
from omnizmq.config import RouterConfig
from omnizmq.pipeline import Pipeline, Plan
from omnizmq.router import lifecycle as life
from omnizmq.router.delivered import Delivered
from omnizmq.router.pools import AttemptKey, Binding, Pools, Replica
from omnizmq.router.queue import Line
from omnizmq.trace.context import stage_traceparent


class Attempt:
    """One try at a request: its life, where it is bound, and which of its stages have input."""

    def __init__(self, request_id: str, number: int, lifecycle: life.Lifecycle) -> None:
        self.key: AttemptKey = (request_id, number)
        self.number = number
        self.lifecycle = lifecycle
        self.engine_ids = {stage: wire.make_engine_id(request_id, number, stage) for stage in lifecycle.plan.names}
        self.bindings: dict[str, Binding] = {}
        self.ready: set[str] = set()
        self.paused: set[str] = set()
        self.ever_paused: set[str] = set()
        self.ever_resumed: set[str] = set()

    def binds(self, replica: Replica) -> bool:
        """Whether this incarnation may speak of it (F3)."""
        return self.bindings.get(replica.stage) == (replica.id, replica.incarnation)

    def computes(self, stage: str, plan: Plan) -> bool:
        """Whether the stage takes a place: it has input, and neither it nor a stage that it feeds waits for the caller
        to read (B1)."""
        if any(stage in plan.through(paused) for paused in self.paused):
            return False
        return stage in self.ready or not plan.incoming[stage]


class Request:
    """One live request. `client` is None once its caller is gone. `attempts` are the present one and those before it
    that have still to be confirmed; `shunned` are the incarnations that it was lost with. `arrived`: when it came."""

    def __init__(self, client: bytes, submit: wire.Submit, plan: Plan, limits: RouterConfig, *, arrived: float) -> None:
        self.client: bytes | None = client
        self.submit = submit
        self.id = submit.request_id
        self.arrived = arrived
        self.deadline = None if submit.deadline_s is None else arrived + submit.deadline_s
        self.plan = plan
        self.window = min(submit.window, limits.output_window)
        self.window_bytes = limits.output_window_mib << 20
        hashed = limits.redrive != "never" and limits.max_attempts > 1
        self.delivered = {name: Delivered(name, hashed=hashed) for name in plan.names if name in plan.final_stages}
        self.shunned: set[Binding] = set()
        self.ever_read: set[str] = set()
        self.output_ns: dict[str, int] = {}  # final stage -> when its last output went to the caller
        self.lost: wire.ErrorInfo | None = None
        self.attempt = Attempt(self.id, 1, life.Lifecycle(self.id, plan, self.delivered))
        self.attempts = {1: self.attempt}

    @property
    def ended(self) -> bool:
        """Its terminal is out."""
        return self.attempt.lifecycle.phase is life.Phase.ENDED

    @property
    def line(self) -> Line:
        """With whom it waits for replicas. A key counts where a stage chooses by it."""
        keyed = any(stage.policy == "affinity" for stage in self.plan.stages)
        return Line(self.plan.names, self.submit.affinity if keyed else None, frozenset(self.shunned))

    def would_shun(self, lost: wire.ErrorInfo) -> set[Binding]:
        """Incarnations that the next attempt does not go to: those that were lost, known to be dead or not yet."""
        return self.shunned | {binding for binding in self.attempt.bindings.values() if binding.replica == lost.replica}

    def begin_again(self, lost: wire.ErrorInfo) -> None:
        """F2: the next attempt. `lost` is why the present one cannot go on."""
        self.shunned = self.would_shun(lost)
        self.lost = lost
        for delivered in self.delivered.values():
            delivered.begin_attempt(lost.replica)
        number, ran = self.attempt.number + 1, self.attempt.lifecycle.ran
        self.attempt = Attempt(self.id, number, life.Lifecycle(self.id, self.plan, self.delivered, ran))
        self.attempts[number] = self.attempt

    # --- Frames ----------------------------------------------------------------------------------------------------

    def submission(self, stage: str, pools: Pools) -> wire.SubmitStage:
        """Of the present attempt."""
        config = self.plan.by_name[stage]
        bindings = self.attempt.bindings
        incoming, outgoing = self.plan.incoming[stage], self.plan.outgoing[stage]
        return wire.SubmitStage(
            request_id=self.id,
            external_id=self.submit.external_id,
            attempt=self.attempt.number,
            engine_id=self.attempt.engine_ids[stage],
            prompt=None if incoming else self.submit.prompt,
            original_prompt=self.submit.prompt if config.wants_prompt else None,
            params=config.params | _given(self.submit.params.get(stage, {})),
            priority=self.submit.priority,
            final=stage in self.plan.final_stages,
            window=self.window,
            window_bytes=self.window_bytes,
            unread=max(0, -self.delivered[stage].credit) if stage in self.delivered else 0,
            sources=[wire.Source(edge.source, *bindings[edge.source], edge.mode) for edge in incoming],
            targets=[
                wire.Target(
                    edge.target,
                    *bindings[edge.target],
                    pools.replicas[bindings[edge.target].replica].endpoint,
                    edge.mode,
                    edge.window_chunks,
                    edge.input_timeout_s,
                )
                for edge in outgoing
            ],
            traceparent=stage_traceparent(self.id, self.attempt.engine_ids[stage], self.submit.traceparent),
        )

    def delivery(self, command: life.Deliver) -> wire.Delivery:
        return wire.Delivery(self.id, command.stage, command.modality, command.content, command.stage_finished)

    def terminal(self, command: life.SendTerminal) -> wire.Terminal:
        return wire.Terminal(
            request_id=self.id,
            stage=command.stage,
            modality=command.modality,
            finish_reason=command.finish_reason,
            error=self._located(command.error),
            usage=command.usage,
            usage_incomplete=list(command.usage_incomplete),
            notes=command.notes,
        )

    def _located(self, error: wire.ErrorInfo | None) -> wire.ErrorInfo | None:
        """F1: an error of a stage also names the replica that it happened on."""
        bindings = self.attempt.bindings
        if error is None or error.replica is not None or error.stage not in bindings:
            return error
        return msgspec.structs.replace(error, replica=bindings[error.stage].replica)

    # --- Facts -----------------------------------------------------------------------------------------------------

    def planned(self, pipeline: Pipeline) -> dict[str, wire.Value]:
        submit = self.submit
        detail: dict[str, wire.Value] = {
            "all_stages": pipeline.described,
            **self.plan.described,
            "modalities": ",".join(submit.modalities or ()),
        }
        if submit.deadline_s:
            detail["deadline_s"] = submit.deadline_s
        if submit.priority:
            detail["priority"] = submit.priority
        if submit.traceparent:
            detail["traceparent"] = submit.traceparent
        return detail

    def terminal_facts(self, command: life.SendTerminal) -> dict[str, wire.Value]:
        detail: dict[str, wire.Value] = {
            "finish_reason": command.finish_reason,
            "usage_incomplete": ",".join(command.usage_incomplete),
        }
        error = self._located(command.error)
        if error is not None:
            detail |= {
                "error_code": error.code,
                "error_stage": error.stage,
                "error_replica": error.replica,
                "error_message": error.message,
            }
        return detail


def _given(params: Mapping[str, wire.Param]) -> dict[str, wire.Param]:
    """None is "not given": the configuration's value stands."""
    return {name: value for name, value in params.items() if value is not None}
