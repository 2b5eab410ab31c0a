"""torch's tensors as arrays of a chunk, without a copy of their own, and back.

    Chunk(tensors={"hidden": TensorArray(hidden)})          # the producer
    hidden = as_tensor(chunk.arrays["hidden"])              # the consumer

A tensor on an accelerator is copied straight into the place in shared memory that the consumer reads: one copy, device
to host. numpy has no name for bfloat16 and for the kinds of float8: on the way they are opaque elements of two bytes or
of one, and `as_tensor` is told which they are.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from omnizmq.workers.engines.torch_errors import refuse_lost_device


class TensorArray:
    """An `ArraySource`. The tensor may be anywhere and have any strides; it is not changed until it has been copied."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor.detach()
        self.dtype = numpy_dtype(tensor.dtype)
        self.shape = tuple(tensor.shape)
        self._made: torch.cuda.Event | None = None
        if tensor.is_cuda:
            self._made = torch.cuda.Event()
            self._made.record(torch.cuda.current_stream(tensor.device))

    def copy_to(self, out: NDArray[Any]) -> None:
        """On a stream of its own, once what computes the tensor is done; all is there when this returns. Raises
        `EngineBrokenError` when its GPU is lost."""
        place = torch.from_numpy(out.view(_carrier(out.dtype))).view(self._tensor.dtype)
        if self._made is None:
            place.copy_(self._tensor)
            return
        try:
            stream = torch.cuda.Stream(self._tensor.device)
            stream.wait_event(self._made)
            with torch.cuda.stream(stream):
                place.copy_(self._tensor, non_blocking=True)
            stream.synchronize()
        except RuntimeError as error:
            refuse_lost_device(error)
            raise


def as_tensor(array: NDArray[Any], dtype: torch.dtype | None = None) -> torch.Tensor:
    """The same memory as a tensor on the CPU, which keeps it reserved; it must not be written to.

    `dtype` names what numpy cannot: `torch.bfloat16` for opaque elements of two bytes, one of the float8 kinds for
    those of one. Raises `TypeError` where it is missing, or of another size than the array's elements.
    """
    if dtype is None and array.dtype.kind == "V":
        raise TypeError(f"an array of {array.dtype} needs a dtype, such as torch.bfloat16")
    if dtype is not None and dtype.itemsize != array.dtype.itemsize:
        raise TypeError(f"elements of {array.dtype.itemsize} bytes are no {dtype}")
    with warnings.catch_warnings():  # torch has no read-only tensors, and says so
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        tensor = torch.from_numpy(array.view(_carrier(array.dtype)))
    return tensor if dtype is None else tensor.view(dtype)


def numpy_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    """numpy's dtype of the same elements; opaque ones for what numpy does not know."""
    try:
        known: np.dtype[Any] = torch.empty(0, dtype=dtype).numpy().dtype
    except TypeError:
        return np.dtype(f"V{dtype.itemsize}")
    return known


def _carrier(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """A dtype that torch knows, for elements that are opaque to numpy."""
    return np.dtype(f"i{dtype.itemsize}") if dtype.kind == "V" else dtype
