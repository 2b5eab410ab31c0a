"""What an engine made, checked before it becomes frames: whatever the gate sends on can be encoded, and fits (F1, W1).

An engine is other people's code. What it hands over wrongly is its request's error, in one line that says what was
expected; numpy's scalars alone are not held against it, but in logprobs, and become Python's. Pure.
"""

from __future__ import annotations

import dataclasses
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isnan
from typing import Any, get_args

import msgspec
import numpy as np

from omnizmq import protocol as wire
from omnizmq.errors import OmnizmqError, ProtocolError, StageError
from omnizmq.shm.arrays import ArraySource, FixedSource, check_array
from omnizmq.workers.engine import Audio, Chunk, FinishReason, StageOutput

NOTE_BYTES = 4096
_HEADER_BYTES = 16  # at most, of a packed number, or before a text
_ARRAY_BYTES = 512  # at most, of an array's dtype and shape
_REASONS = (None, *get_args(FinishReason))


def checked(output: StageOutput) -> StageOutput:
    """The same, its scalars Python's own. Raises `StageError`."""
    try:
        return _checked(output)
    except StageError:
        raise
    except BaseException as error:  # F1: whatever an engine's own objects raise is about this request
        raise StageError(f"the engine made an output that is none: {type(error).__name__}: {error}") from error


def wire_content(output: StageOutput) -> wire.Content | None:
    """The content of a checked output."""
    content = output.content
    if content is None:
        return None
    if isinstance(content, str):
        return wire.TextWithLogprobs(content, list(output.logprobs)) if output.logprobs else wire.Text(content)
    samples = np.ascontiguousarray(content.samples, dtype="<f4")
    return wire.Audio(samples.tobytes(), int(content.sample_rate))


def _checked(output: StageOutput) -> StageOutput:
    if output.finish_reason not in _REASONS:
        raise _wrong("finish_reason", output.finish_reason, "stop, length or abort")
    if output.error is not None and not isinstance(output.error, OmnizmqError):
        raise _wrong("error", output.error, "an OmnizmqError")
    if output.note is not None and _utf8_bytes("note", output.note) > NOTE_BYTES:
        raise StageError(f"the engine made a note of {len(output.note)} characters: a sentence was expected")
    content, logprobs = _checked_content(output)
    usage = _plain("usage", output.usage, _is_number, "a whole number or a float")
    chunks = _checked_chunks(output.chunks)
    return dataclasses.replace(output, content=content, logprobs=logprobs, usage=usage, chunks=chunks)


def _checked_chunks(chunks: Mapping[str, Iterable[object]]) -> dict[str, list[Chunk]]:
    """One object for several consumers stays one."""
    made = {target: list(chunks[target]) for target in chunks}
    once: dict[int, Chunk] = {}
    for target in made:
        _utf8_bytes("a consumer's name", target)
        for chunk in made[target]:
            once[id(chunk)] = once.get(id(chunk)) or _checked_chunk(chunk)
    return {target: [once[id(chunk)] for chunk in made[target]] for target in made}


def _checked_content(output: StageOutput) -> tuple[str | Audio | None, Sequence[wire.TokenLogprob]]:
    """Tokens whose text comes later have an empty one."""
    content, logprobs = output.content, _checked_logprobs(output.logprobs)
    content = "" if content is None and logprobs else content
    _check_content(content, sum(each.size() for each in logprobs))
    if logprobs and not isinstance(content, str):
        raise _wrong("logprobs", logprobs, "none for audio")
    return (str(content) if isinstance(content, str) else content), logprobs


def _checked_logprobs(given: Sequence[wire.TokenLogprob]) -> Sequence[wire.TokenLogprob]:
    """As they will arrive: whatever does not, is a `StageError`."""
    if not given:
        return ()
    try:
        made = msgspec.msgpack.decode(msgspec.msgpack.encode(given), type=list[wire.TokenLogprob])
    except (msgspec.ValidationError, TypeError) as error:
        raise _wrong("logprobs", given, f"a list of TokenLogprob ({error})") from error
    for each in made:
        if isnan(each.logprob) or any(isnan(logprob) for _, logprob in each.top):
            raise _wrong("logprobs", each, "a logarithm or minus infinity")
    return made


def _check_content(content: object, size: int) -> None:
    if content is None:
        return
    if isinstance(content, str):
        size += _utf8_bytes("text", str(content))
    elif isinstance(content, Audio):
        samples, rate = content.samples, content.sample_rate
        if not isinstance(samples, np.ndarray) or samples.ndim != 1 or samples.dtype.kind != "f":
            raise _wrong("audio", samples, "a one-dimensional array of float32")
        if isinstance(rate, bool) or not isinstance(rate, int | np.integer) or not 0 < rate < 1 << 31:
            raise _wrong("sample_rate", rate, "a whole number of Hz")
        size = 4 * samples.size
    else:
        raise _wrong("content", content, "text, Audio or None")
    if size > wire.CONTENT_BYTES:
        raise StageError(f"the engine made content of {size} bytes at once: at most {wire.CONTENT_BYTES} can be sent")


def _checked_chunk(chunk: object) -> Chunk:
    if not isinstance(chunk, Chunk):
        raise _wrong("chunk", chunk, "a Chunk")
    meta = _plain("meta", chunk.meta, _is_value, "a number, text, a truth value or None")
    if chunk.tensors and not chunk.arrays.keys().isdisjoint(chunk.tensors):
        raise StageError(f"the engine made a chunk with two arrays {min(chunk.arrays.keys() & chunk.tensors)!r}")
    for name, array in chunk.arrays.items():
        _check_array(name, array)
    tensors = {name: _fixed(name, tensor) for name, tensor in chunk.tensors.items()}
    chunk = Chunk(meta, dict(chunk.arrays), tensors)  # nothing of the engine's own is asked again
    size = sum(2 * _HEADER_BYTES + len(key.encode()) for key in meta)
    size += sum(_ARRAY_BYTES + len(name.encode()) for name in chunk.content())
    if size + chunk.nbytes > wire.CONTENT_BYTES:
        size += chunk.nbytes
        raise StageError(f"the engine made a chunk of {size} bytes: at most {wire.CONTENT_BYTES} can be sent")
    return chunk


def _check_array(name: str, array: object) -> None:
    _utf8_bytes("an array's name", name)
    try:
        check_array(name, array)
    except ProtocolError as error:
        raise StageError(f"the engine made a chunk that cannot be sent: {error.message}") from error


def _fixed(name: str, tensor: ArraySource) -> ArraySource:
    """An engine's own array may raise anything when it is asked for its shape: it is asked once."""
    try:
        fixed = FixedSource(tensor.dtype, tensor.shape, tensor.copy_to)
    except BaseException as error:
        raise StageError(f"array {name!r} cannot be sent: {type(error).__name__}: {error}") from error
    _check_array(name, fixed)
    return dataclasses.replace(fixed, shape=tuple(map(int, fixed.shape)))


def _plain(what: str, values: Mapping[str, Any], fits: Callable[[object], bool], expected: str) -> Mapping[str, Any]:
    """The same in a dictionary, numpy's scalars Python's own."""
    values = {key: value.item() if isinstance(value, np.generic) else value for key, value in values.items()}
    for key, value in values.items():
        _utf8_bytes(f"a key of {what}", key)
        if not fits(value):
            raise _wrong(f"{what}[{key!r}]", value, expected)
    return values


def _is_number(value: object) -> bool:
    return type(value) is float or (type(value) is int and -(1 << 63) <= value < 1 << 64)


def _is_value(value: object) -> bool:
    if isinstance(value, str):
        return type(value) is str and _utf8_bytes("text in meta", value) >= 0
    return value is None or type(value) is bool or _is_number(value)


def _utf8_bytes(what: str, text: object) -> int:
    if type(text) is not str:
        raise _wrong(what, text, "text")
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        raise StageError(f"the engine made {what} that cannot be UTF-8, at character {error.start}") from error


def _wrong(what: str, value: object, expected: str) -> StageError:
    shown = " ".join(reprlib.repr(value).split())
    shown = shown if len(shown) <= 80 else shown[:80] + "…"
    return StageError(f"the engine made {what} = {shown} ({type(value).__name__}): {expected} was expected")
