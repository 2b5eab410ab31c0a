"""A checkpoint's headers, from files written by hand: no torch, no model."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from omnizmq.errors import ConfigError, LaunchError
from omnizmq.workers.engines.hf.checkpoint import INDEX, SINGLE, Checkpoint, Entry

KIND = "qwen3_omni_moe"


def write_shard(file: Path, tensors: dict[str, tuple[str, list[int], bytes]]) -> int:
    """Returns how many bytes its header takes."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return 8 + len(text)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two stages in two shards."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": KIND}))
    write_shard(tmp_path / "a.safetensors", {"one.w": ("F32", [2, 3], bytes(24)), "two.w": ("BF16", [4], bytes(8))})
    write_shard(tmp_path / "b.safetensors", {"two.v": ("I8", [0], b""), "two.u": ("F32", [], bytes(4))})
    shards = {"one.w": "a.safetensors", "two.w": "a.safetensors", "two.v": "b.safetensors", "two.u": "b.safetensors"}
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": shards}))
    return tmp_path


def test_only_the_shards_that_hold_what_is_asked_for_are_opened(folder: Path) -> None:
    (folder / "b.safetensors").unlink()
    checkpoint = Checkpoint(str(folder))
    header = int.from_bytes((folder / "a.safetensors").read_bytes()[:8], "little") + 8
    assert checkpoint.find(["one."]) == {"one.w": Entry(folder / "a.safetensors", "F32", (2, 3), header, 24)}
    assert checkpoint.bytes_read == header
    checkpoint.find(["one."])
    assert checkpoint.bytes_read == header
    with pytest.raises(LaunchError, match=r"b\.safetensors cannot be read: No such file"):
        checkpoint.find(["two."])


def test_shapes_and_places_are_those_of_the_file(folder: Path) -> None:
    found = Checkpoint(str(folder)).find(["two."])
    assert {name: (entry.shape, entry.nbytes) for name, entry in found.items()} == {
        "two.w": ((4,), 8),
        "two.v": ((0,), 0),
        "two.u": ((), 4),
    }
    assert found["two.w"].start + 8 == (folder / "a.safetensors").stat().st_size


def test_a_checkpoint_of_one_file_needs_no_index(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": KIND}))
    write_shard(tmp_path / "model.safetensors", {"one.w": ("F32", [1], bytes(4))})
    assert list(Checkpoint(str(tmp_path)).find(["one."])) == ["one.w"]


def cut(folder: Path) -> None:
    file = folder / "a.safetensors"
    file.write_bytes(file.read_bytes()[:-1])


def overlong(folder: Path) -> None:
    (folder / "a.safetensors").write_bytes(b"\xff" * 40)


def misshapen(folder: Path) -> None:
    write_shard(folder / "a.safetensors", {"one.w": ("F32", [2], bytes(24)), "two.w": ("BF16", [4], bytes(8))})


def of_a_dtype_that_is_none(folder: Path) -> None:
    write_shard(folder / "a.safetensors", {"one.w": (8, [2, 3], bytes(24))})  # type: ignore[dict-item]


def of_a_newer_dtype(folder: Path) -> None:
    write_shard(folder / "a.safetensors", {"one.w": ("F8_E8M0", [2, 3], bytes(6)), "two.w": ("BF16", [4], bytes(8))})


def without_a_tensor(folder: Path) -> None:
    write_shard(folder / "a.safetensors", {"two.w": ("BF16", [4], bytes(8))})


def outside(folder: Path) -> None:
    (folder / INDEX).write_text(json.dumps({"weight_map": {"one.w": "../a.safetensors"}}))


def twice_the_same_bytes(folder: Path) -> None:
    file = folder / "a.safetensors"
    write_shard(file, {"one.w": ("F32", [6], bytes(24)), "two.w": ("F32", [6], bytes(24))})
    file.write_bytes(file.read_bytes().replace(b"[24,48]", b"[ 0,24]").replace(b"[24, 48]", b"[ 0, 24]"))


def a_pipe(name: str) -> Callable[[Path], None]:
    def made(folder: Path) -> None:
        (folder / name).unlink()
        os.mkfifo(folder / name)

    return made


@pytest.mark.parametrize(
    ("damage", "line"),
    [
        (twice_the_same_bytes, r"a\.safetensors is damaged: tensor two\.w begins at \d+, and not at \d+"),
        (a_pipe("a.safetensors"), r"a\.safetensors is no file"),
        (a_pipe(INDEX), r"index\.json is no file"),
        (a_pipe("config.json"), r"config\.json is no file"),
        (cut, r"a\.safetensors is damaged: it has \d+ bytes where its header says \d+"),
        (overlong, r"a\.safetensors is damaged: its header is none of a safetensors file"),
        (misshapen, r"a\.safetensors is damaged: its header is none of a safetensors file"),
        (of_a_dtype_that_is_none, r"a\.safetensors is damaged: its header is none of a safetensors file"),
        (of_a_newer_dtype, r"a\.safetensors: tensor one\.w is of F8_E8M0, which is not known here"),
        (without_a_tensor, r"a\.safetensors has no tensor one\.w, which model\.safetensors\.index\.json says it has"),
        (outside, "names a file outside the checkpoint"),
        (lambda folder: (folder / INDEX).write_text("{"), r"index\.json cannot be read: Expecting"),
        (lambda folder: (folder / INDEX).write_text("{}"), "has no weight_map"),
        (lambda folder: (folder / "config.json").unlink(), r"has no config\.json"),
    ],
)
def test_what_cannot_be_used_is_said_in_one_line(folder: Path, damage: Callable[[Path], object], line: str) -> None:
    damage(folder)
    with pytest.raises(LaunchError, match=line) as caught:
        Checkpoint(str(folder)).find(["one."])
    assert "\n" not in caught.value.message


def test_a_dtype_that_is_not_known_is_no_matter_to_a_stage_without_it(folder: Path) -> None:
    of_a_newer_dtype(folder)
    assert set(Checkpoint(str(folder)).find(["two."])) == {"two.w", "two.v", "two.u"}


def test_a_stage_that_the_checkpoint_does_not_have(folder: Path) -> None:
    with pytest.raises(LaunchError, match=r"has no tensors three\.\* or four\.\*"):
        Checkpoint(str(folder)).find(["three.", "four."])


def test_a_checkpoint_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match='model = "": no such directory'):
        Checkpoint("")


def test_a_checkpoint_may_say_which_of_its_files_is_the_librarys(folder: Path) -> None:
    """Beside one of another form that has the usual name."""
    (folder / INDEX).rename(folder / "transformers.safetensors.index.json")
    write_shard(folder / SINGLE, {"other.w": ("F32", [1], bytes(4))})
    assert Checkpoint(str(folder)).find(["other."])
    config = {"model_type": KIND, "transformers_weights": "transformers.safetensors.index.json"}
    (folder / "config.json").write_text(json.dumps(config))
    assert set(Checkpoint(str(folder)).find([""])) == {"one.w", "two.w", "two.v", "two.u"}
    (folder / "config.json").write_text(json.dumps({**config, "transformers_weights": "../elsewhere.safetensors"}))
    with pytest.raises(LaunchError, match=r"its transformers_weights is '\.\./elsewhere\.safetensors'"):
        Checkpoint(str(folder)).find([""])
