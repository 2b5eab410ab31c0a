"""What a submission is refused for. Its sender may be anybody's program: whatever decodes can be in it."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.pipelines import SPEECH, pipeline
from support.playbook import submission
from support.properties import checked

from omnizmq import protocol as wire
from omnizmq.config import RouterConfig
from omnizmq.errors import DeadlineExceededError, InvalidRequestError, OmnizmqError
from omnizmq.router import door

SPOKEN = pipeline(SPEECH)
LIMITS = RouterConfig(max_prompt_bytes=100)


def check(**fields: Any) -> None:
    door.check(submission(**fields), SPOKEN, LIMITS)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"prompt": wire.Prompt("x" * 100, None, None)},
        {"prompt": wire.Prompt(None, [], None)},
        {"prompt": wire.Prompt(None, None, [1] * 25)},
        {"params": {"thinker": {"max_tokens": 5}, "code2wav": {}}},
        {"modalities": ["audio", "audio"]},
        {"priority": door.MAX_PRIORITY},
        {"priority": -door.MAX_PRIORITY},
        {"deadline_s": 1e-9},
        {"deadline_s": 1e300},
        {"window": 1},
    ],
)
def test_what_is_taken(fields: dict[str, Any]) -> None:
    check(**fields)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"prompt": wire.Prompt(None, None, None)}, r"the prompt has 0 forms: one of text, messages or token ids was"),
        ({"prompt": wire.Prompt("a", [], None)}, r"the prompt has 2 forms: "),
        ({"prompt": wire.Prompt("é" * 51, None, None)}, r"has 102 bytes; this deployment takes at most 100 \(router\."),
        ({"params": {"smell": {}}}, r"unknown stage 'smell': this deployment has thinker, talker, code2wav$"),
        ({"params": {"x" * 10_000: {}}}, r"unknown stage 'x{40}': "),
        (
            {"params": {"thinker": {"stop": "x" * (1 << 20)}}},
            r"affinity have \d+ bytes; at most 1048576 are taken besides",
        ),
        ({"affinity": "x" * (1 << 20)}, r"affinity have \d+ bytes"),
        ({"modalities": ["text"] * (1 << 18)}, r"affinity have \d+ bytes"),
        ({"priority": 101}, r"priority is 101: a number from -100 to 100 was expected"),
        ({"priority": -(2**63)}, r"priority is -9223372036854775808: "),
        ({"window": 0}, r"window is 0: at least 1 output was expected"),
        ({"deadline_s": math.nan}, r"deadline_s is nan: seconds were expected, or nothing for no deadline"),
        ({"deadline_s": math.inf}, r"deadline_s is inf: "),
        ({"modalities": ["smell"]}, r"unknown modality 'smell': this deployment has text, audio$"),
    ],
)
def test_what_is_refused_and_why(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidRequestError, match=why) as caught:
        check(**fields)
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 300


@pytest.mark.parametrize("deadline_s", [0.0, -5.0])
def test_b2_a_deadline_that_has_passed(deadline_s: float) -> None:
    with pytest.raises(DeadlineExceededError, match=r"deadline_s is -?\d: it has passed already"):
        check(deadline_s=deadline_s)


NUMBERS = st.integers(-(2**63), 2**64 - 1)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)
PARAMS = st.none() | st.booleans() | NUMBERS | st.floats() | TEXTS | st.lists(TEXTS, max_size=3)


@checked(300)
@given(
    st.builds(
        submission,
        request_id=TEXTS | st.just("demo-0123456789abcdef"),
        prompt=st.builds(
            wire.Prompt, st.none() | TEXTS, st.none() | st.just([]), st.none() | st.lists(NUMBERS, max_size=3)
        ),
        modalities=st.none() | st.lists(TEXTS | st.sampled_from(["text", "audio"]), max_size=3),
        params=st.dictionaries(TEXTS | st.just("thinker"), st.dictionaries(TEXTS, PARAMS, max_size=3), max_size=2),
        priority=NUMBERS,
        deadline_s=st.none() | st.floats(),
        affinity=st.none() | TEXTS,
        window=NUMBERS,
        at_ns=st.integers(0, (1 << 63) - 1),
    )
)
def test_w1_whatever_decodes_is_taken_or_refused_with_one_short_line(frame: wire.Submit) -> None:
    sent = wire.client_to_router.decode(msgspec.msgpack.encode(frame))
    assert isinstance(sent, wire.Submit)
    refusal = refused_with(sent)
    if refusal is not None:
        assert 0 < len(refusal) < 400
        assert "\n" not in refusal
    else:
        assert sent.deadline_s is None or 0 < sent.deadline_s < math.inf


def refused_with(frame: wire.Submit) -> str | None:
    try:
        door.check(frame, SPOKEN, LIMITS)
    except OmnizmqError as error:
        return error.message
    return None
