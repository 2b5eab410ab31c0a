"""What the engine `transformers` knows of a model before it loads anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omnizmq.errors import ConfigError
from omnizmq.workers.engine import Engine, EngineContext
from omnizmq.workers.engines.hf.checkpoint import Checkpoint
from omnizmq.workers.memory import MemoryAsked, MemoryNeed


@dataclass(frozen=True, slots=True)
class Role:
    """A stage of the model. `fed`: by one edge; else it takes prompts. `makes`: "text", "audio", or no final output."""

    fed: bool
    makes: str | None = None


@dataclass(frozen=True, slots=True)
class Model:
    """`create` loads a stage; `make_tiny` makes a random checkpoint in a folder, by its seed, unless it is there. They
    alone may import torch."""

    title: str
    model_type: str  # in a checkpoint's config.json
    tiny: str  # `model = "TINY:SEED"`
    roles: Mapping[str, Role]
    create: Callable[[EngineContext, Mapping[str, Any], Checkpoint], Engine]
    make_tiny: Callable[[Path, int], Path]
    estimate: Callable[[MemoryAsked, str, Checkpoint], MemoryNeed]  # of a role, from headers and `config.json`
    estimate_tiny: Callable[[MemoryAsked, str], MemoryNeed]

    def role(self, stage: str, name: str) -> Role:
        """Raises `ConfigError` for one that the model does not have."""
        role = self.roles.get(name)
        if role is None:
            raise ConfigError(f'stage.{stage}.options.role = "{name}": {self.title} has {" and ".join(self.roles)}')
        return role

    def check_place(self, context: EngineContext | MemoryAsked, name: str) -> None:
        """Raises `ConfigError` for a role that the model does not have, or that does not fit into the pipeline so: one
        rule, for who checks a configuration and for who loads it."""
        role = self.role(context.stage, name)
        if context.final_output not in (None, role.makes):
            made = f'"{role.makes}"' if role.makes else "no final output"
            raise ConfigError(
                f'stage.{context.stage}.final_output = "{context.final_output}": this {name} makes {made}'
            )
        if len(context.sources) != (1 if role.fed else 0):
            needs = "needs exactly one edge that leads to it" if role.fed else "takes prompts, not edges"
            raise ConfigError(f"stage.{context.stage}: this {name} {needs}")
        if role.makes == "audio" and context.targets:
            raise ConfigError(f"stage.{context.stage}: a {name} is the last stage, and {context.targets[0]} follows it")
