"""What an engine made becomes plain data, or its request's error; nothing of the engine's own is asked later (F1)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from omnizmq import protocol as wire
from omnizmq.errors import StageError
from omnizmq.workers.engine import Audio, Chunk, StageOutput
from omnizmq.workers.outputs import checked, wire_content


class Trap(dict[str, Any]):
    """A mapping that raises when it is looked at."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(a=1)
        self._error = error

    def items(self) -> Any:
        raise self._error

    def keys(self) -> Any:
        raise self._error

    def __iter__(self) -> Iterator[str]:
        raise self._error


def raising(error: BaseException) -> Iterator[Chunk]:
    yield Chunk()
    raise error


ERRORS = [ValueError("no"), ZeroDivisionError("no"), SystemExit(1), asyncio.CancelledError("no")]
OUTPUTS: dict[str, Callable[[BaseException], Any]] = {
    "usage": lambda error: {"usage": Trap(error)},
    "chunks": lambda error: {"chunks": Trap(error)},
    "a generator of chunks": lambda error: {"chunks": {"talker": raising(error)}},
    "meta": lambda error: {"chunks": {"talker": [Chunk(Trap(error))]}},
    "arrays": lambda error: {"chunks": {"talker": [Chunk({}, Trap(error))]}},
    "tensors": lambda error: {"chunks": {"talker": [Chunk({}, {}, Trap(error))]}},
}


@pytest.mark.parametrize("error", ERRORS, ids=repr)
@pytest.mark.parametrize("part", OUTPUTS)
def test_f1_whatever_a_part_of_an_output_raises_is_a_stage_error(part: str, error: BaseException) -> None:
    with pytest.raises(StageError, match=f"the engine made an output that is none: {type(error).__name__}"):
        checked(StageOutput("a", **OUTPUTS[part](error)))


def test_f1_a_finish_reason_that_cannot_be_compared_is_a_stage_error() -> None:
    with pytest.raises(StageError, match="the engine made an output that is none: ValueError"):
        checked(StageOutput("a", finish_reason=np.zeros(3)))  # type: ignore[arg-type]


LOGPROB = wire.TokenLogprob(b"Hi", -0.5, [(b"Hi", -0.5)])


def test_tokens_go_with_the_text_or_before_it() -> None:
    for text in ("Hi", None):
        made = wire_content(checked(StageOutput("a", text, logprobs=[LOGPROB])))
        assert made == wire.TextWithLogprobs(text or "", [LOGPROB])
    assert wire_content(checked(StageOutput("a", "Hi"))) == wire.Text("Hi")


@pytest.mark.parametrize(
    ("logprobs", "why"),
    [
        ([wire.TokenLogprob("Hi", -0.5, [])], "a list of TokenLogprob"),  # type: ignore[arg-type]
        ([wire.TokenLogprob(b"Hi", float("nan"), [])], "a logarithm or minus infinity"),
        ([wire.TokenLogprob(b"Hi", np.float32(-0.5), [])], "a list of TokenLogprob"),  # type: ignore[arg-type]
        ([-0.5], "a list of TokenLogprob"),
    ],
)
def test_f1_logprobs_that_would_not_arrive_are_a_stage_error(logprobs: list[Any], why: str) -> None:
    with pytest.raises(StageError, match=why):
        checked(StageOutput("a", "Hi", logprobs=logprobs))


def test_f1_sound_has_no_logprobs() -> None:
    with pytest.raises(StageError, match="none for audio"):
        checked(StageOutput("a", Audio(np.zeros(4, np.float32), 24_000), logprobs=[LOGPROB]))


def test_f1_tokens_count_as_content_does() -> None:
    large = wire.TokenLogprob(bytes(wire.CONTENT_BYTES), 0.0, [])
    with pytest.raises(StageError, match="made content of"):
        checked(StageOutput("a", "", logprobs=[large]))


def test_f1_what_comes_out_is_plain_whatever_mappings_went_in() -> None:
    array = np.zeros(3)
    meta = {"n": 1}
    chunk = Chunk(MappingProxyType(meta), MappingProxyType({"rows": array}))
    made = checked(StageOutput("a", usage=MappingProxyType({"n": 1}), chunks={"talker": (chunk,)}))
    meta["n"] = 2
    assert type(made.usage) is dict
    (one,) = made.chunks["talker"]
    assert (type(one.meta), one.meta) == (dict, {"n": 1})
    assert type(one.arrays) is dict
    assert one.arrays["rows"] is array
