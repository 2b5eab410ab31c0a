"""A checkpoint directory in Hugging Face's layout: its configuration, and which tensors lie where.

Reads JSON and the headers of safetensors files, never a tensor, and needs no torch: `omnizmq check` uses it too. Of a
sharded checkpoint only the shards that hold what is asked for are opened.

The form of a safetensors file (https://huggingface.co/docs/safetensors): eight bytes with the length of the header,
little-endian; the header, a JSON object from names to `dtype`, `shape` and `data_offsets`; the tensors' bytes, to which
the offsets refer, one after the other without a gap.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from omnizmq.errors import LaunchError
from omnizmq.workers.engines.hf import hub

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
HEADER_BYTES = 100 << 20
"""No header is as large."""

ITEM_BYTES = {
    "F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2,
    "F8_E4M3": 1, "F8_E5M2": 1, "I8": 1, "U8": 1, "BOOL": 1,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor: `dtype` as safetensors writes it, maybe none of `ITEM_BYTES`, and its bytes' place in the file."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    nbytes: int


class Checkpoint:
    """Raises `ModelNotFoundError` when it is not there, `LaunchError` when it is damaged."""

    def __init__(self, path: str) -> None:
        """`path`: a directory, or a hub's name that was downloaded before."""
        self.path = hub.find(path)
        self.config = self.json("config.json")
        self.bytes_read = 0  # of the headers
        self._headers: dict[Path, dict[str, Entry]] = {}

    def json(self, name: str) -> dict[str, Any]:
        """One of its JSON files. Raises `LaunchError`."""
        _check_kind(self.path / name)
        try:
            document = json.loads((self.path / name).read_bytes())
        except FileNotFoundError:
            raise LaunchError(f"the checkpoint {self.path} has no {name}") from None
        except (OSError, ValueError) as error:
            raise LaunchError(f"{self.path / name} cannot be read: {error}") from error
        if not isinstance(document, dict):
            raise LaunchError(f"{self.path / name} is no JSON object")
        return document

    def find(self, prefixes: Iterable[str]) -> dict[str, Entry]:
        """All tensors whose names begin with one of these. Raises `LaunchError`, also when there are none, or one is of
        a dtype that is not known."""
        starts = tuple(prefixes)
        wanted = defaultdict(list)
        for name, shard in self._shards.items():
            if name.startswith(starts):
                wanted[shard].append(name)
        if not wanted:
            raise LaunchError(f"the checkpoint {self.path} has no tensors {' or '.join(f'{s}*' for s in starts)}")
        found = {}
        for shard, names in wanted.items():
            header = self._header(shard)
            for name in names:
                if name not in header:
                    raise LaunchError(f"{shard} has no tensor {name}, which {self._index} says it has")
                if (dtype := header[name].dtype) not in ITEM_BYTES:
                    raise LaunchError(f"{shard}: tensor {name} is of {dtype}, which is not known here")
                found[name] = header[name]
        return found

    @cached_property
    def _index(self) -> str:
        """The file that says which there are; or that of all tensors, where there is one alone."""
        # A checkpoint that holds its weights in another form too says which file is the library's.
        index = self.config.get("transformers_weights", INDEX if (self.path / INDEX).exists() else SINGLE)
        if not isinstance(index, str) or Path(index).name != index:
            raise LaunchError(f"{self.path}/config.json: its transformers_weights is {index!r}, which is no file there")
        return index

    @cached_property
    def _shards(self) -> dict[str, Path]:
        """The file of each tensor."""
        index = self._index
        if not index.endswith(".json"):
            return dict.fromkeys(self._header(self.path / index), self.path / index)
        shards = self.json(index).get("weight_map")
        if not isinstance(shards, dict) or not all(isinstance(shard, str) for shard in shards.values()):
            raise LaunchError(f"{self.path / index} has no weight_map from names to files")
        if any(Path(shard).name != shard for shard in shards.values()):
            raise LaunchError(f"{self.path / index} names a file outside the checkpoint")
        return {name: self.path / shard for name, shard in shards.items()}

    def _header(self, file: Path) -> dict[str, Entry]:
        if file not in self._headers:
            self._headers[file] = self._read_header(file)
        return self._headers[file]

    def _read_header(self, file: Path) -> dict[str, Entry]:
        _check_kind(file)
        try:
            with file.open("rb") as opened:
                length = int.from_bytes(opened.read(8), "little")
                text = opened.read(length) if length <= HEADER_BYTES else b""
        except OSError as error:
            raise LaunchError(f"{file} cannot be read: {error.strerror}") from error
        self.bytes_read += 8 + len(text)
        try:
            header = json.loads(text)
            header.pop("__metadata__", None)
            entries = {name: _entry(file, 8 + length, tensor) for name, tensor in header.items()}
        except (ValueError, KeyError, TypeError, AttributeError):
            raise LaunchError(f"{file} is damaged: its header is none of a safetensors file") from None
        end = 8 + length
        for name, entry in sorted(entries.items(), key=lambda item: (item[1].start, item[1].nbytes)):
            if entry.start != end:
                raise LaunchError(f"{file} is damaged: tensor {name} begins at {entry.start}, and not at {end}")
            end += entry.nbytes
        if (size := file.stat().st_size) != end:
            raise LaunchError(f"{file} is damaged: it has {size} bytes where its header says {end}")
        return entries


def _check_kind(file: Path) -> None:
    """Opening a pipe, say, would wait for somebody who writes."""
    if file.exists() and not file.is_file():
        raise LaunchError(f"{file} is no file")


def _entry(file: Path, base: int, tensor: dict[str, Any]) -> Entry:
    start, stop = tensor["data_offsets"]
    entry = Entry(file, tensor["dtype"], tuple(tensor["shape"]), base + start, stop - start)
    if not isinstance(entry.dtype, str) or not 0 <= start <= stop:
        raise ValueError("a tensor has no dtype or no place")
    # Of a dtype that is not known the bytes are not known either: the stage that needs it refuses it.
    if entry.dtype in ITEM_BYTES and entry.nbytes != ITEM_BYTES[entry.dtype] * math.prod(entry.shape):
        raise ValueError("a tensor's place does not fit its shape")
    return entry
