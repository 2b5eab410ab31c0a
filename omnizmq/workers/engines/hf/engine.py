"""Models of several stages, by the classes of `transformers`. Option `role` says which of them a stage is.

`model` is a checkpoint's directory, or a hub's name for one that was downloaded (`hf.hub`); its `config.json`
says by its `model_type` which of `MODELS` it is. Or "tiny-NAME:SEED": a random one of a few megabytes, made on the
spot. Nothing but the stages' own modules imports torch.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from typing import Any

from omnizmq.errors import ConfigError, LaunchError, OmnizmqError
from omnizmq.workers.engine import Engine, EngineContext
from omnizmq.workers.engines import csm, qwen3_omni
from omnizmq.workers.engines.hf.checkpoint import Checkpoint
from omnizmq.workers.engines.hf.model import Model
from omnizmq.workers.engines.hf.options import read_options
from omnizmq.workers.memory import MemoryAsked, MemoryNeed

log = logging.getLogger(__name__)

PACKAGES = ("torch", "transformers", "tokenizers", "safetensors")
"""Found by name at run time; `omnizmq check` reads it here."""

MODELS = (qwen3_omni.MODEL, csm.MODEL)

_TINY = re.compile(rf"({'|'.join(model.tiny for model in MODELS)})(?::(\d{{1,9}}))?")


def check_options(stage: str, options: Mapping[str, Any]) -> None:
    """Raises `ConfigError`. For `omnizmq check`, before anything loads."""
    read_options(stage, options)


def estimate_memory(asked: MemoryAsked) -> MemoryNeed:
    """For `omnizmq check`, before anything loads. Raises `ModelNotFoundError`, `ConfigError`, `LaunchError`."""
    role = read_options(asked.stage, asked.options)["role"]
    tiny = _TINY.fullmatch(asked.model)
    if tiny:
        model = _tiny_model(tiny[1])
        model.role(asked.stage, role)
        return model.estimate_tiny(asked, role)
    checkpoint = Checkpoint(asked.model)
    model = _model_of(checkpoint)
    model.role(asked.stage, role)
    return model.estimate(asked, role, checkpoint)


def create(context: EngineContext) -> Engine:
    """Load one stage. Raises `ConfigError` (option, edge, model) or `LaunchError` (a damaged checkpoint)."""
    options = read_options(context.stage, context.options)
    # The files are here: no library may look for newer ones on a hub.
    os.environ["HF_HUB_OFFLINE"] = "1"
    # What can be said without the libraries is said before they load, which takes seconds.
    tiny = _TINY.fullmatch(context.model)
    if tiny:
        model = _tiny_model(tiny[1])
        model.check_place(context, options["role"])
        checkpoint = _make_tiny(context, model, int(tiny[2] or 0))
    else:
        checkpoint = Checkpoint(context.model)
        model = _model_of(checkpoint)
        model.check_place(context, options["role"])
    try:
        return model.create(context, options, checkpoint)
    except OmnizmqError:
        raise
    except Exception as error:
        log.exception("%s cannot be loaded", checkpoint.path)
        line = str(error).partition("\n")[0]
        raise LaunchError(
            f"the checkpoint {checkpoint.path} cannot be loaded as a {options['role']}: {type(error).__name__}: {line}"
        ) from error


def _tiny_model(name: str) -> Model:
    return next(model for model in MODELS if model.tiny == name)


def _model_of(checkpoint: Checkpoint) -> Model:
    found = checkpoint.config.get("model_type")
    model = next((model for model in MODELS if model.model_type == found), None)
    if model is None:
        known = ", ".join(f'"{model.model_type}" ({model.title})' for model in MODELS)
        raise ConfigError(f'model = "{checkpoint.path}": its model_type is {found!r}; this engine knows {known}')
    return model


def _make_tiny(context: EngineContext, model: Model, seed: int) -> Checkpoint:
    context.progress(f"building a tiny random {model.title}")
    return Checkpoint(str(model.make_tiny(context.private_dir, seed)))
