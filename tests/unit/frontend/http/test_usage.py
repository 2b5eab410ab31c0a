"""What OpenAI's clients are told of a request's tokens."""

from __future__ import annotations

import pytest

from omnizmq.frontend.http.answer import Head

pytestmark = pytest.mark.http


def test_tokens_of_sound_and_images_are_no_text() -> None:
    usage = {
        "thinker": {
            "prompt_tokens": 60,
            "prompt_audio_tokens": 17,
            "prompt_image_tokens": 24,
            "completion_tokens": 5,
        },
        "talker": {"completion_tokens": 31},
    }
    told = Head(id="chatcmpl-1", model="m", created=0, text_stage="thinker").usage(usage)
    assert told["prompt_tokens_details"] == {
        "audio_tokens": 17,
        "image_tokens": 24,
        "text_tokens": 19,
        "cached_tokens": 0,
    }
    assert told["completion_tokens_details"] == {"audio_tokens": 31, "text_tokens": 5, "reasoning_tokens": 0}
