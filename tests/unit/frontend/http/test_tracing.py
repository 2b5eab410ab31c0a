"""What the bridge hides of a live answer from whoever bears a key."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.http


def test_who_else_holds_a_ring_is_not_named() -> None:
    from omnizmq.frontend.http.tracing import hide

    edge = {"to": "talker", "full": "ring", "holders": ["mine-2", "hers-1"]}
    live: dict[str, Any] = {"stages": {"thinker": {"answer": {"edges": [edge]}}, "talker": {"answer": None}}}
    hide(live, lambda id_: id_.startswith("mine"))
    assert edge == {"to": "talker", "full": "ring", "holders": ["mine-2", "another request"]}
