"""Times as callers meet them: first text and sound, what a player waits, the real-time factor; their quantiles."""

from __future__ import annotations

import numpy as np
import pytest

from omnizmq import RequestOutput

pytestmark = pytest.mark.http

RATE = 1000


def text(said: str) -> RequestOutput:
    return RequestOutput("r-1", "r", "thinker", "text", text=said)


def sound(seconds: float) -> RequestOutput:
    samples = np.zeros(round(seconds * RATE), np.float32)
    return RequestOutput("r-1", "r", "code2wav", "audio", audio=samples, sample_rate=RATE)


def test_a_request_with_text_and_sound() -> None:
    from omnizmq.frontend.http.measuring import Measured

    measured = Measured(100.0)
    measured.take(text(""), 100.5)
    assert measured.first_text_s is None
    for now_s, output in ((101.0, text("one")), (102.0, sound(2.0)), (103.0, sound(1.0)), (106.0, sound(1.0))):
        measured.take(output, now_s)
    measured.end(107.0)
    assert (measured.first_text_s, measured.first_audio_s, measured.duration_s) == (1.0, 2.0, 7.0)
    assert measured.audio_s == 4.0
    assert measured.underrun_s == 1.0  # all that had come by 103 was heard by 105
    assert measured.rtf == 6.0 / 4.0


def test_sound_that_comes_in_time_makes_no_player_wait() -> None:
    from omnizmq.frontend.http.measuring import Playback

    playback = Playback()
    for now_s in (0.0, 0.5, 1.0, 3.0):
        playback.add(now_s, 1.0)
    assert playback.underrun_s == 0.0
    playback.add(4.25, 1.0)
    playback.add(6.25, 1.0)
    assert playback.underrun_s == 1.25


def test_a_request_of_which_nothing_came() -> None:
    from omnizmq.frontend.http.measuring import Measured

    measured = Measured(1.0)
    measured.take(sound(0.0), 2.0)
    assert (measured.rtf, measured.audio_s, measured.first_text_s, measured.duration_s) == (None, 0.0, None, 0.0)


def test_quantiles_are_those_of_the_newest_requests() -> None:
    from omnizmq.frontend.http.measuring import KEPT_LATENCIES, Latencies, Measured

    latencies = Latencies()
    assert latencies.document() == {"requests": 0, "first_text_s": None, "first_audio_s": None, "duration_s": None}
    for number in range(1, KEPT_LATENCIES + 101):
        measured = Measured(0.0)
        if number > KEPT_LATENCIES:
            measured.take(text("one"), float(number - KEPT_LATENCIES))
        measured.end(float(number))
        latencies.add(measured)
    found = latencies.document()
    assert found["requests"] == KEPT_LATENCIES
    assert found["first_text_s"] == {"p50": 50.0, "p95": 95.0}
    assert found["first_audio_s"] is None
    assert found["duration_s"] == {"p50": 228.0, "p95": 344.0}  # of 101..356
