"""Codecs work beside the event loop."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest

from omnizmq.frontend.http.coding import taken, whole
from omnizmq.frontend.http.problems import BridgeError
from omnizmq.frontend.http.sound import Encoder
from omnizmq.frontend.output import RequestOutput

pytestmark = pytest.mark.http

SOUND = RequestOutput("x-1", "x", stage="talker", modality="audio", audio=np.zeros(2400, np.float32), sample_rate=24000)
WORDS = RequestOutput("x-1", "x", stage="thinker", modality="text", text="one ")


@pytest.mark.parametrize(
    ("format_", "output", "beside"),
    [
        ("mp3", SOUND, True),
        ("opus", SOUND, True),
        ("flac", SOUND, True),
        ("mp3", WORDS, False),
        ("pcm16", SOUND, False),
        ("wav", SOUND, False),
        (None, SOUND, False),
    ],
)
def test_a_codec_works_in_a_thread_of_its_own(format_: str | None, output: RequestOutput, beside: bool) -> None:
    encoder = None if format_ is None else Encoder(format_, streamed=True)
    thread = asyncio.run(taken(encoder, output, threading.current_thread))
    assert (thread is not threading.current_thread()) == beside


@pytest.mark.parametrize(("format_", "beside"), [("wav", True), ("mp3", True), (None, False)])
def test_all_of_an_answer_with_sound_is_made_in_a_thread(format_: str | None, beside: bool) -> None:
    encoder = None if format_ is None else Encoder(format_, streamed=False)
    thread = asyncio.run(whole(encoder, threading.current_thread))
    assert (thread is not threading.current_thread()) == beside


def test_the_end_of_a_codecs_file_is_made_in_a_thread_too() -> None:
    end = RequestOutput("x-1", "x", stage="talker", modality="audio", finished=True, finish_reason="stop")
    thread = asyncio.run(taken(Encoder("mp3", streamed=True), end, threading.current_thread))
    assert thread is not threading.current_thread()


@pytest.mark.parametrize("format_", ["mp3", "wav"])
def test_what_the_bridge_refuses_then_has_the_requests_id(format_: str) -> None:
    def refuse() -> None:
        raise BridgeError(400, "invalid_request", "no such rate")

    with pytest.raises(BridgeError, match="no such rate") as caught:
        asyncio.run(taken(Encoder(format_, streamed=True), SOUND, refuse))
    assert caught.value.request_id == "x-1"


def test_what_it_raises_is_the_callers() -> None:
    async def scenario() -> None:
        encoder = Encoder("opus", streamed=True)
        with pytest.raises(ValueError, match="odd"):
            await taken(encoder, SOUND, lambda: int("odd"))

    asyncio.run(scenario())
