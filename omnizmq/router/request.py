"""A request in the router's table: what was asked, where it is bound, and how its frames and facts are built.

Pure data and pure functions of it; the rules are in `lifecycle` and `core`.
"""

from __future__ import annotations

import msgspec

from omnizmq import protocol as wire
from omnizmq.config import RouterConfig
from omnizmq.pipeline import Pipeline, Plan
from omnizmq.router import lifecycle as life
from omnizmq.router.pools import Attempt, Binding, Pools, Replica
from omnizmq.trace.facts import Fact


class Request:
    """One live request. `client` is None once its caller is gone."""

    def __init__(self, client: bytes, submit: wire.Submit, plan: Plan, limits: RouterConfig) -> None:
        self.client: bytes | None = client
        self.submit = submit
        self.id = submit.request_id
        self.plan = plan
        self.attempt = 1
        self.lifecycle = life.Lifecycle(submit.request_id, plan)
        self.bindings: dict[str, Binding] = {}
        self.window = min(submit.window, limits.output_window)
        self.window_bytes = limits.output_window_mib << 20
        self.consumed: dict[str, int] = {}

    @property
    def key(self) -> Attempt:
        """The present attempt, as the pools know it."""
        return (self.id, self.attempt)

    def is_bound(self, replica: Replica, attempt: int) -> bool:
        """Whether this incarnation may speak of this attempt (F3)."""
        return attempt == self.attempt and self.bindings.get(replica.stage) == (replica.id, replica.incarnation)

    # --- Frames ----------------------------------------------------------------------------------------------------

    def submission(self, stage: str, pools: Pools) -> wire.SubmitStage:
        config = self.plan.by_name[stage]
        incoming, outgoing = self.plan.incoming[stage], self.plan.outgoing[stage]
        return wire.SubmitStage(
            request_id=self.id,
            external_id=self.submit.external_id,
            attempt=self.attempt,
            engine_id=self.engine_id(stage),
            prompt=None if incoming else self.submit.prompt,
            original_prompt=self.submit.prompt if config.wants_prompt else None,
            params={**config.params, **self.submit.params.get(stage, {})},
            priority=self.submit.priority,
            final=stage in self.plan.final_stages,
            window=self.window,
            window_bytes=self.window_bytes,
            unread=0,
            sources=[wire.Source(edge.source, *self.bindings[edge.source], edge.mode) for edge in incoming],
            targets=[
                wire.Target(
                    edge.target,
                    *self.bindings[edge.target],
                    pools.replicas[self.bindings[edge.target].replica].endpoint,
                    edge.mode,
                    edge.window_chunks,
                    edge.input_timeout_s,
                )
                for edge in outgoing
            ],
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
        if error is None or error.replica is not None or error.stage not in self.bindings:
            return error
        return msgspec.structs.replace(error, replica=self.bindings[error.stage].replica)

    # --- Facts -----------------------------------------------------------------------------------------------------

    def engine_id(self, stage: str) -> str:
        return wire.make_engine_id(self.id, self.attempt, stage)

    def fact(self, event: str, *, stage: str | None, owner: str, at_ns: int, detail: dict[str, wire.Value]) -> Fact:
        engine_id = None if stage is None else self.engine_id(stage)
        return Fact(self.id, self.submit.external_id, self.attempt, at_ns, owner, event, stage, engine_id, detail)

    def planned(self, pipeline: Pipeline) -> dict[str, wire.Value]:
        final = [name for name in self.plan.names if name in self.plan.final_stages]
        return {
            "all_stages": ",".join(pipeline.by_name),
            "stages": ",".join(self.plan.names),
            "edges": ",".join(f"{edge.source}>{edge.target}" for edge in self.plan.edges),
            "final_stages": ",".join(final),
            "last_stage": self.plan.last_stage,
        }

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
