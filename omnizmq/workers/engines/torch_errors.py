"""What an exception of torch means: memory that was short, a GPU that is lost, or anything else.

An error that the driver calls sticky leaves the process's context useless: every later call fails alike, and only a new
process can use the GPU again (https://docs.nvidia.com/cuda/cuda-runtime-api, `cudaError`). It may also be told late, by
a call that has nothing to do with it. So every error of the device but a failed allocation counts as one.
"""

from __future__ import annotations

import logging
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from omnizmq.errors import OmnizmqError, OverloadedError
from omnizmq.workers import failures
from omnizmq.workers.engine import EngineBrokenError

log = logging.getLogger(__name__)

_NO_MEMORY = re.compile(
    r"CUDA (driver )?error: out of memory|(CUBLAS|CUDNN)_STATUS_ALLOC_FAILED|DefaultCPUAllocator: (can't|not)"
)
"""As texts, where an allocation is not the caching allocator's: one of a library on the GPU, or one on the CPU."""

_DEVICE = re.compile(r"(CUDA (driver )?|cuDNN )error")
_SHOWN = 200


def failure_of(error: BaseException, request_id: str) -> OmnizmqError:
    """What the request is told. Where memory was short, nothing of what was computed keeps any.

    Raises `EngineBrokenError` when this process can use its GPU no more.
    """
    refuse_lost_device(error)
    if not is_out_of_memory(error):
        return failures.failure_of(error, request_id)
    log.warning("no memory for %s: %s", request_id, error)
    traceback.clear_frames(error.__traceback__)
    torch.cuda.empty_cache()  # another process may share the device
    return OverloadedError(f"no memory left on this stage's device for this request: {_shown(error)}")


@contextmanager
def told_by_failure_of(request_id: str) -> Iterator[None]:
    """What is raised inside about a request, as `failure_of` makes it."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        raise failure_of(error, request_id) from None


def is_out_of_memory(error: BaseException) -> bool:
    """Whether less at once, or the same later, may work."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and _NO_MEMORY.search(str(error)) is not None


def refuse_lost_device(error: BaseException) -> None:
    """Raises `EngineBrokenError` when this process can use its GPU no more."""
    if not isinstance(error, RuntimeError) or is_out_of_memory(error):
        return
    if isinstance(error, torch.AcceleratorError) or _DEVICE.search(str(error)):
        raise EngineBrokenError(f"its GPU cannot be used any more: {_shown(error)}") from error


def _shown(error: BaseException) -> str:
    """What torch says first; what follows is advice on settings."""
    text = str(error).partition("\n")[0]
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
