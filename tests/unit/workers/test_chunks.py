"""Arrays to bytes and back: every dtype and shape that may travel, and a clear word for what may not (W1)."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnizmq import protocol as wire
from omnizmq.errors import ProtocolError, StageError
from omnizmq.shm.arrays import DTYPES, MAX_NDIM, check_array
from omnizmq.workers.chunks import (
    copied,
    describe_arrays,
    fill_slot,
    pack_arrays,
    slot_bytes,
    unpack_chunk,
    unpack_slot,
)
from omnizmq.workers.engine import Chunk

CODES = "?bBhHiIlLqQefdFD"


def frame_with(*arrays: wire.ArrayData) -> wire.ChunkFrame:
    return wire.ChunkFrame("demo", 1, 1, "thinker", 1, {}, list(arrays))


def travelled(array: Any) -> np.ndarray:
    """The array after a journey over the wire."""
    (message,) = wire.Packer().pack(frame_with(*pack_arrays(Chunk({}, {"rows": array}))))
    frame = wire.Unpacker(wire.producer_to_consumer).unpack(message)
    assert isinstance(frame, wire.ChunkFrame)
    return unpack_chunk(frame).arrays["rows"]


def same(came: np.ndarray, went: np.ndarray) -> None:
    assert came.shape == went.shape
    assert came.dtype == went.dtype.newbyteorder("<")
    np.testing.assert_array_equal(came, went)


class TestWhatTravels:
    @pytest.mark.parametrize("order", ["<", ">", "="])
    @pytest.mark.parametrize("code", CODES)
    def test_every_real_dtype_of_either_byte_order(self, code: str, order: str) -> None:
        array = np.array([[0, 1, 1], [1, 0, 1]]).astype(np.dtype(code).newbyteorder(order))
        same(travelled(array), array)

    @pytest.mark.parametrize("code", "hHiIqQefd")
    def test_big_endian_values_keep_their_meaning(self, code: str) -> None:
        array = np.array([1, 2, 100], f">{code}")
        came = travelled(array)
        assert came.tolist() == [1, 2, 100]
        assert came.dtype.str.startswith("<")

    @pytest.mark.parametrize("size", [1, 2])
    def test_opaque_elements_keep_their_bytes(self, size: int) -> None:
        """bfloat16 and float8, as numpy sees them."""
        array = np.arange(12 * size, dtype=np.uint8).view(f"V{size}").reshape(3, 4)[:, ::2]
        came = travelled(array)
        assert (came.dtype.str, came.shape, came.tobytes()) == (f"|V{size}", (3, 2), array.tobytes())

    @pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, -0.0, 1e-45])
    def test_every_float_is_kept_to_the_bit(self, value: float) -> None:
        array = np.array([value], np.float32)
        assert travelled(array).tobytes() == array.tobytes()

    @pytest.mark.parametrize("shape", [(), (0,), (0, 3), (3, 0, 2), (1,), (2, 3, 4), (1,) * MAX_NDIM, (0,) * MAX_NDIM])
    def test_every_shape(self, shape: tuple[int, ...]) -> None:
        array = np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
        same(travelled(array), array)

    @pytest.mark.parametrize(
        "view",
        [
            lambda base: base[::2, ::3],
            lambda base: base[::-1],
            lambda base: base.T,
            lambda base: np.asfortranarray(base),
            lambda base: np.broadcast_to(base[0], (4, *base[0].shape)),
            lambda base: base[1:1],
            lambda base: base.astype(">f4")[:, 1:],
        ],
        ids=["strided", "backwards", "transposed", "fortran", "broadcast", "empty", "big-endian slice"],
    )
    def test_every_layout(self, view: Any) -> None:
        array = view(np.arange(60, dtype=np.float32).reshape(5, 12))
        came = travelled(array)
        same(came, array)
        assert came.flags.c_contiguous

    @settings(max_examples=150, derandomize=True)
    @given(
        code=st.sampled_from(CODES),
        shape=st.lists(st.integers(0, 4), max_size=4),
        axes=st.randoms(use_true_random=False),
        step=st.sampled_from([-1, 1, 2]),
    )
    def test_w3_any_view_of_any_array(self, code: str, shape: list[int], axes: Any, step: int) -> None:
        order = list(range(len(shape)))
        axes.shuffle(order)
        base = np.arange(math.prod(shape)).astype(code).reshape(shape)
        array = base.transpose(order)[::step] if shape else base
        same(travelled(array), array)
        same(through_slot(array), array)

    def test_what_arrives_is_read_only_and_lies_over_the_frame(self) -> None:
        data = np.arange(6, dtype="<i4").tobytes()
        came = unpack_chunk(frame_with(wire.ArrayData("rows", "<i4", [2, 3], data))).arrays["rows"]
        assert not came.flags.writeable
        with pytest.raises(ValueError, match="read-only"):
            came[0, 0] = 1
        assert np.shares_memory(came, np.frombuffer(data, "<i4"))

    def test_scalars_and_several_arrays_of_a_chunk(self) -> None:
        meta = {"n": 1, "half": 0.5, "yes": True, "word": "né\0", "none": None}
        arrays = {"": np.zeros(2, np.int8), "é": np.ones((1, 1), np.float16)}
        frame = wire.ChunkFrame("demo", 1, 1, "thinker", 1, dict(meta), pack_arrays(Chunk(meta, arrays)))
        chunk = unpack_chunk(frame)
        assert chunk.meta == meta
        assert list(chunk.arrays) == ["", "é"]
        assert chunk.nbytes == Chunk(meta, arrays).nbytes == 2 + 2 + 4

    def test_a_change_after_packing_changes_nothing(self) -> None:
        array = np.zeros(3, np.float32)
        packed = pack_arrays(Chunk({}, {"rows": array}))
        array[:] = 1
        assert unpack_chunk(frame_with(*packed)).arrays["rows"].tolist() == [0, 0, 0]


class TestWhatDoesNotTravel:
    @pytest.mark.parametrize(
        "array",
        [
            np.array([None, "x"], object),
            np.array(["text"]),
            np.array([b"bytes"]),
            np.zeros(2, np.longdouble),
            np.zeros(2, "M8[s]"),
            np.zeros(2, "m8[s]"),
            np.zeros(2, [("a", "i4")]),
            np.zeros(2, "V3"),
            np.zeros(2, [("bfloat16", "u2")]),
        ],
        ids=lambda array: str(array.dtype),
    )
    def test_w1_other_dtypes_are_refused_by_name(self, array: np.ndarray) -> None:
        with pytest.raises(ProtocolError, match=r"array 'rows' has dtype .*, which cannot travel") as caught:
            check_array("rows", array)
        assert str(array.dtype) in caught.value.message

    @pytest.mark.parametrize("value", [[1, 2], 3, "text", None, np.float32(1)], ids=repr)
    def test_what_is_no_array_is_refused(self, value: Any) -> None:
        with pytest.raises(ProtocolError, match=r"array 'rows' is a .*; a numpy array was expected"):
            check_array("rows", value)

    def test_too_many_dimensions_are_refused(self) -> None:
        with pytest.raises(ProtocolError, match=f"has {MAX_NDIM + 1} dimensions; at most {MAX_NDIM} can travel"):
            check_array("rows", np.zeros((1,) * (MAX_NDIM + 1)))

    @pytest.mark.parametrize(
        "dtype",
        ["|O", "O", "<U4", "<c32", "V8", "|V4", ">f4", "f4", "float32", "", "<f16", "<M8[s]", "<f4,<f4", "\0", "é"],
    )
    def test_w1_a_dtype_that_is_not_on_the_list_makes_no_array(self, dtype: str) -> None:
        assert dtype not in DTYPES
        with pytest.raises(ProtocolError, match="array 'rows' has an unknown dtype"):
            unpack_chunk(frame_with(wire.ArrayData("rows", dtype, [1], bytes(8))))

    @pytest.mark.parametrize(
        ("shape", "size"),
        [
            ([2], 4),
            ([2], 12),
            ([], 0),
            ([], 8),
            ([0], 4),
            ([1 << 40], 4),
            ([1 << 62, 1 << 62], 0),
            ([1 << 62, 4], 0),
            ([(1 << 62) + 1], 4),
        ],
    )
    def test_w1_bytes_that_do_not_fill_the_shape_make_no_array(self, shape: list[int], size: int) -> None:
        with pytest.raises(ProtocolError, match=rf"array 'rows': {size} bytes do not fill"):
            unpack_chunk(frame_with(wire.ArrayData("rows", "<f4", shape, bytes(size))))

    @pytest.mark.parametrize(
        "shape",
        [
            [-1],
            [-1, -1],
            [0, -5],
            [1 << 62, 1 << 62, 0],
            [0, 1 << 63],
            [1] * (MAX_NDIM + 1),
            [0] * 10_000,
            [1 << 63] * 100_000,
        ],
        ids=["negative", "both negative", "hidden by 0", "overflow by 0", "beyond 63 bits", "deep", "deeper", "bignum"],
    )
    def test_w1_a_shape_that_no_array_has_makes_none(self, shape: list[int]) -> None:
        size = 4 if shape in ([-1, -1], [1] * (MAX_NDIM + 1)) else 0
        with pytest.raises(ProtocolError, match="array 'rows' has a shape that no array has"):
            unpack_chunk(frame_with(wire.ArrayData("rows", "<f4", shape, bytes(size))))

    @settings(max_examples=300, derandomize=True)
    @given(
        dtype=st.sampled_from(sorted(DTYPES)) | st.text(max_size=4),
        shape=st.lists(st.integers(-2, 5) | st.sampled_from([1 << 31, 1 << 62, (1 << 63) - 1]), max_size=5),
        data=st.binary(max_size=64),
    )
    def test_w1_whatever_decodes_is_an_array_of_that_shape_or_an_error(
        self, dtype: str, shape: list[int], data: bytes
    ) -> None:
        message = msgspec.msgpack.encode(frame_with(wire.ArrayData("rows", dtype, shape, data)))
        frame = wire.producer_to_consumer.decode(message)
        assert isinstance(frame, wire.ChunkFrame)
        try:
            came = unpack_chunk(frame).arrays["rows"]
        except ProtocolError:
            return
        assert (came.dtype.str, list(came.shape), came.tobytes()) == (dtype, shape, data)


# --- In a slot -----------------------------------------------------------------------------------------------------


class Tensor:
    """An engine's own array."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array
        self.dtype = array.dtype
        self.shape = array.shape

    def copy_to(self, out: np.ndarray) -> None:
        assert (out.dtype, out.shape) == (self.dtype.newbyteorder("<"), self.shape)
        assert out.flags.c_contiguous
        assert out.flags.writeable
        out[...] = self._array


class Broken(Tensor):
    def copy_to(self, out: np.ndarray) -> None:  # noqa: ARG002
        raise ZeroDivisionError("oh")


def slot_of(chunk: Chunk) -> np.ndarray:
    data = np.full(slot_bytes(chunk), 0xAA, np.uint8)
    fill_slot(chunk, data)
    data.flags.writeable = False
    return data


def frame_of(chunk: Chunk, arrays: list[wire.ArrayShape] | None = None) -> wire.RingChunk:
    described = describe_arrays(chunk) if arrays is None else arrays
    (message,) = wire.Packer().pack(
        wire.RingChunk("demo", 1, 1, "thinker", 1, dict(chunk.meta), described, 1, 64, slot_bytes(chunk), None)
    )
    frame = wire.Unpacker(wire.producer_to_consumer).unpack(message)
    assert isinstance(frame, wire.RingChunk)
    return frame


def through_slot(array: Any) -> np.ndarray:
    chunk = Chunk({}, {"first": np.zeros(3, np.uint8), "rows": array, "last": np.ones(1)})
    return unpack_slot(frame_of(chunk), slot_of(chunk)).arrays["rows"]


class TestSlots:
    """W1, W3: the same arrays, written once where the consumer reads them."""

    @pytest.mark.parametrize("order", ["<", ">"])
    @pytest.mark.parametrize("code", CODES)
    def test_w3_every_real_dtype_of_either_byte_order(self, code: str, order: str) -> None:
        array = np.array([[0, 1, 1], [1, 0, 1]]).astype(np.dtype(code).newbyteorder(order))
        same(through_slot(array), array)

    @pytest.mark.parametrize("size", [1, 2])
    def test_w3_opaque_elements_keep_their_bytes(self, size: int) -> None:
        array = np.arange(12 * size, dtype=np.uint8).view(f"V{size}").reshape(3, 4)[:, ::2]
        came = through_slot(array)
        assert (came.dtype.str, came.shape, came.tobytes()) == (f"|V{size}", (3, 2), array.tobytes())

    @pytest.mark.parametrize("shape", [(), (0,), (0, 3), (3, 0, 2), (1,), (2, 3, 4), (1,) * MAX_NDIM, (0,) * MAX_NDIM])
    def test_w3_every_shape(self, shape: tuple[int, ...]) -> None:
        array = np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
        same(through_slot(array), array)
        assert slot_bytes(Chunk({}, {"rows": array})) == array.nbytes
        alone = Chunk({}, {"rows": array})
        same(unpack_slot(frame_of(alone), slot_of(alone)).arrays["rows"], array)

    def test_w3_each_array_is_aligned_and_nothing_is_written_between(self) -> None:
        chunk = Chunk({}, {"a": np.full(3, 1, np.uint8), "b": np.zeros(0), "c": np.full(2, 2, np.uint8)})
        assert slot_bytes(chunk) == 64 + 2
        assert slot_of(chunk).tolist() == [1] * 3 + [0xAA] * 61 + [2] * 2

    def test_w3_what_arrives_lies_over_the_slot_read_only_with_its_scalars(self) -> None:
        chunk = Chunk({"n": 1, "word": "né"}, {"a": np.arange(5, dtype=np.int16), "b": np.ones((2, 3))})
        data = slot_of(chunk)
        came = unpack_slot(frame_of(chunk), data)
        assert came.meta == chunk.meta
        assert list(came.arrays) == ["a", "b"]
        assert came.nbytes == chunk.nbytes
        for array in came.arrays.values():
            assert np.shares_memory(array, data)
            assert not array.flags.writeable

    def test_w3_a_chunk_without_arrays_needs_no_bytes(self) -> None:
        chunk = Chunk({"n": 1})
        assert slot_bytes(chunk) == 0
        assert unpack_slot(frame_of(chunk), slot_of(chunk)) == chunk

    @pytest.mark.parametrize("change", [-1, -64, -100])
    def test_w1_a_slot_that_is_too_small_makes_no_array(self, change: int) -> None:
        chunk = Chunk({}, {"a": np.zeros(3), "rows": np.zeros(5)})
        with pytest.raises(ProtocolError, match=r"array '(a|rows)': \d+ bytes do not fill"):
            unpack_slot(frame_of(chunk), slot_of(chunk)[:change])

    @pytest.mark.parametrize(
        "one",
        [
            wire.ArrayShape("rows", "|O", [1]),
            wire.ArrayShape("rows", ">f4", [1]),
            wire.ArrayShape("rows", "<f4", [-1]),
            wire.ArrayShape("rows", "<f4", [-1, -1]),
            wire.ArrayShape("rows", "<f4", [1 << 62, 1 << 62]),
            wire.ArrayShape("rows", "<f4", [1 << 62, 1 << 62, 0]),
            wire.ArrayShape("rows", "<f4", [1] * (MAX_NDIM + 1)),
            wire.ArrayShape("rows", "<f4", [5000]),
        ],
        ids=lambda one: f"{one.dtype} {one.shape[:3]}",
    )
    def test_w1_a_description_that_no_array_has_makes_none(self, one: wire.ArrayShape) -> None:
        chunk = Chunk({}, {"rows": np.zeros(4, np.uint8)})
        with pytest.raises(ProtocolError, match="array 'rows'"):
            unpack_slot(frame_of(chunk, [one]), slot_of(chunk))

    def test_b4_a_copy_is_the_same_in_memory_of_its_own_and_read_only(self) -> None:
        chunk = Chunk({"n": 1}, {"a": np.arange(5), "b": np.array(1.5), "c": np.zeros((0, 3), np.int8)})
        data = slot_of(chunk)
        came = copied(unpack_slot(frame_of(chunk), data))
        assert came.meta == chunk.meta
        for name, array in chunk.arrays.items():
            same(came.arrays[name], array)
            assert not np.shares_memory(came.arrays[name], data)
            assert not came.arrays[name].flags.writeable


class TestTensors:
    """Arrays of an engine's own."""

    @pytest.mark.parametrize("order", ["<", ">"])
    def test_w3_a_tensor_copies_itself_into_its_frame_and_into_its_slot(self, order: str) -> None:
        array = np.arange(6, dtype=f"{order}f4").reshape(2, 3)
        chunk = Chunk({"n": 1}, {"a": np.ones(3, np.uint8)}, {"t": Tensor(array)})
        assert chunk.nbytes == 3 + 24
        by_frame = unpack_chunk(wire.ChunkFrame("demo", 1, 1, "thinker", 1, {"n": 1}, pack_arrays(chunk)))
        for came in (by_frame, unpack_slot(frame_of(chunk), slot_of(chunk))):
            assert list(came.arrays) == ["a", "t"]
            assert came.tensors == {}
            same(came.arrays["t"], array)

    def test_f1_one_that_does_not_copy_itself_says_which_and_why(self) -> None:
        chunk = Chunk({}, {"a": np.ones(3)}, {"t": Broken(np.zeros(2))})
        with pytest.raises(StageError, match="array 't' was not copied: ZeroDivisionError: oh"):
            pack_arrays(chunk)
        with pytest.raises(ZeroDivisionError):
            fill_slot(chunk, np.zeros(slot_bytes(chunk), np.uint8))
