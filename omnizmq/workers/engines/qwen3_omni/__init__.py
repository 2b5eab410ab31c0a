"""Qwen3-Omni as three stages.

Thinker: prompt to text, token by token. Talker: tokens to codec frames. Code2Wav: frames to 24 kHz sound. What they
hand on is in `rows`. What each does follows the library's whole-model `generate`
(https://github.com/huggingface/transformers, `models/qwen3_omni_moe`), and tests compare them: greedy, in float32, the
tokens and codes are the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omnizmq.workers.engine import Engine, EngineContext
from omnizmq.workers.engines.hf.checkpoint import Checkpoint
from omnizmq.workers.engines.hf.model import Model, Role
from omnizmq.workers.engines.qwen3_omni import memory


def _create(context: EngineContext, options: Mapping[str, Any], checkpoint: Checkpoint) -> Engine:
    if options["role"] == "thinker":
        from omnizmq.workers.engines.qwen3_omni.thinker import create_thinker

        return create_thinker(context, options, checkpoint)
    if options["role"] == "talker":
        from omnizmq.workers.engines.qwen3_omni.talker import create_talker

        return create_talker(context, options, checkpoint)
    from omnizmq.workers.engines.qwen3_omni.code2wav import create_code2wav

    return create_code2wav(context, options, checkpoint)


def _make_tiny(folder: Path, seed: int) -> Path:
    from omnizmq.workers.engines.qwen3_omni import tiny

    return tiny.ensure(folder, seed)


MODEL = Model(
    title="Qwen3-Omni",
    model_type="qwen3_omni_moe",
    tiny="tiny-qwen3-omni",
    roles={
        "thinker": Role(fed=False, makes="text"),
        "talker": Role(fed=True),
        "code2wav": Role(fed=True, makes="audio"),
    },
    create=_create,
    make_tiny=_make_tiny,
    estimate=memory.estimate,
    estimate_tiny=memory.of_tiny,
)
