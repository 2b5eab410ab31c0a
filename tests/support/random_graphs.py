"""Any acyclic graph of a few stages, with any edge modes, for property tests."""

from __future__ import annotations

from omnizmq.config import Config, EdgeConfig, StageConfig
from omnizmq.pipeline import Pipeline
from support.properties import Dice, dice

MAX_STAGES = 5


def graph(roll: Dice) -> Pipeline:
    """1 to 5 stages in any configured order, several of them final, mixed modes, ready on all or any input."""
    names = "abcde"[: roll.pick([1, 2, 3, 3, 4, 4, MAX_STAGES])]
    modalities = [roll.pick([None, "text", "audio"]) for _ in names]
    if not any(modalities):
        modalities[-1] = "audio"
    stages = [
        StageConfig(name=name, engine="synthetic", final_output=modality, replicas=1, ready=roll.pick(["all", "any"]))
        for name, modality in zip(names, modalities, strict=True)
    ]
    edges = []
    for n, target in enumerate(names):
        for source in names[:n]:
            mode = roll.pick([None, "chunk", "payload", "relay"])
            if mode is not None:
                edges.append(EdgeConfig(source=source, target=target, mode=mode))
    return Pipeline(Config(name="test", stage=roll.shuffled(stages), edge=edges))


graphs = dice.map(graph)
