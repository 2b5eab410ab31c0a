"""What a request is told of an exception that an engine raised (F1)."""

from __future__ import annotations

import logging
import traceback

from omnizmq.errors import OmnizmqError, StageError

log = logging.getLogger(__name__)


def failure_of(error: BaseException, request_id: str) -> OmnizmqError:
    """The error itself when it was meant for the caller; else a `StageError` of one line, and the traceback goes to the
    log. Without frames: they hold what was fed, and a slot of a ring is free when its last view is gone."""
    if isinstance(error, OmnizmqError):
        return error.with_traceback(None)
    log.error("the engine failed on %s\n%s", request_id, "".join(traceback.format_exception(error)))
    return StageError(f"{type(error).__name__}: {error}")
