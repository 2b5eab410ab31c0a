"""Qwen3-Omni as three stages, by the classes of `transformers`. Option `role` says which one a stage is.

Thinker: prompt to text, token by token. Talker: tokens to codec frames. Code2Wav: frames to 24 kHz sound. What they
hand on is in `rows`. What each does follows the library's whole-model `generate`
(https://github.com/huggingface/transformers, `models/qwen3_omni_moe`), and tests compare them: greedy, in float32, the
tokens and codes are the same. Nothing but the stages' own modules imports torch.

`model` is a checkpoint's directory, or "tiny-qwen3-omni:SEED": a random one of 3 MB, made on the spot (see `tiny`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omnizmq.errors import ConfigError
from omnizmq.workers.engine import Engine, EngineContext
from omnizmq.workers.engines.qwen3_omni.checkpoint import Checkpoint
from omnizmq.workers.engines.qwen3_omni.options import MODEL_TYPE, read_options, tiny_seed

PACKAGES = ("torch", "transformers", "tokenizers", "safetensors")
"""Found by name at run time; `omnizmq check` reads it here."""


def check_options(stage: str, options: Mapping[str, Any]) -> None:
    """Raises `ConfigError`. For `omnizmq check`, before anything loads."""
    read_options(stage, options)


def create(context: EngineContext) -> Engine:
    """Load one stage. Raises `ConfigError` (option, edge, model) or `LaunchError` (a damaged checkpoint)."""
    options = read_options(context.stage, context.options)
    role = options["role"]
    makes = {"thinker": "text", "talker": None, "code2wav": "audio"}[role]
    if context.final_output not in (None, makes):
        made = f'"{makes}"' if makes else "no final output"
        raise ConfigError(f'stage.{context.stage}.final_output = "{context.final_output}": a {role} makes {made}')
    if len(context.sources) != (0 if role == "thinker" else 1):
        needs = "takes prompts, not edges" if role == "thinker" else "needs exactly one edge that leads to it"
        raise ConfigError(f"stage.{context.stage}: a {role} {needs}")
    # What can be said without the libraries is said before they load, which takes seconds.
    made_on_the_spot = tiny_seed(context.model) is not None
    checkpoint = None if made_on_the_spot else Checkpoint(context.model, MODEL_TYPE)
    if role == "thinker":
        from omnizmq.workers.engines.qwen3_omni.thinker import create_thinker

        return create_thinker(context, options, checkpoint)
    if role == "talker":
        from omnizmq.workers.engines.qwen3_omni.talker import create_talker

        return create_talker(context, options, checkpoint)
    from omnizmq.workers.engines.qwen3_omni.code2wav import create_code2wav

    return create_code2wav(context, options, checkpoint)
