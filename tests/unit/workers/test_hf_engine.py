"""What the engine `transformers` says of a model before it loads the library."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from omnizmq.errors import ConfigError
from omnizmq.workers.engine import EngineContext
from omnizmq.workers.engines.hf.engine import create, estimate_memory
from omnizmq.workers.memory import MemoryAsked

CONTEXT = EngineContext(
    stage="voice",
    model="tiny-csm:0",
    device=(),
    options={"role": "talker"},
    sources=(),
    targets=("code2wav",),
    final_output=None,
    max_inflight=8,
    private_dir=Path("/nowhere"),
    wake=lambda: None,
    progress=lambda _: None,
)


@pytest.mark.parametrize("said", [{"model_type": "llama"}, {}])
def test_a_model_that_is_not_known_is_refused_with_those_that_are(tmp_path: Path, said: dict[str, str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(said))
    with pytest.raises(ConfigError) as caught:
        create(replace(CONTEXT, model=str(tmp_path)))
    assert caught.value.message == (
        f'model = "{tmp_path}": its model_type is {said.get("model_type")!r}; '
        'this engine knows "qwen3_omni_moe" (Qwen3-Omni), "csm" (CSM)'
    )


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        (
            {"options": {"role": "thinker"}, "targets": ("talker",)},
            'stage.voice.options.role = "thinker": CSM has talker and code2wav',
        ),
        ({"final_output": "text"}, 'stage.voice.final_output = "text": this talker makes no final output'),
        ({"sources": ("thinker",)}, "stage.voice: this talker takes prompts, not edges"),
        (
            {"options": {"role": "code2wav"}, "targets": ()},
            "stage.voice: this code2wav needs exactly one edge that leads to it",
        ),
        (
            {"options": {"role": "code2wav"}, "sources": ("talker",)},
            "stage.voice: a code2wav is the last stage, and code2wav follows it",
        ),
        (
            {"model": "tiny-qwen3-omni:3", "final_output": "text"},
            'stage.voice.final_output = "text": this talker makes no final output',
        ),
        ({"device": ("cuda:0", "cuda:1")}, "stage.voice.devices: this engine uses one device a replica"),
        ({"model": "tiny-csm:x"}, 'model = "tiny-csm:x": no such directory; it must be that of a checkpoint'),
    ],
)
def test_a_stage_that_does_not_fit_is_refused_as_it_is_before_anything_starts(
    changed: dict[str, Any], line: str
) -> None:
    context = replace(CONTEXT, **changed)
    with pytest.raises(ConfigError) as loading:
        create(context)
    assert loading.value.message == line
    with pytest.raises(ConfigError) as checking:
        estimate_memory(asked_of(context))
    assert checking.value.message == line


def asked_of(context: EngineContext) -> MemoryAsked:
    """What is known of the same stage before it is started."""
    return MemoryAsked(
        context.stage,
        context.model,
        context.options,
        context.device,
        context.max_inflight,
        4 * context.max_inflight,
        {source: {} for source in context.sources},
        context.targets,
        context.final_output,
    )
