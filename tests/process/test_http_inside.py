"""The application in this process, on a real deployment: what cannot be brought about or seen from outside."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

pytest.importorskip("fastapi", reason="not installed: the extra `http`")

from support.bridge import BODY, error_of
from support.running import launched

from omnizmq import AsyncClient
from omnizmq.frontend.http import app, chat, coding, limits, sound
from omnizmq.frontend.http.service import Service
from omnizmq.frontend.http.settings import Settings

pytestmark = [pytest.mark.http, pytest.mark.usefixtures("no_leaks", "threads")]

SPOKEN = {**BODY, "modalities": ["text", "audio"], "audio": {"format": "mp3"}}
SAID = {"model": "synthetic", "input": "one two three", "response_format": "mp3"}


@pytest.fixture
def threads(no_leaks: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:  # noqa: ARG001 (the order)
    """The bridge's own live as long as its process."""
    with ThreadPoolExecutor(2) as pool:
        monkeypatch.setattr(coding, "_threads", pool)
        yield


def inside(scenario: Callable[[httpx.AsyncClient], Awaitable[None]]) -> None:
    async def run(name: str) -> None:
        async with AsyncClient.connect(name) as client, AsyncClient.connect(name, operator=True) as operator:
            transport = httpx.ASGITransport(app.make(Service(client, operator, Settings(speech_to="prompt"))))
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=20) as http:
                await scenario(http)

    with launched("synthetic", "stage.thinker.options.echo=true", "stage.code2wav.options.echo=true") as deployment:
        asyncio.run(run(deployment.name))


def test_a_rate_that_the_format_lacks_is_the_callers_to_mend(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is known once there is sound: the request has an id by then. Here every model has one that all take."""
    monkeypatch.setitem(sound._RATES, "mp3", (8000,))

    async def scenario(http: httpx.AsyncClient) -> None:
        for path, body, param, pcm in (
            ("/v1/chat/completions", SPOKEN, "audio.format", "pcm16"),
            ("/v1/audio/speech", SAID, "response_format", "pcm"),
        ):
            refused = await http.post(path, json=body, headers={"x-request-id": "mine"})
            status, code, message = error_of(refused)
            assert (status, code, refused.json()["error"]["param"]) == (400, "invalid_request", param)
            assert message.startswith(
                f"{param}: mp3 has no rate of 24000 Hz, which the sound has; formats with it: wav, "
            )
            assert f", {pcm}, " in message
            assert refused.headers["x-request-id"].startswith("mine-")

    inside(scenario)


def test_a_whole_answer_with_sound_is_made_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    in_loop: list[bool] = []
    answered = chat.answered

    def watched(*given: Any, **named: Any) -> Any:
        in_loop.append(threading.current_thread() is threading.main_thread())
        return answered(*given, **named)

    monkeypatch.setattr(chat, "answered", watched)

    async def scenario(http: httpx.AsyncClient) -> None:
        for body in (BODY, {**SPOKEN, "audio": {"format": "wav"}}):
            assert (await http.post("/v1/chat/completions", json=body)).status_code == 200

    inside(scenario)
    assert in_loop == [True, False]


def test_a_body_that_does_not_come_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BODY_S", 0.05)

    async def never() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()

    async def scenario(http: httpx.AsyncClient) -> None:
        headers = {"content-type": "application/json"}
        refused = await http.post("/v1/chat/completions", content=never(), headers=headers)
        assert error_of(refused) == (408, "slow_body", "the body did not come within 0.05 s")
        assert refused.json()["error"]["type"] == "timeout_error"
        assert (refused.headers["x-should-retry"], refused.headers["connection"]) == ("false", "close")

    inside(scenario)
