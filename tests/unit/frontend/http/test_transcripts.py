"""What earlier answers said, as far as it is remembered."""

from __future__ import annotations

import pytest

from omnizmq.frontend.http.transcripts import KEPT_ANSWERS, KEPT_CHARS, Transcripts

pytestmark = pytest.mark.http


def test_it_is_known_to_its_owner_until_it_expires() -> None:
    kept = Transcripts()
    kept.keep("ann", "audio_1", 1000, "Hello.")
    assert kept.of("ann", "audio_1", 999) == "Hello."
    assert kept.of("ann", "audio_1", 1000) is None
    assert kept.of("bob", "audio_1", 999) is None
    assert kept.of("ann", "audio_2", 999) is None


def test_the_oldest_give_way_to_more_answers() -> None:
    kept = Transcripts()
    for number in range(KEPT_ANSWERS + 1):
        kept.keep("ann", f"audio_{number}", 1000, "x")
    assert kept.of("ann", "audio_0", 0) is None
    assert kept.of("ann", "audio_1", 0) == "x"


def test_the_oldest_give_way_to_longer_ones() -> None:
    kept = Transcripts()
    kept.keep("ann", "audio_1", 1000, "x")
    kept.keep("ann", "audio_2", 1000, "x" * (KEPT_CHARS - 1))
    assert kept.of("ann", "audio_1", 0) == "x"
    kept.keep("ann", "audio_3", 1000, "x")
    assert kept.of("ann", "audio_1", 0) is None
    assert kept.of("ann", "audio_2", 0) is not None
