"""Who may ask: what is open without a key, a key of any characters, and what its holder can end."""

from __future__ import annotations

import json
import subprocess
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
