"""A request in the router's table: what was asked, where it is bound, and how its frames and facts are built.

Pure data and pure functions of it; the rules are in `lifecycle` and `core`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from omnizmq import protocol as wire
from omnizmq.pipeline import Pipeline, Plan
from omnizmq.router import lifecycle as life
from omnizmq.router.pools import Pools, Replica
from omnizmq.trace.facts import Fact


class Binding(NamedTuple):
    """One incarnation of a replica: every frame of this attempt and stage goes there (S4)."""

    replica: str
    incarnation: int


class Request:
    """One live request. `client` is None once its caller is gone."""

    def __init__(self, client: bytes, submit: wire.Submit, plan: Plan) -> None:
        self.client: bytes | None = client
        self.submit = submit
        self.id = submit.request_id
        self.plan = plan
        self.attempt = 1
        self.lifecycle = life.Lifecycle(submit.request_id, plan)
        self.bindings: dict[str, Binding] = {}
        self.consumed = 0

    def bind(self, chosen: Mapping[str, Replica]) -> None:
        self.bindings = {stage: Binding(replica.id, replica.incarnation) for stage, replica in chosen.items()}

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
            sources=[wire.Source(edge.source, *self.bindings[edge.source], edge.mode) for edge in incoming],
            targets=[
                wire.Target(
                    edge.target,
                    *self.bindings[edge.target],
                    pools.replicas[self.bindings[edge.target].replica].endpoint,
                    edge.mode,
                    edge.window_chunks,
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
            error=command.error,
            usage=command.usage,
            usage_incomplete=list(command.usage_incomplete),
            notes=command.notes,
        )

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
            "final_stages": ",".join(final),
            "last_stage": self.plan.last_stage,
        }

    def terminal_facts(self, command: life.SendTerminal) -> dict[str, wire.Value]:
        detail: dict[str, wire.Value] = {
            "finish_reason": command.finish_reason,
            "usage_incomplete": ",".join(command.usage_incomplete),
        }
        if command.error is not None:
            detail |= {
                "error_code": command.error.code,
                "error_stage": command.error.stage,
                "error_replica": command.error.replica,
                "error_message": command.error.message,
            }
        return detail
