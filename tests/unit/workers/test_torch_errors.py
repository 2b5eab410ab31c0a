"""What an exception of torch means for the request that it is about (F1), and for the worker (F2)."""

from __future__ import annotations

import weakref

import pytest

torch = pytest.importorskip("torch", reason="not installed: the extra `transformers`")

from omnizmq.errors import InvalidRequestError, OverloadedError, StageError  # noqa: E402
from omnizmq.workers.engine import EngineBrokenError  # noqa: E402
from omnizmq.workers.engines.torch_errors import failure_of, refuse_lost_device  # noqa: E402

OUT_OF_MEMORY = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of …"),
    torch.AcceleratorError("CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation' in …"),
    RuntimeError("CUDA driver error: out of memory"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    MemoryError("Unable to allocate 7 GiB for an array"),
]
LOST = [
    torch.AcceleratorError("CUDA error: device-side assert triggered\nCUDA kernel errors might be …"),
    torch.AcceleratorError("CUDA error: uncorrectable ECC error encountered"),
    RuntimeError("CUDA error: an illegal memory access was encountered"),
    RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
]


@pytest.mark.parametrize("error", OUT_OF_MEMORY, ids=str)
def test_f1_where_memory_was_short_the_same_may_work_later(error: BaseException) -> None:
    failure = failure_of(error, "one")
    assert isinstance(failure, OverloadedError)
    assert failure.retriable
    assert "no memory left on this stage's device for this request: " in failure.message
    assert "\n" not in failure.message


def test_f1_memory_of_the_cpu_too_and_nothing_keeps_what_was_computed_before() -> None:
    kept = []

    def compute() -> None:
        half = torch.ones(100)
        kept.append(weakref.ref(half))
        torch.empty(1 << 60)

    with pytest.raises(RuntimeError) as raised:
        compute()
    assert kept[0]() is not None
    assert isinstance(failure_of(raised.value, "one"), OverloadedError)
    assert kept[0]() is None


@pytest.mark.parametrize("error", LOST, ids=str)
def test_f2_a_device_that_is_lost_is_no_requests_error(error: BaseException) -> None:
    line = str(error).partition("\n")[0]
    with pytest.raises(EngineBrokenError) as broken:
        failure_of(error, "one")
    assert str(broken.value) == f"its GPU cannot be used any more: {line}"


@pytest.mark.parametrize(
    "error", [*OUT_OF_MEMORY, RuntimeError("shapes cannot be multiplied"), ValueError("CUDA error: of a text")], ids=str
)
def test_nothing_else_is_taken_for_a_lost_device(error: BaseException) -> None:
    refuse_lost_device(error)


def test_f1_any_other_is_a_stage_error_and_one_of_the_tree_keeps_its_kind() -> None:
    failure = failure_of(RuntimeError("shapes cannot be multiplied"), "one")
    assert (type(failure), failure.message) == (StageError, "RuntimeError: shapes cannot be multiplied")
    assert isinstance(failure_of(InvalidRequestError("too long"), "one"), InvalidRequestError)
