"""Pipelines in one line, for tests.

    pipeline("thinker:text > talker > code2wav:audio")

`>` is a chunk edge, `=>` a payload edge, `~>` a relay edge. `;` starts another chain over the same stages. A stage's
final output is named once, behind a colon. Stages are configured in the order in which they are first named.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from omnizmq.config import Config, EdgeConfig, RouterConfig, StageConfig, validate
from omnizmq.pipeline import Pipeline

MODES = {">": "chunk", "=>": "payload", "~>": "relay"}

SPEECH = "thinker:text > talker > code2wav:audio"
JOIN = "left:text > join:audio; right > join"


def config(
    graph: str, *, stages: Mapping[str, Mapping[str, Any]] | None = None, router: Mapping[str, Any] | None = None
) -> Config:
    """`stages` maps a stage's name to more of its keys, `router` is the `[router]` table."""
    final: dict[str, str | None] = {}
    edges: list[EdgeConfig] = []
    for chain in graph.split(";"):
        words = re.split(r"\s*(=>|~>|>)\s*", chain.strip())
        names = []
        for word in words[::2]:
            name, _, modality = word.partition(":")
            names.append(name)
            final[name] = modality or final.get(name)
        for source, arrow, target in zip(names, words[1::2], names[1:], strict=False):
            edges.append(EdgeConfig(source=source, target=target, mode=MODES[arrow]))
    more = stages or {}
    return validate(
        Config(
            name="test",
            stage=[
                StageConfig(name=name, engine="synthetic", final_output=modality, **more.get(name, {}))
                for name, modality in final.items()
            ],
            edge=edges,
            router=RouterConfig(**(router or {})),
        )
    )


def pipeline(graph: str, **more: Any) -> Pipeline:
    return Pipeline(config(graph, **more))
