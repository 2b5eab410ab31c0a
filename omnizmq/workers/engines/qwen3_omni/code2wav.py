"""Qwen3-Omni's Code2Wav. What a stage of this kind does is in `hf.code2wav`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omnizmq.workers.engine import EngineContext
from omnizmq.workers.engines.hf.checkpoint import Checkpoint
from omnizmq.workers.engines.hf.code2wav import Code2Wav
from omnizmq.workers.engines.hf.stage import Stage
from omnizmq.workers.engines.qwen3_omni.wave import WaveModel


def create_code2wav(context: EngineContext, options: Mapping[str, Any], checkpoint: Checkpoint) -> Code2Wav:
    """Raises `ConfigError`, `LaunchError`."""
    stage = Stage(context, options, checkpoint)
    context.progress("loading the code2wav")
    return Code2Wav(WaveModel(stage))
