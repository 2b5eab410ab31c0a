"""Two hundred streams at once: each is whole, in order and its own, and nothing of them is left."""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode
from typing import Any

import httpx
import numpy as np
import pytest
from support.bridge import BODY, ECHO, LONG, web
from support.running import Running, eventually, launched

pytestmark = [pytest.mark.http, pytest.mark.usefixtures("no_leaks")]

CALLERS = 200
WORDS = 6


async def ask(http: httpx.AsyncClient, number: int) -> list[dict[str, Any]]:
    """The chunks of one stream."""
    text = " ".join(f"{number}.{word}" for word in range(WORDS))
    sound = {"modalities": ["text", "audio"], "audio": {"voice": "default", "format": "pcm16"}}
    body = {**BODY, "messages": [{"role": "user", "content": text}], "stream": True, **(sound if number % 2 else {})}
    headers = {"x-request-id": f"caller-{number}"}
    async with http.stream("POST", "/v1/chat/completions", json=body, headers=headers) as answer:
        assert answer.status_code == 200, await answer.aread()
        assert answer.headers["x-request-id"].startswith(f"caller-{number}-")
        lines = [line.removeprefix("data: ") async for line in answer.aiter_lines() if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def check(number: int, chunks: list[dict[str, Any]]) -> None:
    """It is the answer to what this caller asked: its words, and for the odd ones a tone of 0.1 s a word."""
    assert len({chunk["id"] for chunk in chunks}) == 1
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    sounds = [delta["audio"] for delta in deltas if "audio" in delta]
    texts = (
        [sound.get("transcript", "") for sound in sounds] if number % 2 else [d.get("content") or "" for d in deltas]
    )
    assert "".join(texts) == " ".join(f"{number}.{word}" for word in range(WORDS))
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    heard = b64decode("".join(sound.get("data", "") for sound in sounds))
    assert len(np.frombuffer(heard, "<i2")) == (WORDS * 2400 if number % 2 else 0)


def test_two_hundred_streams_at_once() -> None:
    async def play(deployment: Running) -> list[list[dict[str, Any]]]:
        limits = httpx.Limits(max_connections=CALLERS)
        url = deployment.ready["plugins"]["http"]
        async with httpx.AsyncClient(base_url=url, limits=limits, timeout=60) as http:
            return await asyncio.gather(*(ask(http, number) for number in range(CALLERS)))

    with launched("synthetic", *ECHO) as deployment, web(deployment) as http:
        for number, chunks in enumerate(asyncio.run(play(deployment))):
            check(number, chunks)
        assert eventually(deployment.idle)
        bridge = http.get("/v1/deployment").json()
        assert bridge["http"]["in_flight"] == 0
        counters = bridge["counters"]
        assert (counters["finished"], counters["failed"], counters["aborted"]) == (CALLERS, 0, 0)


def test_two_hundred_callers_that_go_midway_leave_nothing() -> None:
    async def play(deployment: Running) -> None:
        limits = httpx.Limits(max_connections=CALLERS)
        url = deployment.ready["plugins"]["http"]
        async with httpx.AsyncClient(base_url=url, limits=limits, timeout=60) as http:
            await asyncio.gather(*(leave(http, number) for number in range(CALLERS)))

    async def leave(http: httpx.AsyncClient, number: int) -> None:
        body = {**LONG, "stream": True}
        async with http.stream("POST", "/v1/chat/completions", json=body) as answer:
            lines = answer.aiter_lines()
            for _ in range(1 + number % 5):
                assert (await anext(lines)).startswith("data: ")
                assert await anext(lines) == ""

    with launched("synthetic", *ECHO, "stage.thinker.options.interval_ms=20") as deployment, web(deployment) as http:
        asyncio.run(play(deployment))
        assert eventually(deployment.idle, 30)
        bridge = http.get("/v1/deployment").json()
        assert bridge["http"]["in_flight"] == 0
        assert (bridge["counters"]["aborted"], bridge["counters"]["failed"]) == (CALLERS, 0)
