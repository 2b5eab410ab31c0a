"""Rings pinned for a GPU: page-locked and known to the driver, so that copies are asynchronous and at full speed.

By cudaHostRegister (https://docs.nvidia.com/cuda/cuda-runtime-api, "Memory Management"); some systems refuse it for
memory that is mapped read-only.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import torch

_READ_ONLY = 0x08  # cudaHostRegisterReadOnly


def ring_memory(device: torch.device) -> PinnedRings | None:
    """For an engine's attribute of that name; None: its stage is not on a GPU."""
    return PinnedRings(device) if device.type == "cuda" else None


class PinnedRings:
    """Of one engine, in its thread. What is refused raises `RuntimeError`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def pin(self, memory: memoryview) -> None:
        flags = _READ_ONLY if memory.readonly else 0
        self._check("cudaHostRegister", _cuda().cudaHostRegister(_address(memory), memory.nbytes, flags))

    def unpin(self, memory: memoryview) -> None:
        """After every copy that may still use it."""
        torch.cuda.synchronize(self._device)
        self._check("cudaHostUnregister", _cuda().cudaHostUnregister(_address(memory)))

    def _check(self, call: str, result: Any) -> None:
        """A refusal is repeated to this thread by its next kernel, once: so one is run. CUDA keeps its last error until
        cudaGetLastError is asked ("Error Handling", there), which torch does after each launch
        (C10_CUDA_KERNEL_LAUNCH_CHECK)."""
        if int(result) == 0:
            return
        with suppress(torch.AcceleratorError):
            torch.ones(1, device=self._device)
        raise RuntimeError(f"{call}: {_cuda().cudaGetErrorString(result)}")


def _cuda() -> Any:
    return torch.cuda.cudart()


def _address(memory: memoryview) -> int:
    return int(np.frombuffer(memory, np.uint8).ctypes.data)
