"""How many values a body has is found before it is read, and nothing that may be sent is taken for more."""

from __future__ import annotations

import json
from typing import Any

import pytest

from omnizmq.frontend.http import bodies
from omnizmq.frontend.http.problems import BridgeError
from omnizmq.frontend.http.schema import MOST_VALUES

MANY = 3 * MOST_VALUES
MARKS = ',[{:}]"\\ \\" \\\\" é'


@pytest.mark.parametrize(
    "unit",
    [
        "[]",
        "{}",
        "0",
        '""',
        "[" * 900 + "]" * 900,
        '{"a":{"a":{}}}',
        json.dumps(MARKS),
        '"\\\\"',
        '"\\\\\\"",[]',
        "\n[\t[ ]\n]",
        '"[[[",[[[',
    ],
)
@pytest.mark.parametrize("before", ["[", '{"a":[', '{"\\"": "\\\\", "a":['])
def test_more_than_anybody_means_are_refused_unread(monkeypatch: pytest.MonkeyPatch, unit: str, before: str) -> None:
    monkeypatch.setattr(json, "loads", lambda *_, **__: pytest.fail("it was read"))
    with pytest.raises(BridgeError, match=f"^the body has more than {MOST_VALUES} values$") as refused:
        bodies.loaded((before + ",".join([unit] * MANY)).encode())
    assert refused.value.status == 400


@pytest.mark.parametrize(
    "document",
    [
        [[]] * MOST_VALUES,
        [{}] * MOST_VALUES,
        [MARKS] * MOST_VALUES,
        {f"{MARKS}{number}": {} for number in range(MOST_VALUES)},
        {f"{MARKS}{number}": MARKS for number in range(MOST_VALUES)},
        [[MARKS * 10, {}]] * (MOST_VALUES // 3),
        {"text": MARKS * MANY},
        {"text": "\\" * MANY + '"' * MANY + "," * MANY},
    ],
    ids=range(8),
)
@pytest.mark.parametrize("ascii_only", [True, False])
def test_as_many_as_may_be_are_read_whatever_strings_hold(document: Any, ascii_only: bool) -> None:
    assert bodies.loaded(json.dumps(document, ensure_ascii=ascii_only).encode()) == document


def test_a_number_may_have_so_many_digits() -> None:
    digits = "9" * bodies.MOST_DIGITS
    assert bodies.loaded(f"[{digits}, -1, {digits}9.5]".encode()) == [int(digits), -1, float("inf")]
    with pytest.raises(ValueError, match="too many digits"):
        bodies.loaded(f"[{digits}9]".encode())


def test_a_byte_order_mark_is_no_part_of_it() -> None:
    assert bodies.loaded(b"\xef\xbb\xbf{}") == {}


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "utf-16-le"])
def test_only_utf_8_is_read(encoding: str) -> None:
    with pytest.raises(ValueError, match=r"utf-8|Expecting"):
        bodies.loaded('{"a": 1}'.encode(encoding))
