"""Blocks of facts (T1): what goes in comes out, whatever the facts tell."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import trace_stories as stories

from omnizmq.trace.facts import Fact
from omnizmq.trace.packing import End, pack, unpack

TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)
INT64 = st.integers(-(2**63), 2**63 - 1)
VALUES = TEXTS | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.booleans() | st.none()
FACTS = st.builds(
    Fact,
    st.just(stories.REQUEST),
    st.just("demo"),
    st.integers(1, 9),
    INT64,
    TEXTS,
    TEXTS,
    st.none() | TEXTS,
    st.dictionaries(TEXTS, VALUES, max_size=4),
)


@given(st.lists(st.lists(FACTS, min_size=1, max_size=9), max_size=4))
def test_t1_facts_come_out_of_blocks_as_they_went_in(batches: list[list[Fact]]) -> None:
    blocks = [pack(facts) for facts in batches]
    facts = unpack(stories.REQUEST, "demo", [block.data for block in blocks])
    assert facts == [fact for facts in batches for fact in facts]
    assert [block.rows for block in blocks] == [len(facts) for facts in batches]


def test_a_block_is_small() -> None:
    """A request with text and speech: what its facts share is not written with each."""
    facts = stories.spoken()
    assert len(pack(facts).data) < 60 * len(facts)


def test_a_block_says_when_its_request_began_and_how_it_ended() -> None:
    assert pack(stories.started()).end is None
    block = pack(stories.spoken())
    assert (block.request_id, block.external_id, block.began_ns) == (stories.REQUEST, "demo", stories.ns(0))
    assert block.end == End(stories.ns(200), "stop", None)
    failed = stories.terminal(9, "error", error_code="stage_error")
    assert pack([failed, stories.fact(10, "cleaned")]).end == End(stories.ns(9), "error", "stage_error")
    refused = stories.fact(2, "refused", detail={"code": "overloaded", "message": "full"})
    assert pack([refused]).end == End(stories.ns(2), "refused", "overloaded")


def test_a_block_says_whether_more_of_its_request_may_come() -> None:
    assert not pack(stories.spoken()).over
    assert pack([*stories.spoken(), stories.fact(210, "cleaned")]).over
    assert pack([stories.fact(2, "refused", detail={"code": "overloaded", "message": "full"})]).over


LATE = msgspec.msgpack.encode([(1, 1 << 63, "router", "bound", None, {})])
NO_VALUE = msgspec.msgpack.encode([(1, 2, "router", "bound", None, {"chunks": [1]})])


@pytest.mark.parametrize(
    ("garbage", "why"),
    [
        (b"", "truncated"),
        (b"\x91\x90", "of length 6"),
        (LATE, "<= 9223372036854775807"),
        (NO_VALUE, "got `array`"),
    ],
)
def test_what_is_no_block_is_refused(garbage: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        unpack(stories.REQUEST, "demo", [garbage])
