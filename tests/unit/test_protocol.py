"""Ids, the codec, parts and their limits (I1, I3, W1)."""

from __future__ import annotations

import functools
import random
import string
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from omnizmq import protocol as wire
from omnizmq.errors import BY_CODE, InvalidRequestError, OmnizmqError, ProtocolError, StageError

ENTROPY = bytes(range(8))
UNIONS = {
    "client_to_router": (wire.ClientToRouter, wire.client_to_router),
    "router_to_client": (wire.RouterToClient, wire.router_to_client),
    "router_to_worker": (wire.RouterToWorker, wire.router_to_worker),
    "worker_to_router": (wire.WorkerToRouter, wire.worker_to_router),
    "producer_to_consumer": (wire.ProducerToConsumer, wire.producer_to_consumer),
    "consumer_to_producer": (wire.ConsumerToProducer, wire.consumer_to_producer),
}
FRAMES = sorted({frame for union, _ in UNIONS.values() for frame in union.__args__}, key=lambda frame: frame.__name__)

names = st.text(max_size=20)
scalars: dict[Any, st.SearchStrategy[Any]] = {
    str: names,
    int: st.integers(-(1 << 62), 1 << 62),
    wire.Ns: st.integers(0, (1 << 63) - 1),
    float: st.floats(allow_nan=False),
    bool: st.booleans(),
    bytes: st.binary(max_size=20),
    type(None): st.none(),
    wire.Audio: st.builds(wire.Audio, st.binary(max_size=8).map(lambda data: data * 4), st.integers(1, 48_000)),
}
externals = st.text(st.sampled_from([chr(code) for code in range(0x21, 0x7F)]), min_size=1, max_size=wire.MAX_ID_CHARS)
stage_names = st.text(string.ascii_letters + string.digits + "_-", min_size=1, max_size=64)


@functools.cache
def anything(kind: Any) -> st.SearchStrategy[Any]:
    """Any value of that type of the protocol."""
    if kind in scalars:
        return scalars[kind]
    inner = get_args(kind)
    if get_origin(kind) is Literal:
        return st.sampled_from(inner)
    if get_origin(kind) is list:
        return st.lists(anything(inner[0]), max_size=3)
    if get_origin(kind) is tuple:
        return st.tuples(*map(anything, inner))
    if get_origin(kind) is dict:
        return st.dictionaries(anything(inner[0]), anything(inner[1]), max_size=3)
    if inner:
        return st.one_of(*map(anything, inner))
    hints = get_type_hints(kind, include_extras=True)
    return st.builds(kind, **{name: anything(hints[name]) for name in kind.__struct_fields__})


any_frame = st.sampled_from(FRAMES).flatmap(anything)


@pytest.mark.parametrize("at_ns", [-1, 1 << 63, (1 << 64) - 1])
def test_w1_no_moment_is_before_the_machines_start_or_beyond_64_bits(at_ns: int) -> None:
    frame = wire.StageFact("demo-1", 1, 1, "running", 5, {})
    (data,) = wire.Packer().pack(msgspec.structs.replace(frame, at_ns=at_ns))
    with pytest.raises(ProtocolError):
        wire.Unpacker(wire.worker_to_router).unpack(data)


class TestIds:
    @given(external=externals)
    def test_i1_a_request_id_is_the_external_id_and_64_random_bits(self, external: str) -> None:
        made = wire.make_request_id(external, ENTROPY)
        assert made == f"{external}-0001020304050607"
        assert wire.check_request_id(made, external) == made

    @given(one=externals, other=externals)
    def test_i2_a_request_id_belongs_to_one_external_id(self, one: str, other: str) -> None:
        made = wire.make_request_id(one, ENTROPY)
        if one != other:
            with pytest.raises(InvalidRequestError, match="does not belong to external id"):
                wire.check_request_id(made, other)

    @pytest.mark.parametrize("suffix", ["", "-", "-00", "-000102030405060G", "-00010203040506070", "_0001020304050607"])
    def test_i1_a_request_id_without_the_bits_is_refused(self, suffix: str) -> None:
        with pytest.raises(InvalidRequestError):
            wire.check_request_id(f"demo{suffix}", "demo")

    def test_i1_the_bits_are_drawn_by_the_caller(self) -> None:
        with pytest.raises(ValueError, match="needs 8 random bytes, not 7"):
            wire.make_request_id("demo", bytes(7))

    @given(
        rids=st.tuples(externals, externals).map(lambda pair: [wire.make_request_id(one, ENTROPY) for one in pair]),
        attempts=st.tuples(st.integers(1, 10**6), st.integers(1, 10**6)),
        stages=st.tuples(stage_names, stage_names),
    )
    @example(rids=["demo-0001020304050607"] * 2, attempts=(1, 11), stages=("1a", "a"))
    def test_i1_engine_ids_differ_wherever_request_attempt_or_stage_do(
        self, rids: list[str], attempts: tuple[int, int], stages: tuple[str, str]
    ) -> None:
        one, other = zip(rids, attempts, stages, strict=True)
        assert (wire.make_engine_id(*one) == wire.make_engine_id(*other)) == (one == other)

    @pytest.mark.parametrize("good", ["a", "x" * 128, "../../etc/passwd", "$(rm${IFS}-rf)", "a/b?c=d&e#f"])
    def test_i3_an_id_may_hold_any_printable_character(self, good: str) -> None:
        assert wire.check_external_id(good) == good

    @pytest.mark.parametrize(
        "bad",
        ["", " ", "a b", "a\n", "\n", "a\0b", "\x7f", "é", "日本", "x" * 129, "x" * 10**6, "\ud800", None, 5, b"a"],
    )
    def test_i3_what_is_no_id_is_refused_in_one_short_line(self, bad: Any) -> None:
        with pytest.raises(InvalidRequestError, match="1 to 128 printable ASCII characters, no spaces") as caught:
            wire.check_external_id(bad)
        assert len(caught.value.message) < 160
        assert "\n" not in caught.value.message


class TestCodec:
    @pytest.mark.parametrize("kind", FRAMES, ids=lambda kind: kind.__name__)
    def test_w1_a_frame_comes_back_as_it_was(self, kind: type[Any]) -> None:
        @settings(max_examples=25, derandomize=True)
        @given(frame=anything(kind))
        def check(frame: Any) -> None:
            for union, decoder in UNIONS.values():
                if kind in union.__args__:
                    unpacker = wire.Unpacker(decoder)
                    (message,) = wire.Packer().pack(frame)
                    assert unpacker.unpack(message) == frame

        check()

    @settings(derandomize=True)
    @given(frame=any_frame, part=st.floats(0, 1, exclude_max=True))
    def test_w1_a_truncated_frame_does_not_decode(self, frame: Any, part: float) -> None:
        (message,) = wire.Packer().pack(frame)
        cut = int(part * len(message))
        for _, decoder in UNIONS.values():
            with pytest.raises(ProtocolError):
                wire.Unpacker(decoder).unpack(message[:cut])

    @settings(derandomize=True)
    @given(frame=any_frame)
    def test_w1_a_frame_with_more_than_its_fields_does_not_decode(self, frame: Any) -> None:
        values = msgspec.msgpack.decode(msgspec.msgpack.encode(frame))
        message = msgspec.msgpack.encode([*values, None])
        for _, decoder in UNIONS.values():
            with pytest.raises(ProtocolError):
                wire.Unpacker(decoder).unpack(message)

    @settings(derandomize=True)
    @given(frame=any_frame)
    def test_w1_a_frame_on_another_socket_does_not_decode(self, frame: Any) -> None:
        (message,) = wire.Packer().pack(frame)
        for union, decoder in UNIONS.values():
            if type(frame) not in union.__args__:
                with pytest.raises(ProtocolError):
                    wire.Unpacker(decoder).unpack(message)

    @settings(max_examples=400, derandomize=True)
    @given(garbage=st.binary(max_size=200))
    def test_w1_garbage_does_not_decode_or_is_a_frame(self, garbage: bytes) -> None:
        for union, decoder in UNIONS.values():
            unpacker = wire.Unpacker(decoder)
            try:
                assert isinstance(unpacker.unpack(garbage), union)
            except ProtocolError as error:
                assert "\n" not in error.message  # noqa: PT017
        with pytest.raises(ProtocolError, match="not a hello"):
            wire.decode_hello(b"\xc1" + garbage)

    def test_w1_frames_with_flipped_bytes_never_raise_anything_else(self) -> None:
        """Each byte of each frame is given other values: it is another frame, or `ProtocolError`."""
        chance = random.Random(1)
        for frame in _samples():
            (message,) = wire.Packer().pack(frame)
            for at in range(len(message)):
                broken = bytearray(message)
                broken[at] = chance.randrange(256)
                for _, decoder in UNIONS.values():
                    with suppress(ProtocolError):
                        wire.Unpacker(decoder).unpack(bytes(broken))

    @pytest.mark.parametrize("nest", [b"\x91", b"\x81\xa1a", b"\xdc\x00\x01"], ids=["array", "map", "long array"])
    def test_w1_deep_nesting_does_not_decode(self, nest: bytes) -> None:
        deep = nest * 100_000
        for _, decoder in UNIONS.values():
            with pytest.raises(ProtocolError):
                wire.Unpacker(decoder).unpack(deep)
        with pytest.raises(ProtocolError):
            wire.decode_hello(b"\x81\xa5other" + deep)
        with pytest.raises(ProtocolError):
            wire.decode_relay(deep)

    def test_w1_a_length_that_no_message_has_allocates_nothing(self) -> None:
        """The header of a list of 2**32 - 1 tokens."""
        message = msgspec.msgpack.encode(wire.Prompt(None, None, []))
        assert message.endswith(b"\x90")
        with pytest.raises(msgspec.DecodeError):
            msgspec.msgpack.decode(message[:-1] + b"\xdd\xff\xff\xff\xff", type=wire.Prompt)

    def test_w1_a_hello_ignores_what_it_does_not_know_and_nothing_else_does(self) -> None:
        later = {"frame": "hello", "version": 9, "nonce": "n", "role": "client", "invented": [1, {"a": 2}]}
        assert wire.decode_hello(msgspec.msgpack.encode(later)).version == 9
        with pytest.raises(ProtocolError, match="not a hello"):
            wire.decode_hello(msgspec.msgpack.encode(wire.AskStatus(1)))

    @pytest.mark.parametrize(("data", "rate"), [(b"abc", 24_000), (b"abcd", 0), (b"abcd", -1)])
    def test_w1_audio_that_is_no_sound_does_not_decode(self, data: bytes, rate: int) -> None:
        message = msgspec.msgpack.encode(["Output", "demo", 1, 1, 1, ["Audio", data, rate], False, 1])
        with pytest.raises(ProtocolError, match="no float32 sound"):
            wire.Unpacker(wire.worker_to_router).unpack(message)

    @pytest.mark.parametrize(
        "usage", [{"tokens": np.int64(1)}, {"tokens": 1 << 64}, {"\ud800": 1}, {"tokens": object()}], ids=repr
    )
    def test_what_cannot_be_encoded_is_a_protocol_error(self, usage: Any) -> None:
        frame = wire.StageFinished("demo", 1, 1, "stop", None, usage, None, 0, [], 1)
        with pytest.raises(ProtocolError, match="a StageFinished does not encode"):
            list(wire.Packer().pack(frame))

    def test_w1_no_wire_struct_has_a_default_but_hello(self) -> None:
        """With defaults a truncated frame would decode."""
        for frame in FRAMES:
            assert not [field.name for field in msgspec.structs.fields(frame) if not field.required], frame


class TestErrors:
    @pytest.mark.parametrize("kind", BY_CODE.values(), ids=lambda kind: kind.code)
    def test_an_error_goes_over_the_wire_as_itself(self, kind: type[OmnizmqError]) -> None:
        error = kind("what went wrong", stage="talker", replica="talker/0")
        back = wire.ErrorInfo.of(error).exception()
        assert (type(back), back.message, back.stage, back.replica) == (kind, error.message, "talker", "talker/0")
        assert back.retriable is kind.retriable

    def test_where_it_happened_is_filled_in_where_it_is_not_known(self) -> None:
        assert wire.ErrorInfo.of(StageError("x"), stage="talker", replica="talker/0").stage == "talker"
        assert wire.ErrorInfo.of(StageError("x", stage="thinker"), stage="talker").stage == "thinker"

    @pytest.mark.parametrize("message", ["\udcff broken", "x" * 10**6, 5, None])
    def test_f1_any_error_fits_and_encodes(self, message: Any) -> None:
        info = wire.ErrorInfo.of(StageError(message, stage=3))  # type: ignore[arg-type]
        frame = wire.StageFinished("demo", 1, 1, None, info, {}, None, 0, [], 1)
        (packed,) = wire.Packer().pack(frame)
        assert len(packed) < 5000
        assert wire.Unpacker(wire.worker_to_router).unpack(packed) == frame

    def test_an_unknown_code_of_a_newer_peer_is_the_root_of_the_tree(self) -> None:
        back = wire.ErrorInfo("invented", "x", None, None, True).exception()
        assert type(back) is OmnizmqError


class TestParts:
    """W3: what is larger than a frame goes in parts, up to a limit, and the receiver's memory is bounded."""

    @pytest.mark.parametrize("size", [0, 1, wire.PART_BYTES - 60, wire.PART_BYTES, wire.PART_BYTES + 1, 3 << 20])
    def test_w3_a_message_of_any_size_arrives_and_no_part_is_larger_than_a_frame(self, size: int) -> None:
        frame = wire.FeedStage("demo", 1, "thinker", bytes(size))
        messages = list(wire.Packer().pack(frame))
        assert max(map(len, messages)) < wire.FRAME_BYTES
        assert (len(messages) == 1) is (size < wire.PART_BYTES)
        unpacker = wire.Unpacker(wire.router_to_worker)
        *before, last = [unpacker.unpack(message) for message in messages]
        assert not any(before)
        assert last == frame
        _is_empty(unpacker)

    def test_w3_the_largest_message_arrives_and_a_larger_one_is_refused_by_the_sender(self) -> None:
        empty = len(b"".join(wire.Packer().pack(wire.FeedStage("demo", 1, "s", bytes(1 << 16))))) - (1 << 16)
        largest = wire.FeedStage("demo", 1, "s", bytes(wire.MESSAGE_BYTES - empty))
        messages = list(wire.Packer().pack(largest))
        unpacker = wire.Unpacker(wire.router_to_worker)
        assert [unpacker.unpack(message) for message in messages][-1] == largest
        _is_empty(unpacker)
        with pytest.raises(ProtocolError, match="a FeedStage of 67108865 bytes is larger than a message may be"):
            next(wire.Packer().pack(wire.FeedStage("demo", 1, "s", bytes(len(largest.data) + 1))))

    def test_w3_content_of_the_stated_size_leaves_room_for_what_goes_with_it(self) -> None:
        name = "x" * (wire.MAX_ID_CHARS + 17)
        output = wire.Output(name, 1, 1, 1, wire.Text("x" * wire.CONTENT_BYTES), True, 1)
        assert next(wire.Packer().pack(output))

    def test_w3_transfers_of_one_packer_may_interleave(self) -> None:
        packer, unpacker = wire.Packer(), wire.Unpacker(wire.router_to_worker)
        frames = [wire.FeedStage("demo", 1, f"s{n}", bytes([n]) * (1 << 20)) for n in range(5)]
        queues = [list(packer.pack(frame)) for frame in frames]
        chance = random.Random(2)
        arrived = []
        while any(queues):
            queue = chance.choice([queue for queue in queues if queue])
            arrived.append(unpacker.unpack(queue.pop(0)))
        assert sorted(filter(None, arrived), key=lambda frame: frame.source) == frames
        _is_empty(unpacker)

    def test_w3_a_small_frame_may_come_between_parts(self) -> None:
        packer, unpacker = wire.Packer(), wire.Unpacker(wire.router_to_worker)
        first, *rest = packer.pack(wire.FeedStage("demo", 1, "s", bytes(1 << 20)))
        (abort,) = packer.pack(wire.AbortStage("demo", 1))
        assert unpacker.unpack(first) is None
        assert unpacker.unpack(abort) == wire.AbortStage("demo", 1)
        assert [unpacker.unpack(message) for message in rest][-1] is not None

    @pytest.mark.parametrize(
        "order", [[1], [0, 2], [0, 0], [0, 1, 1], [3, 2, 1]], ids=["late", "gap", "twice", "again", "backwards"]
    )
    def test_w1_parts_out_of_order_are_dropped_with_all_that_came_before(self, order: Sequence[int]) -> None:
        parts = list(wire.Packer().pack(wire.FeedStage("demo", 1, "s", bytes(1 << 20))))
        unpacker = wire.Unpacker(wire.router_to_worker)
        for index in order[:-1]:
            with suppress(ProtocolError):
                unpacker.unpack(parts[index])
        with pytest.raises(ProtocolError):
            unpacker.unpack(parts[order[-1]])
        if order[-1] != 0:
            _is_empty(unpacker)

    @pytest.mark.parametrize(("index", "count"), [(-1, 4), (4, 4), (0, 0), (0, -1), (0, 257), (2**62, 2**63)])
    def test_w1_parts_out_of_bounds_are_refused(self, index: int, count: int) -> None:
        unpacker = wire.Unpacker(wire.router_to_worker)
        with pytest.raises(ProtocolError, match="out of bounds"):
            unpacker.unpack(msgspec.msgpack.encode(wire.Part(1, index, count, b"x")))
        _is_empty(unpacker)

    def test_w1_a_part_that_is_too_large_is_refused(self) -> None:
        unpacker = wire.Unpacker(wire.router_to_worker)
        with pytest.raises(ProtocolError, match="out of bounds"):
            unpacker.unpack(msgspec.msgpack.encode(wire.Part(1, 0, 2, bytes(wire.PART_BYTES + 1))))
        _is_empty(unpacker)

    def test_w1_too_many_open_transfers_are_refused_and_those_under_way_go_on(self) -> None:
        packer, unpacker = wire.Packer(), wire.Unpacker(wire.router_to_worker)
        frame = wire.FeedStage("demo", 1, "s", bytes(wire.PART_BYTES + 1))
        first_part, second_part = packer.pack(frame)
        unpacker.unpack(first_part)
        for transfer in range(2, wire.OPEN_TRANSFERS + 1):
            unpacker.unpack(msgspec.msgpack.encode(wire.Part(transfer, 0, 2, b"")))
        for transfer in range(1000, 1100):
            with pytest.raises(ProtocolError, match="over the limit"):
                unpacker.unpack(msgspec.msgpack.encode(wire.Part(transfer, 0, 2, b"")))
        assert len(unpacker._open) == wire.OPEN_TRANSFERS
        assert unpacker.unpack(second_part) == frame
        assert unpacker.unpack(msgspec.msgpack.encode(wire.Part(2000, 0, 2, b""))) is None

    def test_w1_the_memory_of_open_transfers_is_bounded(self) -> None:
        unpacker = wire.Unpacker(wire.router_to_worker)
        piece = bytes(wire.PART_BYTES)
        refused = 0
        for transfer in range(2):
            for index in range(200):
                try:
                    unpacker.unpack(msgspec.msgpack.encode(wire.Part(transfer, index, 256, piece)))
                except ProtocolError:
                    refused += 1
                assert unpacker._bytes <= wire.MESSAGE_BYTES
                assert unpacker._bytes == sum(len(part) for parts in unpacker._open.values() for part in parts)
        assert refused

    def test_w1_a_replayed_message_is_the_same_frame_again_and_a_replayed_part_is_dropped(self) -> None:
        parts = list(wire.Packer().pack(wire.FeedStage("demo", 1, "s", bytes(1 << 20))))
        unpacker = wire.Unpacker(wire.router_to_worker)
        once = [unpacker.unpack(message) for message in parts][-1]
        with pytest.raises(ProtocolError):
            unpacker.unpack(parts[-1])
        assert [unpacker.unpack(message) for message in parts][-1] == once
        _is_empty(unpacker)

    def test_w1_parts_of_garbage_do_not_decode_and_leave_nothing(self) -> None:
        unpacker = wire.Unpacker(wire.router_to_worker)
        assert unpacker.unpack(msgspec.msgpack.encode(wire.Part(1, 0, 2, b"\xc1"))) is None
        with pytest.raises(ProtocolError, match="does not decode"):
            unpacker.unpack(msgspec.msgpack.encode(wire.Part(1, 1, 2, b"\xc1")))
        _is_empty(unpacker)

    def test_w1_a_part_within_parts_does_not_decode(self) -> None:
        unpacker = wire.Unpacker(wire.router_to_worker)
        inner = msgspec.msgpack.encode(wire.Part(2, 0, 1, b""))
        with pytest.raises(ProtocolError, match="does not decode"):
            unpacker.unpack(msgspec.msgpack.encode(wire.Part(1, 0, 1, inner)))


def _is_empty(unpacker: wire.Unpacker[Any]) -> None:
    assert (unpacker._open, unpacker._bytes) == ({}, 0)


def _samples() -> list[Any]:
    """A frame of every kind that carries something."""
    error = wire.ErrorInfo("stage_error", "boom", "talker", None, False)
    prompt = wire.Prompt(None, [wire.Message("user", [wire.TextPart("hi"), wire.AudioPart(b"RIFF")])], None)
    array = wire.ArrayData("rows", "<f4", [1, 1], b"abcd")
    return [
        wire.Submit("demo-1", "demo", prompt, ["text"], {"thinker": {"stop": ["a"]}}, 1, 2.5, None, 8, 1, None),
        wire.SubmitStage(
            "demo-1", "demo", 1, "demo-1/1/talker", prompt, None, {"a": None}, 0, True, 8, 1 << 20, 0,
            [wire.Source("thinker", "thinker/0", 1, "chunk")],
            [wire.Target("code2wav", "code2wav/0", 1, "ipc://x", "relay", 4, 60.0)],
            "",
        ),
        wire.Welcome(1, "demo", 5, [wire.StageInfo("thinker", "text")], 9, 8, 1 << 20, 10.0),
        wire.Delivery("demo-1", "code2wav", "audio", wire.Audio(b"abcd", 24_000), True),
        wire.Terminal("demo-1", "code2wav", "audio", "error", error, {"thinker": {"t": 1}}, ["talker"], {"a": "b"}),
        wire.ChunkFrame("demo-1", 1, 1, "thinker", 1, {"n": 1.5, "b": True}, [array]),
        wire.StageFinished("demo-1", 1, 1, "stop", None, {"a": 1}, "note", 1, [wire.EdgeCount("t", 1, 2, 3, 4, 5)], 6),
        wire.EdgeFailed("demo-1", 1, 1, "thinker", error),
        wire.Part(1, 0, 3, b"abc"),
    ]  # fmt: skip
