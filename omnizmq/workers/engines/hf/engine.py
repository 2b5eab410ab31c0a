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

PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "PIL")
"""Found by name at run time; `omnizmq check` reads it here."""

MODELS = (qwen3_omni.MODEL, csm.MODEL)

_TINY = re.compile(rf"({'|'.join(model.tiny for model in MODELS)})(?::(\d{{1,9}}))?")


def check_options(stage: str, options: Mapping[str, Any]) -> None:
    """Raises `ConfigError`. For `omnizmq check`, before anything loads."""
    read_options(stage, options)


def estimate_memory(asked: MemoryAsked) -> MemoryNeed:
    """For `omnizmq check`, before anything loads. Raises `ModelNotFoundError`, `ConfigError`, `LaunchError`."""
    role = read_options(asked.stage, asked.options)["role"]
    model, checkpoint = _placed(asked, role)
    return model.estimate_tiny(asked, role) if checkpoint is None else model.estimate(asked, role, checkpoint)


def create(context: EngineContext) -> Engine:
    """Load one stage. Raises `ConfigError` (option, edge, model) or `LaunchError` (a damaged checkpoint)."""
    options = read_options(context.stage, context.options)
    # The files are here: no library may look for newer ones on a hub.
    os.environ["HF_HUB_OFFLINE"] = "1"
    # What can be said without the libraries is said before they load, which takes seconds.
    model, there = _placed(context, options["role"])
    checkpoint = _make_tiny(context, model) if there is None else there
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


def _placed(context: EngineContext | MemoryAsked, role: str) -> tuple[Model, Checkpoint | None]:
    """The stage's model and its checkpoint; None: a tiny one, made on the spot.

    Raises `ConfigError` for a stage that cannot be one of the model's, on its devices and between its neighbours.
    """
    if len(context.device) > 1:
        raise ConfigError(f"stage.{context.stage}.devices: this engine uses one device a replica")
    checkpoint = None
    if tiny := _TINY.fullmatch(context.model):
        model = next(model for model in MODELS if model.tiny == tiny[1])
    else:
        checkpoint = Checkpoint(context.model)
        model = _model_of(checkpoint)
    model.check_place(context, role)
    return model, checkpoint


def _model_of(checkpoint: Checkpoint) -> Model:
    found = checkpoint.config.get("model_type")
    model = next((model for model in MODELS if model.model_type == found), None)
    if model is None:
        known = ", ".join(f'"{model.model_type}" ({model.title})' for model in MODELS)
        raise ConfigError(f'model = "{checkpoint.path}": its model_type is {found!r}; this engine knows {known}')
    return model


def _make_tiny(context: EngineContext, model: Model) -> Checkpoint:
    seed = int(context.model.partition(":")[2] or 0)
    context.progress(f"building a tiny random {model.title}")
    return Checkpoint(str(model.make_tiny(context.private_dir, seed)))
