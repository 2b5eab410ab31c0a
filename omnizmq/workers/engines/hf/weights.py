"""A stage's own tensors, and the model made from them.

Tensors are views of the mapped files: what a stage does not ask for is never read, and on a CPU, where the
checkpoint's dtype is kept, replicas share one copy in the page cache.
"""

from __future__ import annotations

import ctypes
import mmap
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from transformers import PreTrainedModel

from omnizmq.errors import LaunchError
from omnizmq.workers.engines.hf.checkpoint import Entry

_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "I64": torch.int64, "I32": torch.int32,
    "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip

_EXPERT = re.compile(r"(.+\.mlp\.experts)\.\d+\.\w+\.weight")
_NAMES_SHOWN = 5


def mapped(entries: Mapping[str, Entry]) -> dict[str, torch.Tensor]:
    """The tensors, as views of their files. What is written to them is private to this process."""
    by_file = defaultdict(list)
    for name, entry in entries.items():
        by_file[entry.file].append((name, entry))
    tensors = {}
    for file, inside in by_file.items():
        with file.open("rb") as opened:
            data = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY)
        for name, entry in inside:
            tensors[name] = _view(data, name, entry)
    return tensors


def _view(data: mmap.mmap, name: str, entry: Entry) -> torch.Tensor:
    dtype = _DTYPES.get(entry.dtype)
    if dtype is None:
        raise LaunchError(f"{entry.file}: tensor {name} is of {entry.dtype}, which is not supported")
    if not entry.nbytes:
        return torch.empty(entry.shape, dtype=dtype)
    flat = torch.frombuffer(data, dtype=dtype, offset=entry.start, count=entry.nbytes // dtype.itemsize)
    return flat.view(entry.shape)


def check_experts(names: Iterable[str], experts: int) -> None:
    """Raises `LaunchError` unless each layer that has experts has all: the library merges them without counting."""
    found = set(names)
    layers = {match[1] for name in found if (match := _EXPERT.fullmatch(name))}
    parts = [f"{n}.{part}.weight" for n in range(experts) for part in ("gate_proj", "up_proj", "down_proj")]
    _refuse("lacks", [name for layer in layers for part in parts if (name := f"{layer}.{part}") not in found])


def make_model(
    kind: type[PreTrainedModel],
    config: Any,
    tensors: Mapping[str, torch.Tensor],
    dtype: torch.dtype,
    device: torch.device | None,
) -> Any:
    """The model with these weights, for inference; without a device on the CPU, for which the package `accelerate` is
    not needed. Raises `LaunchError` unless they are exactly its own."""
    model, report = kind.from_pretrained(
        None,
        config=config,
        state_dict=dict(tensors),
        dtype=dtype,
        device_map=None if device is None else {"": device},
        attn_implementation="sdpa",
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # they are in the report, by name
    )
    _refuse("lacks", report["missing_keys"])
    _refuse("has unknown tensors:", report["unexpected_keys"])
    _refuse("has tensors of another shape:", [name for name, *_ in report["mismatched_keys"]])
    _give_back_freed_memory()
    return model.train(False).requires_grad_(False)


def _give_back_freed_memory() -> None:
    """What loading took in between (experts before they are merged, or in the checkpoint's dtype) stays in glibc's heap
    otherwise, and was found to be more than half as much as the weights. Other C libraries have no such call."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _refuse(problem: str, keys: Iterable[str]) -> None:
    names = sorted(keys)
    if names:
        more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
        raise LaunchError(f"the checkpoint {problem} {', '.join(names[:_NAMES_SHOWN])}{more}")
