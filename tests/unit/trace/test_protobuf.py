"""Fields of protocol buffers, read back by the reference implementation."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import DebugAnnotation, TrackEvent

from omnizmq.trace import protobuf


@given(st.integers(0, (1 << 64) - 1))
def test_a_uint_is_read_back(value: int) -> None:
    assert DebugAnnotation.FromString(protobuf.uint(3, value)).uint_value == value


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_an_int64_is_read_back(value: int) -> None:
    assert DebugAnnotation.FromString(protobuf.int64(4, value)).int_value == value


@given(st.floats(allow_nan=False))
def test_a_double_is_read_back(value: float) -> None:
    assert DebugAnnotation.FromString(protobuf.double(5, value)).double_value == value


def test_nan_is_read_back() -> None:
    assert math.isnan(DebugAnnotation.FromString(protobuf.double(5, math.nan)).double_value)


@given(st.integers(0, (1 << 64) - 1))
def test_a_fixed64_in_a_field_of_two_bytes_is_read_back(value: int) -> None:
    assert list(TrackEvent.FromString(protobuf.fixed64(47, value) * 2).flow_ids) == [value, value]


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=300))
def test_a_text_in_a_message_is_read_back(value: str) -> None:
    event = TrackEvent.FromString(protobuf.message(4, protobuf.text(10, value)))
    assert [note.name for note in event.debug_annotations] == [value]


@pytest.mark.parametrize("value", ["\ud800", "a\udfffb"])
def test_what_is_no_unicode_is_shown_and_does_not_fail(value: str) -> None:
    shown = DebugAnnotation.FromString(protobuf.text(10, value)).name
    assert shown == value.replace("\ud800", "?").replace("\udfff", "?")
