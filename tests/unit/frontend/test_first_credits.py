"""Credits where the smallest windows are, and where none has been named yet (B1)."""

from __future__ import annotations

import pytest

from omnizmq import protocol as wire
from omnizmq.frontend.core import ClientTable, Credit

RID = "demo-0123456789abcdef"


def read(client: ClientTable, text: str | None) -> list[Credit]:
    """What the consumer owes for one more output."""
    client.handle(wire.Delivery(RID, "thinker", "text", None if text is None else wire.Text(text), False))
    assert client.take(RID) is not None
    return [signal for signal in client.back(RID) if isinstance(signal, Credit)]


def test_b1_until_the_windows_are_known_every_delivery_is_worth_a_credit() -> None:
    client = ClientTable()
    client.open(RID, "demo", "delta")
    assert read(client, None) == [Credit(RID, "thinker", 1)], "also one that weighs nothing"
    assert read(client, "a") == [Credit(RID, "thinker", 2)]


@pytest.mark.parametrize("window_bytes", [0, 1, 8, 15])
def test_b1_where_an_eighth_of_the_window_is_a_byte_or_less_every_byte_is(window_bytes: int) -> None:
    client = ClientTable()
    client.handle(wire.Welcome(wire.VERSION, "demo", 5, [], 1, 1024, window_bytes, 10.0))
    client.open(RID, "demo", "delta")
    assert read(client, None) == []
    assert read(client, "a") == [Credit(RID, "thinker", 2)]
