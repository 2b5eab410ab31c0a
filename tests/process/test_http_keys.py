"""Who may ask: what is open without a key, a key of any characters, and what its holder can end."""

from __future__ import annotations

import json
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from support.bridge import BODY, ECHO, LONG, SLOW, error_of, key, web
from support.running import eventually, launched

pytestmark = [pytest.mark.http, pytest.mark.usefixtures("no_leaks")]

PUBLIC = {"/health/live", "/health/ready"}
"""Of what `/openapi.json` describes."""


@pytest.mark.parametrize("text", ["secret", "clé à", "ключ"])  # "à" ends with a byte that is a space in Latin-1
def test_a_key_is_the_bytes_that_sha256sum_is_given(text: str) -> None:
    done = subprocess.run(["sh", "-c", 'printf %s "$1" | sha256sum', "sh", text], capture_output=True, check=True)
    keys = f'plugins.http.api_keys=[{{name = "ann", sha256 = "{done.stdout.split()[0].decode()}"}}]'
    with launched("synthetic", *ECHO, keys) as deployment, web(deployment) as http:
        bearer = {b"authorization": b"Bearer " + text.encode()}
        assert http.post("/v1/chat/completions", json=BODY, headers=bearer).status_code == 200
        other = {b"authorization": b"Bearer " + text.encode()[:-1]}
        assert error_of(http.post("/v1/chat/completions", json=BODY, headers=other))[:2] == (401, "invalid_api_key")


def test_what_needs_a_key_is_described_so_and_nothing_else_is_open() -> None:
    with launched("synthetic", *ECHO, f"plugins.http.api_keys=[{key('ann')}]") as deployment, web(deployment) as http:
        document = http.get("/openapi.json").json()
        open_ = set()
        for path, operations in document["paths"].items():
            for method, operation in operations.items():
                refused = http.request(method, path).status_code == 401
                assert ("security" in operation, "401" in operation["responses"]) == (refused, refused)
                open_ |= set() if refused else {path}
        assert "security" not in document
        assert open_ == PUBLIC
        for path in ("/", "/docs", "/deployment", "/pages/api.js"):
            assert http.get(path).status_code == 200
        for path in ("/nothing", "/v2/models", "/docs/", "/healthy"):
            assert error_of(http.get(path))[:2] == (401, "invalid_api_key")


@pytest.mark.parametrize("keys", [(), (f"plugins.http.api_keys=[{key('ann')}, {key('bob')}]",)])
def test_an_id_of_two_live_requests_ends_both_and_nobody_elses(keys: tuple[str, ...]) -> None:
    with launched("synthetic", *SLOW, *keys) as deployment:
        ann, bob = (web(deployment, authorization=f"Bearer key of {name}") for name in ("ann", "bob"))
        asked = {"json": {**LONG, "stream": True}, "headers": {"x-request-id": "ours"}}
        with ann, bob, ExitStack() as held:
            hers = [held.enter_context(ann.stream("POST", "/v1/chat/completions", **asked)) for _ in range(2)]
            if keys:
                held.enter_context(bob.stream("POST", "/v1/chat/completions", **asked))
            assert ann.post("/v1/requests/ours/abort").json() == {"id": "ours", "aborted": 2}
            for answer in hers:
                *_, last = [line for line in answer.iter_lines() if line]
                assert json.loads(last.removeprefix("data: "))["error"]["code"] == "aborted"
            assert deployment.status()["counters"]["aborted"] == 2
            assert ann.post("/v1/requests/ours/abort").json()["aborted"] == 0
        assert eventually(deployment.idle)


@pytest.mark.parametrize("keys", [(), (f"plugins.http.api_keys=[{key('ann')}, {key('bob')}]",)])
def test_a_request_is_its_callers_from_the_moment_it_is_sent(keys: tuple[str, ...]) -> None:
    silent = ("stage.thinker.options.silent_at=1", "plugins.http.port=0")
    with launched("synthetic", *silent, *keys) as deployment, ThreadPoolExecutor(1) as pool:
        ann, bob = (web(deployment, authorization=f"Bearer key of {name}") for name in ("ann", "bob"))
        with ann, bob:
            asked = pool.submit(ann.post, "/v1/chat/completions", json=LONG, headers={"x-request-id": "mine"})
            assert eventually(lambda: deployment.status()["live_requests"] == 1)
            if keys:
                assert error_of(bob.post("/v1/requests/mine/abort"))[:2] == (404, "not_found")
            assert ann.post("/v1/requests/mine/abort").json() == {"id": "mine", "aborted": 1}
            assert error_of(asked.result())[:2] == (499, "aborted")
        assert eventually(deployment.idle)


@pytest.mark.parametrize("keys", [(), (f"plugins.http.api_keys=[{key('ann')}]",)])
def test_a_request_is_known_by_its_answers_id_and_what_is_unknown_is_told_so(keys: tuple[str, ...]) -> None:
    with launched("synthetic", *SLOW, *keys) as deployment, web(deployment, authorization="Bearer key of ann") as ann:
        with ann.stream("POST", "/v1/chat/completions", json={**LONG, "stream": True}) as answer:
            lines = answer.iter_lines()  # kept: the answer is closed with it
            first = next(line for line in lines if line)
            id_ = json.loads(first.removeprefix("data: "))["id"]
            assert id_ == f"chatcmpl-{answer.headers['x-request-id']}"
            trace = ann.get(f"/v1/requests/{id_}/trace").json()
            assert trace["request_id"] == answer.headers["x-request-id"]
            assert ann.post(f"/v1/requests/{id_}/abort").json() == {"id": id_, "aborted": 1}
        assert eventually(deployment.idle)
        assert ann.post(f"/v1/requests/{id_}/abort").json() == {"id": id_, "aborted": 0}
        mine = {"x-request-id": "chatcmpl-mine"}
        assert ann.post("/v1/chat/completions", json=BODY, headers=mine).status_code == 200
        assert ann.get("/v1/requests/chatcmpl-mine/trace").json()["external_id"] == "chatcmpl-mine"
        for unknown in ("nobody", "chatcmpl-nobody"):
            assert error_of(ann.post(f"/v1/requests/{unknown}/abort"))[:2] == (404, "not_found")
        assert eventually(deployment.idle)


@pytest.mark.parametrize("keys", [(), (f"plugins.http.api_keys=[{key('ann')}]",)])
def test_a_refusal_is_known_by_its_callers_own_id(keys: tuple[str, ...]) -> None:
    with launched("synthetic", *ECHO, *keys) as deployment, web(deployment, authorization="Bearer key of ann") as ann:
        mine = {"x-request-id": "mine"}
        for body, headers, status in (
            ({**BODY, "model": "other"}, {}, 404),
            ({}, {}, 400),
            (BODY, {"authorization": "Bearer nothing"} if keys else {"host": "example.org"}, 401 if keys else 403),
        ):
            answer = ann.post("/v1/chat/completions", json=body, headers=mine | headers)
            assert (answer.status_code, answer.headers["x-request-id"]) == (status, "mine")
        answer = ann.post("/v1/chat/completions", json=BODY, headers={"x-request-id": "two words"})
        assert (answer.status_code, answer.headers.get("x-request-id")) == (400, None)
        answer = ann.post("/v1/chat/completions", json={**BODY, "params": {"thinker": {"nope": 1}}}, headers=mine)
        assert answer.headers["x-request-id"].startswith("mine-"), "it became a request"
