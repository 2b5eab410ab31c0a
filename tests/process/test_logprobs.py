"""Logprobs as a caller has them: by the client, whole and in deltas, and by OpenAI's own client over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from support.bridge import BODY, ECHO, error_of, official, web
from support.running import Running, collect, launched

from omnizmq import AsyncClient
from omnizmq.workers.engines.synthetic_pattern import logprob_pattern

pytestmark = [pytest.mark.http, pytest.mark.usefixtures("no_leaks")]

WORDS = ("one", " two", " three")
EXPECTED = [logprob_pattern(word, number, 2) for number, word in enumerate(WORDS, 1)]


@pytest.fixture
def deployment() -> Iterator[Running]:
    with launched("synthetic", *ECHO) as running:
        yield running


@pytest.mark.parametrize("kind", ["delta", "final"])
def test_the_client_has_them_beside_the_text(deployment: Running, kind: Any) -> None:
    async def scenario() -> None:
        async with AsyncClient.connect(deployment.name) as client:
            options = {"modalities": ["text"], "output_kind": kind}
            outputs = await collect(client, "one two three", params={"thinker": {"logprobs": 2}}, **options)
            assert [each for output in outputs for each in output.logprobs] == EXPECTED
            assert all(b"".join(each.token for each in one.logprobs).decode() == (one.text or "") for one in outputs)
            assert not any(output.logprobs for output in await collect(client, "one two three", **options))

    asyncio.run(scenario())


def test_they_are_as_openais_client_reads_them(deployment: Running) -> None:
    asked: dict[str, Any] = {**BODY, "logprobs": True, "top_logprobs": 2}
    with official(deployment) as client:
        whole = client.chat.completions.create(**asked).choices[0]
        chunks = [chunk.choices[0] for chunk in client.chat.completions.create(**asked, stream=True)]
        for content in (
            whole.logprobs.content,
            [each for chunk in chunks if chunk.logprobs for each in chunk.logprobs.content],
        ):
            assert [(each.token, each.logprob) for each in content] == [
                (expected.token.decode(), expected.logprob) for expected in EXPECTED
            ]
            assert all(bytes(each.bytes) == each.token.encode() for each in content)
            assert [[(top.token, top.logprob) for top in each.top_logprobs] for each in content] == [
                [(token.decode(), logprob) for token, logprob in expected.top] for expected in EXPECTED
            ]
        assert whole.message.content == "".join(WORDS)
        (alone, *_) = client.chat.completions.create(**BODY, logprobs=True).choices[0].logprobs.content
        assert (alone.token, alone.top_logprobs) == ("one", [])
        assert client.chat.completions.create(**BODY, logprobs=False, top_logprobs=0).choices[0].logprobs is None


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({"top_logprobs": 2}, "top_logprobs", "top_logprobs is for logprobs = true"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "should be less than or equal to 20"),
        ({"logprobs": 2}, "logprobs", "should be a valid boolean"),
        ({"frequency_penalty": 0.5}, "frequency_penalty", "unknown parameter 'frequency_penalty'"),
        ({"presence_penalty": 3}, "presence_penalty", "should be less than or equal to 2"),
        ({"logit_bias": {"5": 1}}, "logit_bias", "unknown parameter 'logit_bias'"),
    ],
)
def test_what_is_wrong_is_named(deployment: Running, body: dict[str, Any], param: str, message: str) -> None:
    with web(deployment) as http:
        answer = http.post("/v1/chat/completions", json={**BODY, **body})
        assert (answer.json()["error"]["param"], error_of(answer)[:2]) == (param, (400, "invalid_request"))
        assert message in error_of(answer)[2]


def test_lists_and_tables_are_parameters(deployment: Running) -> None:
    """As the client has them; what is in them has to be plain."""
    with web(deployment) as http:
        for value, said in (
            ([1, 2.5, "x"], "logprobs = [1, 2.5, 'x']: a whole number from 0 was expected"),
            ({"5": -1}, "logprobs = {'5': -1}: a whole number from 0 was expected"),
        ):
            body = {**BODY, "params": {"thinker": {"logprobs": value}}}
            assert said in error_of(http.post("/v1/chat/completions", json=body))[2]
        answer = http.post("/v1/chat/completions", json={**BODY, "params": {"thinker": {"logprobs": [[1]]}}})
        assert answer.json()["error"]["param"] == "params.thinker.logprobs[0]"
