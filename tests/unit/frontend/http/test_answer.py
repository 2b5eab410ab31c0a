"""One answer as OpenAI's documents have it, whole and chunk by chunk."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="not installed: the extra `http`")

from omnizmq import RequestOutput, TokenLogprob
from omnizmq.frontend.http.answer import Head, Streamed, Whole
from omnizmq.frontend.http.problems import BridgeError
from omnizmq.frontend.http.sound import Encoder

pytestmark = pytest.mark.http

HEAD = Head(id="chatcmpl-1", model="m", created=0, text_stage="thinker")
NOTES = {"talker": "nothing to say"}


def output(**fields: Any) -> RequestOutput:
    return RequestOutput("mine-1", "mine", "code2wav", "audio", **fields)


EMPTY = output(audio=np.zeros(0, np.float32), sample_rate=16000)


def end(reason: str = "stop", notes: Any = NOTES) -> RequestOutput:
    return output(finished=True, finish_reason=reason, notes=notes)


def whole(*outputs: RequestOutput) -> dict[str, Any]:
    answer = Whole(HEAD, Encoder("pcm16", streamed=False))
    for one in outputs:
        answer.take(one)
    return answer.document()


def test_what_stages_say_comes_along() -> None:
    assert whole(EMPTY, end())["notes"] == NOTES
    assert "notes" not in whole(EMPTY, end(notes={}))
    last = list(Streamed(HEAD, None, include_usage=False).take(end()))[-1]
    assert (last["notes"], last["choices"][0]["finish_reason"]) == (NOTES, "stop")


def test_a_piece_without_samples_is_no_sound() -> None:
    assert EMPTY.sound is None
    assert whole(EMPTY, end())["choices"][0]["message"]["audio"]["data"] == ""


def test_a_token_that_is_part_of_a_character_and_one_that_cannot_be_are_json() -> None:
    part = TokenLogprob(b"\xf0\x9f", -0.5, [(b"\xf0\x9f", -0.5), (b"x", -math.inf)])
    answer = Whole(HEAD, None)
    for one in (output(text="", logprobs=[part]), end()):
        answer.take(one)
    (content,) = answer.document()["choices"][0]["logprobs"]["content"]
    assert (content["token"], content["bytes"]) == ("\ufffd", [0xF0, 0x9F])
    assert [each["logprob"] for each in content["top_logprobs"]] == [-0.5, -9999.0]
    (chunk,) = Streamed(HEAD, None, include_usage=False).take(output(text="", logprobs=[part]))
    assert (chunk["choices"][0]["delta"], chunk["choices"][0]["logprobs"]["content"]) == ({"content": ""}, [content])


def test_one_that_was_aborted_names_its_request() -> None:
    with pytest.raises(BridgeError, match="the request was aborted") as caught:
        whole(end("abort"))
    assert caught.value.request_id == "mine-1"
