"""Tensors as arrays of a chunk: their own copy goes into the slot, and what arrives is the slot (W3)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from omnizmq import protocol as wire  # noqa: E402
from omnizmq.shm.arrays import ArraySource, check_array  # noqa: E402
from omnizmq.workers.chunks import describe_arrays, fill_slot, pack_arrays, slot_bytes, unpack_slot  # noqa: E402
from omnizmq.workers.engine import Chunk  # noqa: E402
from omnizmq.workers.engines.tensors import TensorArray, as_tensor  # noqa: E402

NUMPYS = [torch.float32, torch.float64, torch.float16, torch.int64, torch.uint8, torch.bool, torch.complex64]
OPAQUE = [torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]


def travelled(chunk: Chunk) -> dict[str, np.ndarray]:
    """Its arrays, after the slot."""
    slot = np.zeros(slot_bytes(chunk), np.uint8)
    fill_slot(chunk, slot)
    slot.flags.writeable = False
    frame = wire.RingChunk("demo", 1, 1, "a", 1, {}, describe_arrays(chunk), 1, 64, slot.size, None)
    return dict(unpack_slot(frame, slot).arrays)


def tensor(dtype: Any, *shape: int) -> Any:
    return (torch.arange(60).reshape(5, 12) % 7)[: shape[0], : shape[1]].to(dtype)


@pytest.mark.parametrize("dtype", NUMPYS, ids=str)
def test_w3_what_numpy_knows_arrives_as_it_was(dtype: Any) -> None:
    sent = tensor(dtype, 5, 12).T[::2]
    (came,) = travelled(Chunk(tensors={"rows": TensorArray(sent)})).values()
    assert torch.equal(as_tensor(came), sent)


@pytest.mark.parametrize("dtype", OPAQUE, ids=str)
def test_w3_what_numpy_does_not_know_arrives_opaque_and_is_named_again(dtype: Any) -> None:
    sent = tensor(dtype, 5, 12)[:, ::3]
    (came,) = travelled(Chunk(tensors={"rows": TensorArray(sent)})).values()
    assert came.dtype.kind == "V"
    assert torch.equal(as_tensor(came, dtype).float(), sent.float())
    with pytest.raises(TypeError, match="needs a dtype"):
        as_tensor(came)
    with pytest.raises(TypeError, match=r"are no torch\.float64"):
        as_tensor(came, torch.float64)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1,)])
def test_w3_scalars_and_empty_tensors(shape: tuple[int, ...]) -> None:
    sent = torch.full(shape, 3.5)
    (came,) = travelled(Chunk(tensors={"rows": TensorArray(sent)})).values()
    assert came.shape == shape
    assert torch.equal(as_tensor(came), sent)


def test_w3_a_tensor_over_a_slot_is_no_copy() -> None:
    slot = np.arange(16, dtype=np.float32)
    slot.flags.writeable = False
    assert as_tensor(slot).data_ptr() == slot.ctypes.data


def test_a_small_tensor_goes_inline_and_beside_arrays() -> None:
    chunk = Chunk(arrays={"a": np.ones(3)}, tensors={"b": TensorArray(torch.ones(2))})
    assert [one.name for one in pack_arrays(chunk)] == ["a", "b"]
    assert chunk.nbytes == 3 * 8 + 2 * 4


def test_a_tensor_is_an_array_that_can_travel() -> None:
    source = TensorArray(torch.ones(2, 3, requires_grad=True))
    assert isinstance(source, ArraySource)
    check_array("rows", source)
