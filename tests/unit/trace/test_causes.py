"""The words of a verdict: docs/tracing.md says of each what it means, and of no other (T2)."""

from __future__ import annotations

import re
from collections.abc import Iterable

from support.mutations import ROOT

from omnizmq.trace.causes import Cause, Reason

PAGE = (ROOT / "docs" / "tracing.md").read_text()


def words(begin: str, end: str) -> list[str]:
    """The words in the first column of the tables between these sentences of the page."""
    rows = PAGE[PAGE.index(begin) : PAGE.index(end)].splitlines()
    return [word for line in rows if line.startswith("| ") for word in re.findall(r"`(\w+)`", line.split("|")[1])]


def values(words_: Iterable[str]) -> list[str]:
    return [str(word) for word in words_]


def test_the_page_has_the_causes_in_their_order_and_no_other() -> None:
    live = words("Causes of a live request", "Causes of one that has ended")
    ended = words("Causes of one that has ended", "Why a stage brought nothing")
    assert live + ended == values(Cause)
    assert (live[-1], ended[0]) == (Cause.TERMINAL, Cause.COMPLETE)


def test_the_page_has_the_reasons_in_their_order_and_no_other() -> None:
    assert words("Why a stage brought nothing", "Where the caller was gone") == values(Reason)
