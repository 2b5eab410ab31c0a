"""The embedded voice, on a CPU, from PyPI packages alone: text to acoustic frames (talker), frames to sound (code2wav).

Package `hibari-tts`, voice "heart": American English and nothing else. Option `role` says which half a stage is. What
goes from half to half is described in `hibari_talker`, whose chunks `hibari_code2wav` takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omnizmq.errors import ConfigError
from omnizmq.workers.engine import Engine, EngineContext
from omnizmq.workers.engines.settings import choice, package_folder
from omnizmq.workers.memory import WORKER_BYTES, MemoryAsked, MemoryNeed

ROLE = choice("talker", "code2wav")
PACKAGES = ("hibari", "onnxruntime")
"""Found by name at run time; `omnizmq check` reads it here."""

_LEXICON_BYTES = 110 << 20
"""Of words and their sounds, and the networks' runtime. Measured."""

_VOICE_BYTES = 40 << 20
"""What runs of the networks take. Measured."""

_WAVE_BYTES = 16 << 20
"""What the sound of sixteen requests takes. Measured."""


def check_options(stage: str, options: Mapping[str, Any]) -> str:
    """The role. Raises `ConfigError` for one that there is not; its half checks the rest."""
    role = options.get("role")
    if not ROLE.test(role):
        raise ConfigError(f"stage.{stage}.options.role = {role!r} is not usable: it must be {ROLE.accepts}")
    return str(role)


def estimate_memory(asked: MemoryAsked) -> MemoryNeed:
    """Raises `ModelNotFoundError` without the package. For `omnizmq check`, before anything loads."""
    role = check_options(asked.stage, asked.options)
    _check_place(asked, role)
    if role == "code2wav":
        return MemoryNeed(workspace=_WAVE_BYTES, process=WORKER_BYTES)
    networks = (package_folder("hibari", asked.stage) / "assets").glob("*.onnx")
    return MemoryNeed(
        weights=sum(file.stat().st_size for file in networks),
        workspace=_VOICE_BYTES,
        process=WORKER_BYTES + _LEXICON_BYTES,
    )


def _check_place(context: EngineContext | MemoryAsked, role: str) -> None:
    """Raises `ConfigError` for edges or a final output that this half cannot have."""
    if len(context.sources) != 1:
        raise ConfigError(f"stage.{context.stage}: hibari needs exactly one edge that leads to it")
    if role == "talker" and context.final_output is not None:
        raise ConfigError(f"stage.{context.stage}.final_output: a hibari talker makes frames, no final output")
    if role == "code2wav" and (context.targets or context.final_output not in (None, "audio")):
        raise ConfigError(f'stage.{context.stage}: a hibari code2wav is the last stage, with final_output = "audio"')


def create(context: EngineContext) -> Engine:
    """Load and warm one half. Raises `ConfigError` for a missing package, a wrong option, edge or final output."""
    role = check_options(context.stage, context.options)
    package_folder("hibari", context.stage)
    _check_place(context, role)
    # Each half imports what it needs alone: the network's runtime is large.
    if role == "talker":
        from omnizmq.workers.engines.hibari_talker import create_talker

        return create_talker(context)
    from omnizmq.workers.engines.hibari_code2wav import create_code2wav

    return create_code2wav(context)
