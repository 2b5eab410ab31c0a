"""Tables that fit, texts that wrap, numbers with few digits."""

from __future__ import annotations

import pytest

from omnizmq.commands.terminal.layout import Column, fit, sized, table, wrapped
from omnizmq.trace.words import duration

COLUMNS = [
    Column("name", ["a", "long one"]),
    Column("first", ["1", "22"], right=True, drop=2),
    Column("last", ["333", "4"], right=True, drop=1),
]


def test_a_table_is_aligned_and_no_line_ends_in_spaces() -> None:
    assert table(COLUMNS[:2]) == ["name      first", "a             1", "long one     22"]
    assert table([Column("name", ["a", "long one"])]) == ["name", "a", "long one"]


def test_columns_go_in_their_order_until_the_rest_fits() -> None:
    for width, names in ((None, ["name", "first", "last"]), (21, ["name", "first", "last"]), (20, ["name", "first"])):
        kept, left_out = fit(COLUMNS, width)
        assert [column.name for column in kept] == names
        assert left_out == ([] if len(names) == 3 else ["last"])
    assert fit(COLUMNS, 3) == (COLUMNS[:1], ["first", "last"])


def test_text_wraps_and_only_a_word_that_is_too_long_is_broken() -> None:
    assert wrapped("one two-three four", 20, indent="  ", hanging="    ") == ["  one two-three four"]
    assert wrapped("one two-three four five", 20, hanging="  ") == ["one two-three four", "  five"]
    assert "".join(wrapped("x" * 45, 20)) == "x" * 45
    assert wrapped("a\x1b[2Jb\n" * 9, None) == ["a?[2Jb?" * 9]
    assert wrapped("", 20) == [""]


@pytest.mark.parametrize(
    ("ms", "shown"),
    [
        (-1, "0.0 ms"),
        (3.44, "3.4 ms"),
        (812.4, "812 ms"),
        (12_345, "12.3 s"),
        (245_000, "4 min 5 s"),
        (7_380_000, "2 h 3 min"),
    ],
)
def test_durations(ms: float, shown: str) -> None:
    assert duration(ms) == shown


@pytest.mark.parametrize(("count", "shown"), [(812, "812 B"), (2048, "2.0 KiB"), (3 << 19, "1.5 MiB")])
def test_sizes(count: int, shown: str) -> None:
    assert sized(count) == shown
