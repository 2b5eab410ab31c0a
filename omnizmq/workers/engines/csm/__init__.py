"""CSM, a voice in two stages: a text to codec frames, and frames to 24 kHz sound.

The Talker is the model's backbone, which chooses the first code of each frame, with its depth decoder, which chooses
the others. The Code2Wav is the decoder of its codec, Mimi. What each does follows the library's whole-model `generate`
(https://github.com/huggingface/transformers, `models/csm`), and tests compare them: greedy, in float32, the codes are
the same. The chunks between them are codec frames (`hf.frames`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omnizmq.workers.engine import Engine, EngineContext
from omnizmq.workers.engines.csm import memory
from omnizmq.workers.engines.hf.checkpoint import Checkpoint
from omnizmq.workers.engines.hf.model import Model, Role


def _create(context: EngineContext, options: Mapping[str, Any], checkpoint: Checkpoint) -> Engine:
    if options["role"] == "talker":
        from omnizmq.workers.engines.csm.talker import create_talker

        return create_talker(context, options, checkpoint)
    from omnizmq.workers.engines.csm.code2wav import create_code2wav

    return create_code2wav(context, options, checkpoint)


def _make_tiny(folder: Path, seed: int) -> Path:
    from omnizmq.workers.engines.csm import tiny

    return tiny.ensure(folder, seed)


MODEL = Model(
    title="CSM",
    model_type="csm",
    tiny="tiny-csm",
    roles={"talker": Role(fed=False), "code2wav": Role(fed=True, makes="audio")},
    create=_create,
    make_tiny=_make_tiny,
    estimate=memory.estimate,
    estimate_tiny=memory.of_tiny,
)
