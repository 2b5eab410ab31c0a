"""What the bridge hides of a live answer from whoever bears a key."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytestmark = pytest.mark.http


def test_who_else_holds_a_ring_is_not_named() -> None:
    from omnizmq.frontend.http.tracing import hide

    edge = {"to": "talker", "full": "ring", "holders": ["mine-2", "hers-1"]}
    live: dict[str, Any] = {"stages": {"thinker": {"answer": {"edges": [edge]}}, "talker": {"answer": None}}}
    hide(live, lambda id_: id_.startswith("mine"))
    assert edge == {"to": "talker", "full": "ring", "holders": ["mine-2", "another request"]}


def test_a_router_that_is_silent_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from omnizmq.errors import RouterLostError
    from omnizmq.frontend.http import tracing
    from omnizmq.trace.looking import SILENT

    monkeypatch.setattr(tracing, "ASKING_S", 0.05)
    asked = []

    class Client:
        async def inspect(self, id_: str) -> None:
            asked.append(id_)
            await asyncio.Event().wait()

        async def status(self) -> None:
            asked.append("status")

    async def scenario() -> None:
        router = tracing._Router(Client())  # type: ignore[arg-type]
        assert await router.inspect("mine") == SILENT
        assert await router.inspect("mine") == SILENT
        with pytest.raises(RouterLostError, match="the router did not answer within 0"):
            await router.traces()

    asyncio.run(scenario())
    assert asked == ["mine"]
