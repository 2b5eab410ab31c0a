"""The stage graph, and the plan that a request's modalities select (P1-P5).

`final_stages` (a set: every final stage of a requested modality) and `last_stage` (one stage: the last of them in
topological order) are two facts. Stages are ordered by their depth, the longest path from a source, and by their order
in the configuration where the depth is equal.

Pure: knows the configuration and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from omnizmq.config import Config, EdgeConfig, StageConfig
from omnizmq.errors import InvalidRequestError

_QUOTED_NAMES = 4
_QUOTED_CHARS = 40
"""What an error quotes of unknown names at most: a caller chose them."""


@dataclass(frozen=True)
class Plan:
    """What one request needs. `stages` are in topological order, `edges` are those between them."""

    stages: tuple[StageConfig, ...]
    edges: tuple[EdgeConfig, ...]
    final_stages: frozenset[str]
    last_stage: str

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(stage.name for stage in self.stages)

    @cached_property
    def by_name(self) -> dict[str, StageConfig]:
        return {stage.name: stage for stage in self.stages}

    @cached_property
    def incoming(self) -> dict[str, tuple[EdgeConfig, ...]]:
        return {name: tuple(edge for edge in self.edges if edge.target == name) for name in self.names}

    @cached_property
    def outgoing(self) -> dict[str, tuple[EdgeConfig, ...]]:
        return {name: tuple(edge for edge in self.edges if edge.source == name) for name in self.names}

    def through(self, stage: str) -> frozenset[str]:
        """The stage, and all that it is fed by, near and far."""
        return self._through[stage]

    @cached_property
    def _through(self) -> dict[str, frozenset[str]]:
        found: dict[str, frozenset[str]] = {}
        for name in self.names:  # in topological order
            found[name] = frozenset({name}).union(*(found[edge.source] for edge in self.incoming[name]))
        return found

    @cached_property
    def described(self) -> dict[str, str]:
        """In words, for the trace: names with commas between them."""
        return {
            "stages": ",".join(self.names),
            "edges": ",".join(f"{edge.source}>{edge.target}" for edge in self.edges),
            "final_stages": ",".join(name for name in self.names if name in self.final_stages),
            "last_stage": self.last_stage,
        }

    def modality(self, stage: str) -> str:
        """The output type that the stage declares; only final stages have one."""
        modality = self.by_name[stage].final_output
        if modality is None:
            raise ValueError(f"stage {stage} has no final output")
        return modality


class Pipeline:
    """All stages and edges of a deployment. The configuration has been validated: the graph has no cycle."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self._edges = tuple(config.edge)
        depths = _depths(config)
        self.stages = tuple(sorted(config.stage, key=lambda stage: depths[stage.name]))
        self.by_name = {stage.name: stage for stage in self.stages}
        self.described = ",".join(self.by_name)
        self._plans: dict[frozenset[str], Plan] = {}

    @property
    def modalities(self) -> list[str]:
        """What a caller can ask for, each once, in topological order."""
        return list(dict.fromkeys(stage.final_output for stage in self.stages if stage.final_output is not None))

    def plan(self, modalities: Sequence[str] | None) -> Plan:
        """The plan for these modalities; None or none asked for: all that the pipeline has (P2).

        Raises `InvalidRequestError` that names those that exist.
        """
        wanted = frozenset(modalities or self.modalities)
        unknown = sorted(wanted.difference(self.modalities))
        if unknown:
            named = ", ".join(repr(name[:_QUOTED_CHARS]) for name in unknown[:_QUOTED_NAMES])
            raise InvalidRequestError(f"unknown modality {named}: this deployment has {', '.join(self.modalities)}")
        if wanted not in self._plans:
            self._plans[wanted] = self._select(wanted)
        return self._plans[wanted]

    def _select(self, wanted: frozenset[str]) -> Plan:
        final = [stage.name for stage in self.stages if stage.final_output in wanted]
        needed = set(final)
        for stage in reversed(self.stages):
            if stage.name in needed:
                needed.update(edge.source for edge in self._edges if edge.target == stage.name)
        return Plan(
            stages=tuple(stage for stage in self.stages if stage.name in needed),
            edges=tuple(edge for edge in self._edges if edge.source in needed and edge.target in needed),
            final_stages=frozenset(final),
            last_stage=final[-1],
        )


def _depths(config: Config) -> dict[str, int]:
    """The longest path from a source to each stage, in edges."""
    depths = {stage.name: 0 for stage in config.stage}
    for _ in config.stage:
        for edge in config.edge:
            depths[edge.target] = max(depths[edge.target], depths[edge.source] + 1)
    return depths
