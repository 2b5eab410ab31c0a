"""Every status of docs/http.md's table, met by the official Python client, and how often it asks by itself.

A request that ends before its answer begins has a status of its own; one that is streamed ends with the same code, as
an event.
"""

from __future__ import annotations

import asyncio
import base64
import io
import select
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import soundfile

pytest.importorskip("fastapi", reason="not installed: the extra `http`")

from support.bridge import BODY, ECHO, LONG, SLOW, key, web
from support.drill_engine import hostile_engines, write_messages
from support.running import Running, eventually, kill, launched, omnizmq

from omnizmq import AsyncClient
from omnizmq import protocol as wire
from omnizmq.frontend.http import app
from omnizmq.frontend.http.service import Service
from omnizmq.frontend.http.settings import Settings

pytestmark = [pytest.mark.http, pytest.mark.usefixtures("no_leaks")]

SPOKEN = {**BODY, "modalities": ["text", "audio"], "audio": {"voice": "default", "format": "pcm16"}}
FAULT = ("plugins.http.port=0", "stage.thinker.options.echo=true", "stage.thinker.options.interval_ms=1")


class Caller:
    """The client, and what came back of each of its attempts."""

    def __init__(self, running: Running, api_key: str = "none", **headers: str) -> None:
        self.came: list[httpx.Response] = []
        self._url = running.ready["plugins"]["http"]
        hooks: Any = {"response": [self.came.append]}
        self.client = openai.OpenAI(
            base_url=f"{self._url}/v1",
            api_key=api_key,
            default_headers=headers,
            http_client=httpx.Client(event_hooks=hooks, timeout=30),
        )

    def chat(self, **body: Any) -> Any:
        return self.client.chat.completions.create(**body)

    def refused(self, kind: type[openai.APIStatusError], **body: Any) -> tuple[int, Any, int]:
        """Status, code, and how often it was asked, by a client that tries again as it likes."""
        self.came.clear()
        with pytest.raises(kind) as caught:
            self.chat(**body)
        return caught.value.status_code, caught.value.code, len(self.came)


@contextmanager
def calling(*settings: str, **headers: str) -> Iterator[tuple[Running, Caller]]:
    with launched("synthetic", *settings) as running:
        caller = Caller(running, **headers)
        with caller.client:
            yield running, caller


def test_what_is_wrong_with_the_request_is_told_once() -> None:
    with calling(*ECHO) as (_, caller):
        assert caller.refused(openai.BadRequestError, **BODY, n=2) == (400, "invalid_request", 1)
        assert caller.refused(openai.NotFoundError, **{**BODY, "model": "x"}) == (404, "model_not_found", 1)
        named = [{"role": "assistant", "audio": {"id": "audio_1"}}, *BODY["messages"]]
        assert caller.refused(openai.NotFoundError, **{**BODY, "messages": named}) == (404, "audio_not_found", 1)
        with pytest.raises(openai.NotFoundError) as caught:
            caller.client.get("/nothing", cast_to=object)
        assert caught.value.code == "not_found"
        assert 'there is no "/v1/nothing"; paths are /v1/chat/completions, ' in caught.value.message
        with pytest.raises(openai.APIStatusError) as wrong:
            caller.client.get("/chat/completions", cast_to=object)
        assert (wrong.value.status_code, wrong.value.code) == (405, "method_not_allowed")
        assert wrong.value.message.endswith('"/v1/chat/completions" does not take "GET": POST was expected')


def test_whose_key_is_none_of_these() -> None:
    with launched("synthetic", *SLOW, f"plugins.http.api_keys=[{key('ann')}, {key('bob')}]") as running:
        nobody, ann, bob = (Caller(running, api_key) for api_key in ("none", "key of ann", "key of bob"))
        with nobody.client, ann.client, bob.client:
            assert nobody.refused(openai.AuthenticationError, **BODY) == (401, "invalid_api_key", 1)
            with ann.chat(**LONG, stream=True, extra_headers={"x-request-id": "hers"}):
                with pytest.raises(openai.NotFoundError) as caught:
                    bob.client.post("/requests/hers/abort", cast_to=object)
                assert caught.value.code == "not_found"
            assert eventually(running.idle)


def test_what_is_too_large() -> None:
    with calling(*ECHO, "plugins.http.max_body_mib=1", "plugins.http.max_audio_s=2.5") as (_, caller):
        large = [{"role": "user", "content": "x" * (1 << 20)}]
        assert caller.refused(openai.APIStatusError, **{**BODY, "messages": large}) == (413, "body_too_large", 1)
        one = asked_about(1)
        assert caller.chat(**one).choices[0].message.content == "one"
        two = asked_about(2)
        assert caller.refused(openai.APIStatusError, **two) == (413, "audio_too_long", 1)
        with pytest.raises(openai.APIStatusError, match=r"have 4 s: 2\.5 s are taken") as caught:
            caller.chat(**two)
        assert caught.value.param == "messages[0].content[2].input_audio.data"


def test_a_prompt_that_is_too_large() -> None:
    with calling(*ECHO, "router.max_prompt_bytes=100") as (_, caller):
        large = [{"role": "user", "content": "x" * 101}]
        assert caller.refused(openai.APIStatusError, **{**BODY, "messages": large}) == (413, "prompt_too_large", 1)
        with pytest.raises(openai.APIStatusError, match=r"has 101 bytes; .* at most 100 \(router\.max_prompt_bytes\)"):
            caller.client.audio.speech.create(model="synthetic", voice="alloy", input="x" * 101)
        assert caller.chat(**BODY).choices[0].message.content == "one two three"


def asked_about(sounds: int) -> dict[str, Any]:
    """Each of 2 seconds."""
    file = io.BytesIO()
    soundfile.write(file, np.zeros(16000, np.float32), 8000, format="FLAC")
    sound = {"data": base64.b64encode(file.getvalue()).decode(), "format": "flac"}
    parts = [{"type": "text", "text": "one"}, *[{"type": "input_audio", "input_audio": sound}] * sounds]
    return {**BODY, "messages": [{"role": "user", "content": parts}]}


def test_b1_a_caller_that_does_not_read_loses_its_request_alone() -> None:
    """Its bytes fill the sockets first: 64 MiB are more than these hold. Its place is free before it reads on; where it
    does not, it is disconnected."""
    settings = (
        "plugins.http.port=0",
        "plugins.http.max_concurrent=1",
        "stage.thinker.options.echo=false",
        "stage.thinker.options.chunks=2048",
        "stage.thinker.options.chunk_bytes=32768",
        "router.output_window=16",
        "router.heartbeat_interval_s=0.2",
        "router.slow_reader_grace_s=1",
    )
    with calling(*settings) as (running, caller), caller.chat(**BODY, stream=True) as stream:
        chunks = iter(stream)
        next(chunks)
        assert eventually(lambda: running.status()["counters"]["failed"] == 1, 30)
        assert eventually(lambda: in_flight(running) == 0)
        short = caller.chat(**BODY, max_completion_tokens=2)
        assert short.choices[0].finish_reason == "length"
        with pytest.raises(openai.APIError) as caught:
            list(chunks)
        assert caught.value.code == "slow_reader"
        assert caught.value.type == "timeout_error"
        assert eventually(running.idle)
        with caller.chat(**BODY, stream=True) as stream:
            next(iter(stream))
            poll = select.poll()
            poll.register(stream.response.extensions["network_stream"].get_extra_info("socket"), 0)
            assert eventually(lambda: bool(poll.poll(0)), 30), "an error or a hang-up"


def in_flight(running: Running) -> int:
    with web(running) as http:
        found: int = http.get("/v1/deployment").json()["http"]["in_flight"]
        return found


def test_b1_more_than_are_let_in_are_asked_again_by_the_client() -> None:
    with calling(*SLOW, "plugins.http.max_concurrent=1") as (running, caller):
        with caller.chat(**LONG, stream=True):
            assert caller.refused(openai.RateLimitError, **BODY) == (429, "overloaded", 3)
            assert caller.came[-1].headers["retry-after"] == "1"
        assert eventually(running.idle)


def test_b1_more_than_may_wait_are_asked_again_too_and_are_answered_when_there_is_room() -> None:
    full = ("stage.thinker.max_inflight=1", "stage.thinker.max_registered=1", "router.max_queued=0")
    with calling(*SLOW, *full) as (running, caller), ThreadPoolExecutor(1) as pool:
        with caller.chat(**LONG, stream=True) as stream:
            next(iter(stream))
            assert caller.refused(openai.RateLimitError, **BODY) == (429, "overloaded", 3)
            caller.came.clear()
            later = pool.submit(caller.chat, **BODY)
            assert eventually(lambda: [answer.status_code for answer in caller.came][:1] == [429])
        assert later.result(30).choices[0].finish_reason == "stop"
        assert [answer.status_code for answer in caller.came][-1] == 200
        assert eventually(running.idle)


def test_a2_a_request_that_somebody_else_ends() -> None:
    with calling(*SLOW, **{"x-request-id": "mine"}) as (running, caller), ThreadPoolExecutor(1) as pool:
        ended = pool.submit(caller.refused, openai.APIStatusError, **LONG)
        assert eventually(lambda: running.status()["live_requests"] == 1)
        with httpx.Client(base_url=running.ready["plugins"]["http"]) as http:
            assert http.post("/v1/requests/mine/abort").json() == {"id": "mine", "aborted": 1}
        assert ended.result(30) == (499, "aborted", 1)
        assert caller.came[0].headers["x-request-id"].startswith("mine-")


@pytest.mark.parametrize(
    ("settings", "body", "expected"),
    [
        (("stage.thinker.options.fail_at=2",), BODY, (500, "stage_error", 1)),
        (("stage.thinker.options.crash_at=2", 'router.redrive="never"'), BODY, (503, "replica_lost", 1)),
        (
            ("stage.talker.options.silent_at=2", "edge.talker->code2wav.input_timeout_s=0.5"),
            SPOKEN,
            (504, "input_timeout", 1),
        ),
        (
            ("stage.thinker.options.interval_ms=200",),
            {**LONG, "extra_headers": {"x-request-timeout": "0.5"}},
            (504, "deadline_exceeded", 1),
        ),
    ],
)
def test_f1_f2_r4_b2_what_has_cost_computing_is_not_asked_again(
    settings: tuple[str, ...], body: dict[str, Any], expected: tuple[int, str, int]
) -> None:
    with calling(*FAULT, *settings) as (running, caller):
        assert caller.refused(openai.InternalServerError, **body) == expected
        assert caller.came[0].headers["x-request-id"].startswith("req-")
        assert eventually(lambda: running.status()["ready"])
        with pytest.raises(openai.APIError) as streamed:
            list(caller.chat(**body, stream=True))
        assert streamed.value.code == expected[1]
        assert eventually(running.idle)


def a_false_report(request_id: str) -> wire.Output:
    """Of a stage that is no final one."""
    return wire.Output(request_id, 1, 1, 1, wire.Text("a lie"), False, 1)


def a_gap(request_id: str) -> wire.ChunkFrame:
    """Of a chunk that is far from the next."""
    return wire.ChunkFrame(request_id, 1, 1, "talker", 1 << 40, {}, [])


@pytest.mark.parametrize(
    ("whom", "lie", "code"), [("router", a_false_report, "protocol_error"), ("consumer", a_gap, "incomplete_input")]
)
def test_f1_r2_what_a_worker_spoils_is_not_asked_again(
    tmp_path: Path, whom: str, lie: Callable[[str], wire.Output | wire.ChunkFrame], code: str
) -> None:
    """The talker itself says it of one request, when it is asked by another."""
    long = {**SPOKEN, "messages": LONG["messages"]}

    def tell(other: Caller, request_id: str) -> None:
        write_messages(tmp_path, "lie", list(wire.Packer().pack(lie(request_id))))
        other.chat(**SPOKEN, extra_headers={"x-request-id": f"say:{whom}:lie"})

    with hostile_engines(tmp_path), calling(*SLOW, "stage.talker.engine=hostile") as (running, caller):
        other = Caller(running)
        with other.client, ThreadPoolExecutor(1) as pool, web(running) as http:
            whole = pool.submit(caller.refused, openai.InternalServerError, **long)
            unheard = 'omnizmq_outputs_total{modality="audio"} 0.0'
            assert eventually(lambda: unheard not in http.get("/metrics").text)
            tell(other, running.status()["slowest"][0]["request_id"])
            assert whole.result(30) == (500, code, 1)
            with caller.chat(**long, stream=True) as stream:
                chunks = iter(stream)
                next(chunk for chunk in chunks if chunk.choices[0].delta.audio and chunk.choices[0].delta.audio.data)
                tell(other, stream.response.headers["x-request-id"])
                with pytest.raises(openai.APIError) as streamed:
                    list(chunks)
        assert streamed.value.code == code
        assert eventually(running.idle)


def test_b2_a_deadline_passes_though_the_router_does_not_answer() -> None:
    with calling(*ECHO, "router.heartbeat_timeout_s=600") as (running, caller):
        kill(running.pid, signal.SIGSTOP)
        try:
            late = caller.refused(openai.InternalServerError, **BODY, extra_headers={"x-request-timeout": "0.5"})
        finally:
            kill(running.pid, signal.SIGCONT)
        assert late == (504, "deadline_exceeded", 1)
        assert eventually(running.idle)
        assert caller.chat(**BODY).choices[0].message.content == "one two three"


def test_f6_a_router_that_does_not_answer() -> None:
    with calling(*ECHO, "router.heartbeat_timeout_s=600") as (running, caller):
        kill(running.pid, signal.SIGSTOP)
        try:
            with pytest.raises(openai.InternalServerError) as caught:
                caller.client.get("/deployment", cast_to=object)
        finally:
            kill(running.pid, signal.SIGCONT)
        assert (caught.value.status_code, caught.value.code, len(caller.came)) == (503, "router_lost", 1)
        assert "the router did not answer within 2 s" in caught.value.message
        assert caller.chat(**BODY).choices[0].message.content == "one two three"


def test_f4_a_stage_that_nobody_serves_is_asked_for_again() -> None:
    with calling(*ECHO, "router.restart_delay_s=60", "router.max_restart_delay_s=60") as (running, caller):
        kill(running.worker_pid("thinker/0"))
        assert eventually(lambda: running.replica("thinker/0")["state"] == "dead")
        assert caller.refused(openai.InternalServerError, **BODY) == (503, "unavailable", 3)
        assert caller.came[-1].headers["retry-after"] == "1"


def test_f4_a_stage_that_is_drained() -> None:
    with calling(*ECHO) as (running, caller):
        assert omnizmq("drain", "thinker/0", "--connect", running.name).returncode == 0
        assert caller.refused(openai.InternalServerError, **BODY) == (503, "unavailable", 3)
        assert omnizmq("drain", "thinker/0", "--undo", "--connect", running.name).returncode == 0
        assert caller.chat(**BODY).choices[0].message.content == "one two three"


def test_f6_a_bridge_ends_with_its_router() -> None:
    with calling(*SLOW) as (running, caller), caller.chat(**LONG, stream=True) as stream:
        chunks = iter(stream)
        next(chunks)
        kill(running.pid)
        with pytest.raises(openai.APIConnectionError):
            list(chunks)
        with pytest.raises(openai.APIConnectionError):
            caller.chat(**BODY)


@pytest.mark.parametrize(
    ("path", "expected"), [("/deployment", (503, "router_lost", 1)), ("/broken", (500, "internal_error", 1))]
)
def test_f6_one_that_has_lost_its_router_or_its_way_says_so(path: str, expected: tuple[int, str, int]) -> None:
    """The application in this process, since the bridge's own does not outlive its router. Such an answer is counted,
    and can be read by a page of another origin, as every answer."""
    origin = "https://example.org"

    async def broken() -> None:
        raise KeyError("nobody expected this")

    async def scenario(running: Running) -> tuple[int, Any, int]:
        client = AsyncClient.connect(running.name, operator=True)
        async with client:
            service = Service(client, client, Settings(cors_origins=[origin]))
            made = app.make(service)
            made.add_api_route("/v1/broken", broken)
        came: list[httpx.Response] = []

        async def count(answer: httpx.Response) -> None:
            came.append(answer)

        transport = httpx.ASGITransport(made, raise_app_exceptions=False)
        hooks: Any = {"response": [count]}
        inside = httpx.AsyncClient(transport=transport, event_hooks=hooks, headers={"origin": origin})
        async with openai.AsyncOpenAI(base_url="http://localhost/v1", api_key="none", http_client=inside) as asking:
            with pytest.raises(openai.InternalServerError) as caught:
                await asking.get(path, cast_to=object)
        status = caught.value.status_code
        counted = f'omnizmq_http_answers_total{{path="/v1{path}",status="{status}"}} 1.0'
        assert counted in service.metrics.exposition(None, 0).decode()
        assert came[0].headers["access-control-allow-origin"] == origin
        return status, caught.value.code, len(came)

    with launched("synthetic") as running:
        assert asyncio.run(scenario(running)) == expected
