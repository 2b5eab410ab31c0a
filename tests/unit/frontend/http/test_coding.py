"""Codecs work beside the event loop."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest

from omnizmq.frontend.http.coding import taken
from omnizmq.frontend.http.sound import Encoder
from omnizmq.frontend.output import RequestOutput

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


def test_what_it_raises_is_the_callers() -> None:
    async def scenario() -> None:
        encoder = Encoder("opus", streamed=True)
        with pytest.raises(ValueError, match="odd"):
            await taken(encoder, SOUND, lambda: int("odd"))

    asyncio.run(scenario())
