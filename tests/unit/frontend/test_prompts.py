"""A caller's prompt: what is taken, and one clear line for what is not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from omnizmq.errors import InvalidRequestError
from omnizmq.frontend.prompts import as_prompt
from omnizmq.protocol import AudioPart, ImagePart, Message, Prompt, TextPart


def user(content: object) -> dict[str, object]:
    return {"role": "user", "content": content}


class TestTaken:
    @pytest.mark.parametrize("text", ["Say hello.", "", "  ", "日本語 \0\n", "x" * 100_000])
    def test_text(self, text: str) -> None:
        assert as_prompt(text) == Prompt(text, None, None)

    @pytest.mark.parametrize("tokens", [[1], (0, 5), range(3), [(1 << 32) - 1]], ids=repr)
    def test_token_ids(self, tokens: Any) -> None:
        assert as_prompt(tokens) == Prompt(None, None, list(tokens))

    def test_a_conversation_of_text_and_parts(self) -> None:
        parts = [
            {"type": "text", "text": "What is"},
            {"type": "audio", "data": b"RIFF"},
            {"type": "image", "data": b"PNG"},
        ]
        prompt = as_prompt([{"role": "system", "content": "Be brief."}, user(parts)])
        assert prompt.messages == [
            Message("system", [TextPart("Be brief.")]),
            Message("user", [TextPart("What is"), AudioPart(b"RIFF"), ImagePart(b"PNG")]),
        ]

    def test_the_size_counts_utf8_files_and_four_bytes_a_token(self) -> None:
        assert as_prompt("né").size() == 3
        assert as_prompt([1, 2, 3]).size() == 12
        assert as_prompt([user([{"type": "text", "text": "né"}, {"type": "audio", "data": b"12345"}])]).size() == 8


class TestRefused:
    @pytest.mark.parametrize(
        "prompt",
        [
            None,
            5,
            b"hello",
            bytearray(b"hello"),
            memoryview(b"hello"),
            {},
            [],
            (),
            {"role": "user"},
            np.zeros(3),
            iter([1]),
        ],
        ids=lambda value: type(value).__name__,
    )
    def test_what_is_no_prompt(self, prompt: Any) -> None:
        with pytest.raises(
            InvalidRequestError, match="a prompt is a string, token ids or chat messages, not"
        ) as caught:
            as_prompt(prompt)
        assert len(caught.value.message) < 200

    @pytest.mark.parametrize(
        ("tokens", "where"),
        [
            ([1, -2], "token 2 is -2"),
            ([True], "token 1 is True"),
            ([1, 2, "3"], "token 3 is '3'"),
            ([1 << 32], "token 1 is 4294967296"),
            ([5, 1 << 64], "token 2 is 18446744073709551616"),
            ([1, 2.0], "token 2 is 2.0"),
        ],
    )
    def test_a_token_id_that_is_none_is_named(self, tokens: Any, where: str) -> None:
        with pytest.raises(InvalidRequestError, match=f"{where}; a token id is a whole number from 0 to 4294967295"):
            as_prompt(tokens)

    @pytest.mark.parametrize(
        ("message", "why"),
        [
            ("hi", "message 2 needs exactly `role` and `content`, got 'hi'"),
            ({"role": "user"}, "message 2 needs exactly `role` and `content`"),
            ({"role": "user", "content": "x", "name": "me"}, "message 2 needs exactly `role` and `content`"),
            ({"role": "tool", "content": "x"}, "message 2 has role 'tool'; roles are system, user, assistant"),
            ({"role": ["user"], "content": "x"}, r"message 2 has role \['user'\]"),
            ({"role": "user", "content": []}, "message 2: content is a string or a list of parts"),
            ({"role": "user", "content": b"bytes"}, "message 2: content is a string or a list of parts"),
            ({"role": "user", "content": None}, "message 2: content is a string or a list of parts"),
            (user(["text"]), "message 2, part 1 is 'text'; a part is"),
            (user([{"type": "text", "text": 5}]), "message 2, part 1 is"),
            (user([{"type": "audio", "data": "text"}]), "message 2, part 1 is"),
            (user([{"type": "text", "text": "a"}, {"type": "video", "data": b""}]), "message 2, part 2 is"),
            (user([{"type": "audio", "url": "x"}]), "message 2, part 1 is"),
            (user("\ud800"), "message 2 is no valid text: character 0 cannot be UTF-8"),
            (user([{"type": "text", "text": "ab\udcff"}]), "message 2, part 1 is no valid text: character 2"),
        ],
    )
    def test_a_message_that_is_none_says_where_and_why(self, message: Any, why: str) -> None:
        with pytest.raises(InvalidRequestError, match=why):
            as_prompt([user("hello"), message])

    def test_text_that_cannot_be_utf8(self) -> None:
        with pytest.raises(InvalidRequestError, match="the prompt is no valid text: character 3 cannot be UTF-8"):
            as_prompt("abc\udcff")

    def test_the_line_is_short_however_large_the_prompt(self) -> None:
        with pytest.raises(InvalidRequestError) as caught:
            as_prompt([{"role": "user", "content": "x" * 10**6, "more": 1}])
        assert len(caught.value.message) < 200
