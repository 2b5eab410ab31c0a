"""Hostile messages: every kind of frame, each cut at every length, garbage, deep nesting, too much of anything.

All of what `bad` gives is undecodable, so a receiver must count each as one bad frame. Frames are found in the unions
of the protocol and filled by their types, so that a new one is among them at once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from omnizmq import protocol as wire
from omnizmq.errors import ProtocolError

DECODERS: dict[str, tuple[Any, msgspec.msgpack.Decoder[Any]]] = {
    "client_to_router": (wire.ClientToRouter, wire.client_to_router),
    "router_to_client": (wire.RouterToClient, wire.router_to_client),
    "router_to_worker": (wire.RouterToWorker, wire.router_to_worker),
    "worker_to_router": (wire.WorkerToRouter, wire.worker_to_router),
    "producer_to_consumer": (wire.ProducerToConsumer, wire.producer_to_consumer),
    "consumer_to_producer": (wire.ConsumerToProducer, wire.consumer_to_producer),
}
DEEP = 100_000
OVERSIZED = b"x" * (wire.FRAME_BYTES + 1)

_SCALARS: dict[Any, Any] = {str: "x", int: 1, float: 1.0, bool: True, bytes: b"abcd", type(None): None}


def good(way: str) -> list[bytes]:
    """One well-formed frame of each kind that goes this way, about a request that nobody knows."""
    return [message for kind in get_args(DECODERS[way][0]) for message in wire.Packer().pack(filled(kind))]


def bad(way: str) -> list[bytes]:
    """What is undecodable for who expects frames of this way: whatever goes any way, cut at every length; what goes the
    other ways; garbage, deep nesting, parts that do not fit."""
    decoder = DECODERS[way][1]
    messages = [*garbage(), *nested()]
    for other in DECODERS:
        for message in good(other):
            messages += [message, *(message[:cut] for cut in range(len(message)))] if other == way else [message]
    messages += wire.Packer().pack(filled(wire.Part))
    return [message for message in dict.fromkeys(messages) if not _decodes(decoder, message)]


def bad_hellos(nonce: str) -> list[bytes]:
    """What is no good hello: cut, of another version, launch or role, too deep; and every frame of the welcome."""
    hello = wire.Hello(wire.VERSION, nonce, "client", os.getpid())
    whole = wire.encode_hello(hello)
    wrong: tuple[dict[str, Any], ...] = ({"version": 1}, {"version": 1 << 40}, {"nonce": ""}, {"role": "x"})
    messages = [whole[:cut] for cut in range(len(whole))]
    messages += [wire.encode_hello(msgspec.structs.replace(hello, **changed)) for changed in wrong]
    messages += [*garbage(), *nested(), *(message for way in DECODERS for message in good(way))]
    return list(dict.fromkeys(messages))


def garbage() -> Iterator[bytes]:
    yield from (b"", b"\0", b"hello", b"\xff" * 1000, b"\xc1", bytes(range(256)))
    yield from (b"\xdf\xff\xff\xff\xff", b"\xdd\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff")
    yield msgspec.msgpack.encode(["Submit", 1, 2])
    yield msgspec.msgpack.encode(["Nobody", "x"])


def nested() -> Iterator[bytes]:
    """Arrays and maps in each other, bare, behind a tag, and where a hello ignores what it does not know."""
    for opening in (b"\x91", b"\x81\xa1x"):
        deep = opening * DEEP + b"\xc0"
        yield deep
        yield opening * DEEP
        yield from (b"\x92" + msgspec.msgpack.encode(tag) + deep for tag in ("Submit", "Output", "ChunkFrame", "Part"))
        yield b"\x82\xa5frame\xa5hello\xa7unknown" + deep


def filled(kind: Any) -> Any:
    """A value of this type of the protocol, with something in every field."""
    if kind in _SCALARS:
        return _SCALARS[kind]
    inner = get_args(kind)
    if get_origin(kind) is Literal:
        return inner[0]
    if get_origin(kind) is list:
        return [filled(inner[0])]
    if get_origin(kind) is dict:
        return {filled(inner[0]): filled(inner[1])}
    if inner:
        return filled(inner[0])
    return kind(**{name: filled(hint) for name, hint in get_type_hints(kind).items() if name in kind.__struct_fields__})


def _decodes(decoder: msgspec.msgpack.Decoder[Any], message: bytes) -> bool:
    try:
        wire.Unpacker(decoder).unpack(message)
    except ProtocolError:
        return False
    return True
