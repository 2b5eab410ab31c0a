"""The router's shell alone, with its real sockets: a failure of the core ends neither it nor its clock (F1)."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from omnizmq.config import load
from omnizmq.router.messages import Input, Ticked
from omnizmq.router.server import RouterServer
from omnizmq.trace.facts import Fact

pytestmark = pytest.mark.usefixtures("no_leaks")


class Nobody:
    """Hooks that have nothing to do, and a place for facts that keeps none."""

    def kill(self, replica: str, incarnation: int, why: str) -> None: ...
    def loading(self, replica: str, text: str) -> None: ...
    def failed(self, replica: str, text: str) -> None: ...
    def ready(self, replica: str) -> None: ...
    def drained(self) -> None: ...
    def append(self, fact: Fact) -> None: ...


def test_f1_an_exception_of_the_core_is_counted_and_time_goes_on(
    home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        nobody = Nobody()
        server = RouterServer(load("synthetic", HEARTBEAT), home / "run", "nonce", hooks=nobody, facts=nobody)
        dispatch = server.core._dispatch
        ticks = []

        def fails_at_first(event: Input) -> None:
            ticks.append(event)
            if len(ticks) == 1:
                raise RuntimeError("a defect")
            dispatch(event)

        monkeypatch.setattr(server.core, "_dispatch", fails_at_first)
        server.start()
        try:
            async with asyncio.timeout(10):
                while len(ticks) < 4:
                    await asyncio.sleep(0.01)
        finally:
            server.close()
        assert all(isinstance(tick, Ticked) for tick in ticks)
        assert server.core.counters.router_errors == 1

    with caplog.at_level(logging.ERROR):
        asyncio.run(scenario())
    assert "the router failed on a Ticked" in caplog.text


HEARTBEAT = ("router.heartbeat_interval_s=0.05",)
