"""The bridge's own rules, on stages without a model: keys, limits, health, errors, its start and its end."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
from support.bridge import BODY, ECHO, LONG, SLOW, error_of, key, web
from support.running import Running, eventually, launched, omnizmq

pytestmark = [pytest.mark.http, pytest.mark.usefixtures("no_leaks")]


@pytest.fixture
def deployment(request: pytest.FixtureRequest) -> Iterator[Running]:
    with launched("synthetic", *request.param) as running:
        yield running


@pytest.mark.parametrize("deployment", [ECHO], indirect=True)
def test_it_answers_and_refuses_in_one_shape(deployment: Running) -> None:
    with web(deployment) as http:
        assert http.get("/health/live").status_code == 200
        assert http.get("/health/ready").json() == {"status": "ready"}
        answer = http.post("/v1/chat/completions", json=BODY, headers={"x-request-id": "mine"})
        assert answer.json()["choices"][0]["message"]["content"] == "one two three"
        assert answer.headers["x-request-id"].startswith("mine-")
        status, code, message = error_of(http.get("/v1/nothing"))
        assert (status, code) == (404, "not_found")
        paths = message.removeprefix('there is no "/v1/nothing"; paths are ').split(", ")
        assert {"/v1/models", "/openapi.json", "/", "/deployment", "/docs"} <= set(paths)
        assert all(http.get(path).status_code != 404 for path in paths if "{" not in path)
        assert error_of(http.get("/v1/chat/completions"))[:2] == (405, "method_not_allowed")
        broken = http.post("/v1/chat/completions", content=b"{", headers={"content-type": "application/json"})
        assert error_of(broken)[:2] == (400, "invalid_request")
        for text in ("x", "-1", "0", "nan", "1e9", "1_0"):
            refused = http.post("/v1/chat/completions", json=BODY, headers={"x-request-timeout": text})
            assert error_of(refused) == (
                400,
                "invalid_request",
                f"header x-request-timeout: {text!r}: a number of seconds above 0 and below 1000000000 was expected",
            )
        assert error_of(http.post("/v1/chat/completions", json=BODY, headers={"x-request-id": "a b"}))[0] == 400
        assert "/v1/chat/completions" in http.get("/openapi.json").json()["paths"]
    assert eventually(deployment.idle)


@pytest.mark.parametrize("deployment", [ECHO], indirect=True)
def test_without_keys_only_who_names_this_machine_is_answered(deployment: Running) -> None:
    """A page whose site's name has come to mean 127.0.0.1 names its site."""
    port = httpx.URL(deployment.ready["plugins"]["http"]).port
    with web(deployment) as http:
        for host in (f"localhost:{port}", "LOCALHOST", f"127.0.0.1:{port}", "[::1]", f"a.localhost:{port}"):
            assert http.post("/v1/chat/completions", json=BODY, headers={"host": host}).status_code == 200
        for host in (f"example.org:{port}", "localhost.example.org", "10.0.0.1", "[::2]", "[", ""):
            for answer in (
                http.post("/v1/chat/completions", json=BODY, headers={"host": host}),
                http.get("/", headers={"host": host}),
            ):
                assert error_of(answer)[:2] == (403, "forbidden_host")
    assert eventually(deployment.idle)


@pytest.mark.parametrize("deployment", [(*ECHO, 'plugins.http.hosts=["talk.example.org"]')], indirect=True)
def test_without_keys_a_proxys_name_may_be_told(deployment: Running) -> None:
    with web(deployment) as http:
        for host, status in (("talk.example.org", 200), ("Talk.example.org:443", 200), ("example.org", 403)):
            assert http.post("/v1/chat/completions", json=BODY, headers={"host": host}).status_code == status


@pytest.mark.parametrize("deployment", [(*ECHO, f"plugins.http.api_keys=[{key('ann')}]")], indirect=True)
def test_a_key_is_as_good_under_any_name(deployment: Running) -> None:
    with web(deployment, authorization="Bearer key of ann", host="example.org") as http:
        assert http.post("/v1/chat/completions", json=BODY).status_code == 200


@pytest.mark.parametrize("deployment", [ECHO], indirect=True)
def test_nobody_is_sent_elsewhere(deployment: Running) -> None:
    with web(deployment) as http:
        assert error_of(http.post("/v1/chat/completions/", json=BODY))[:2] == (404, "not_found")


@pytest.mark.parametrize("deployment", [ECHO], indirect=True)
@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({"top-k": 1}, '"top-k"', '"top-k": is not supported, or unknown'),
        ({"": 1}, '""', '"": is not supported, or unknown'),
        ({"<str>": 1}, '"<str>"', '"<str>": is not supported, or unknown'),
        ({"stop": ["a"] * 5}, "stop", "stop: List should have at most 4 items after validation, not 5"),
        ({"stop": 5}, "stop", "stop: a text, or a list of up to 4 texts, was expected"),
        ({"stop": ""}, "stop", "stop: String should have at least 1 character"),
        ({"stop": ["a", ""]}, "stop[1]", "stop[1]: String should have at least 1 character"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"id": "a"}]}]},
            "messages[0].tool_calls",
            "messages[0].tool_calls: is not supported, or unknown",
        ),
        ({"max_tokens": 1 << 63}, "max_tokens", "max_tokens: Input should be less than 9223372036854775808"),
        (
            {"messages": [{"role": "user", "content": [{"type": "file"}]}]},
            "messages[0].content[0]",
            "messages[0].content[0]: a part with the type 'text', 'input_audio' or 'image_url' was expected",
        ),
        ({"n": True}, "n", "n: is not supported, or unknown"),
        (
            {"params": {"talker": {"heat": 1}}, "modalities": ["text", "audio"], "audio": {"voice": "default"}},
            "params.talker.heat",
            "stage talker: unknown parameter 'heat': known are logprobs, max_tokens, seed",
        ),
    ],
)
def test_a_field_that_is_refused_is_named(deployment: Running, body: dict[str, Any], param: str, message: str) -> None:
    with web(deployment) as http:
        error = http.post("/v1/chat/completions", json={**BODY, **body}).json()["error"]
        assert (error["param"], error["message"]) == (param, message)


@pytest.mark.parametrize("deployment", [ECHO], indirect=True)
def test_what_asks_for_nothing_is_no_obstacle(deployment: Running) -> None:
    nothing = {"n": 1.0, "frequency_penalty": 0.0, "presence_penalty": -0.0, "tools": [], "stop": None}
    with web(deployment) as http:
        answer = http.post("/v1/chat/completions", json={**BODY, **nothing})
        assert answer.json()["choices"][0]["finish_reason"] == "stop"
        # As OpenAI's API has a message that it answers with.
        earlier = {"refusal": None, "annotations": [], "tool_calls": [], "function_call": None, "audio": None}
        messages = [*BODY["messages"], {"role": "assistant", "content": "one", **earlier}, *BODY["messages"]]
        answer = http.post("/v1/chat/completions", json={**BODY, "messages": messages})
        assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("deployment", [ECHO], indirect=True)
def test_a_long_word_comes_back_cut(deployment: Running) -> None:
    with web(deployment) as http:
        answers = (
            http.post("/v1/chat/completions", json={**BODY, "model": "x" * 5000}),
            http.post("/v1/chat/completions", json={**BODY, "params": {"x" * 5000: {}}}),
            http.post("/v1/chat/completions", json={**BODY, "x" * 5000: 1}),
            http.get(f"/v1/{'x' * 5000}"),
        )
        assert [answer.status_code for answer in answers] == [404, 400, 400, 404]
        assert all("x" * 50 in error_of(answer)[2] and len(error_of(answer)[2]) < 700 for answer in answers)


@pytest.mark.parametrize("deployment", [ECHO], indirect=True)
def test_a_callers_own_words_come_back_with_a_whole_answer(deployment: Running) -> None:
    with web(deployment) as http:
        answer = http.post("/v1/chat/completions", json={**BODY, "metadata": {"order": "7"}, "user": "ann"})
        assert answer.json()["metadata"] == {"order": "7"}


@pytest.mark.parametrize("deployment", [(*ECHO, 'plugins.http.cors_origins=["https://example.org"]')], indirect=True)
def test_a_page_of_a_named_origin_may_ask_and_read_the_headers(deployment: Running) -> None:
    allowed, exposed = "access-control-allow-origin", "access-control-expose-headers"
    asking = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,x-request-id"}
    with web(deployment) as http:
        for origin, statuses in (("https://example.org", (200, 200, 400)), ("https://example.com", (400, 403, 403))):
            before = http.options("/v1/chat/completions", headers={"origin": origin, **asking})
            answer = http.post("/v1/chat/completions", json=BODY, headers={"origin": origin})
            refused = http.post("/v1/chat/completions", json={}, headers={"origin": origin})
            assert (before.status_code, answer.status_code, refused.status_code) == statuses
            told = origin if statuses[0] == 200 else None
            assert {one.headers.get(allowed) for one in (before, answer, refused)} == {told}
            assert "origin" in before.headers["vary"].lower()
            if not told:
                assert error_of(before) == (400, "invalid_request", "a page may not ask this: Disallowed CORS origin")
            if told:
                assert answer.headers[exposed] == "x-request-id, x-should-retry, retry-after"


OWN, OTHERS = "http://localhost:8091", "http://localhost:3000"
PAGES: list[tuple[dict[str, str], int]] = [
    ({}, 200),
    ({"origin": OWN}, 200),
    ({"origin": OWN, "sec-fetch-site": "same-origin"}, 200),
    ({"origin": "https://in-front.example.org", "sec-fetch-site": "same-origin"}, 200),
    ({"sec-fetch-site": "none"}, 200),
    ({"origin": OTHERS}, 403),
    ({"origin": "null"}, 403),
    ({"origin": OTHERS, "sec-fetch-site": "same-site"}, 403),
    ({"origin": "https://example.org", "sec-fetch-site": "cross-site"}, 403),
    ({"sec-fetch-site": "cross-site"}, 403),
    ({"origin": OWN, "sec-fetch-site": "cross-site"}, 403),
]


@pytest.mark.parametrize("deployment", [ECHO], indirect=True)
def test_without_keys_no_page_of_another_site_changes_anything(deployment: Running) -> None:
    """A browser sends such a request without asking first, whatever the page may read of the answer."""
    with web(deployment, host="localhost:8091") as http:
        for headers, status in PAGES:
            answer = http.post("/v1/chat/completions", json=BODY, headers=headers)
            abort = http.post("/v1/requests/x/abort", headers=headers)
            assert (answer.status_code, abort.status_code == 403) == (status, status == 403), headers
            if status == 403:
                assert error_of(answer)[1] == "forbidden_origin"
                assert "plugins.http.cors_origins" in error_of(answer)[2]
            assert http.get("/v1/models", headers=headers).status_code == 200
    assert eventually(deployment.idle)


@pytest.mark.parametrize("deployment", [(*ECHO, 'plugins.http.cors_origins=["*"]')], indirect=True)
def test_where_every_origin_may_ask_any_page_may(deployment: Running) -> None:
    with web(deployment, origin="null", **{"sec-fetch-site": "cross-site"}) as http:
        assert http.post("/v1/chat/completions", json=BODY).status_code == 200


@pytest.mark.parametrize("deployment", [(*ECHO, "plugins.http.max_body_mib=1")], indirect=True)
def test_a_body_over_the_limit(deployment: Running) -> None:
    large = json.dumps({**BODY, "messages": [{"role": "user", "content": "x" * (1 << 20)}]}).encode()
    with web(deployment, **{"content-type": "application/json"}) as http:
        for content in (large, (large[at : at + 65536] for at in range(0, len(large), 65536))):
            assert error_of(http.post("/v1/chat/completions", content=content))[:2] == (413, "body_too_large")
        assert http.post("/v1/chat/completions", json=BODY).status_code == 200


@pytest.mark.parametrize("deployment", [(*ECHO, "plugins.http.max_body_mib=1")], indirect=True)
def test_bodies_are_bounded_together(deployment: Running) -> None:
    """Sixteen of the largest have come, all but their last byte."""
    url = httpx.URL(deployment.ready["plugins"]["http"])
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {1 << 20}\r\n\r\n".encode()
    with web(deployment) as http, ExitStack() as stack:
        for _ in range(16):
            caller = stack.enter_context(socket.create_connection((url.host, url.port), timeout=20))
            caller.sendall(head + b" " * ((1 << 20) - 1))
        answers: list[httpx.Response] = []

        def is_refused() -> bool:
            answers.append(http.post("/v1/chat/completions", json=BODY))
            return bool(answers[-1].status_code == 429)

        assert eventually(is_refused)
        assert error_of(answers[-1])[:2] == (429, "overloaded")
        assert (answers[-1].headers["retry-after"], answers[-1].headers["x-should-retry"]) == ("1", "true")
        stack.close()
        assert eventually(lambda: http.post("/v1/chat/completions", json=BODY).status_code == 200)


@pytest.mark.parametrize("deployment", [(*SLOW, f"plugins.http.api_keys=[{key('ann')}, {key('bob')}]")], indirect=True)
def test_who_bears_a_key_ends_its_own_requests_alone(deployment: Running) -> None:
    with web(deployment) as nobody:
        assert error_of(nobody.post("/v1/chat/completions", json=BODY))[:2] == (401, "invalid_api_key")
        assert nobody.get("/health/ready").status_code == 200
    ann = web(deployment, authorization="Bearer key of ann")
    bob = web(deployment, authorization="Bearer key of bob")
    hers = {"json": {**LONG, "stream": True}, "headers": {"x-request-id": "ours"}}
    with ann, bob, ann.stream("POST", "/v1/chat/completions", **hers) as answer:
        id_ = answer.headers["x-request-id"]
        assert error_of(bob.post(f"/v1/requests/{id_}/abort")) == (404, "not_found", f"no request '{id_}'")
        same = {"x-request-id": "ours"}  # as ann calls hers
        assert bob.post("/v1/chat/completions", json=BODY, headers=same).status_code == 200
        assert bob.post("/v1/requests/ours/abort").json() == {"id": "ours", "aborted": 0}
        assert ann.post(f"/v1/requests/{id_}/abort").json() == {"id": id_, "aborted": 1}
        events = [line for line in answer.iter_lines() if line]
        assert json.loads(events[-1].removeprefix("data: "))["error"]["code"] == "aborted"


@pytest.mark.parametrize("deployment", [(*SLOW, "plugins.http.max_concurrent=1")], indirect=True)
def test_more_than_are_let_in_are_told_to_come_again(deployment: Running) -> None:
    with web(deployment) as http, http.stream("POST", "/v1/chat/completions", json={**LONG, "stream": True}):
        refused = http.post("/v1/chat/completions", json=BODY)
        assert error_of(refused)[:2] == (429, "overloaded")
        assert (refused.headers["retry-after"], refused.headers["x-should-retry"]) == ("1", "true")
    assert eventually(deployment.idle)


@pytest.mark.parametrize("deployment", [SLOW], indirect=True)
def test_a_caller_that_goes_before_its_answer_aborts_it(deployment: Running) -> None:
    with web(deployment) as http:
        with pytest.raises(httpx.ReadTimeout):
            http.post("/v1/chat/completions", json=LONG, timeout=0.5)
        assert eventually(lambda: deployment.status()["counters"]["aborted"] == 1)
        assert eventually(deployment.idle)


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        (
            "plugins.http.host=0.0.0.0",
            'plugins.http.host: others may reach "0.0.0.0": with no api_keys, localhost, 127.0.0.1',
        ),
        ("plugins.http.prot=1", "plugins.http.prot: unknown key: did you mean 'port'?"),
        ("plugins.http.port=70000", "plugins.http.port: 70000"),
        ('plugins.http.api_keys=[{name = "a", sha256 = "short"}]', "sha256"),
    ],
)
def test_w2_wrong_options_are_found_before_anything_starts(setting: str, why: str) -> None:
    done = omnizmq("check", "synthetic", "--set", setting)
    assert done.returncode == 2
    assert why in done.stderr
    assert done.stderr.count("\n") == 1


def test_f5_a_port_that_is_taken_is_found_before_anything_loads() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = omnizmq("launch", "--config", "synthetic", "--http", str(port))
    assert done.returncode == 1
    assert done.stderr == f"omnizmq launch: http cannot listen at 127.0.0.1:{port}: Address already in use\n"


@pytest.mark.parametrize("deployment", [ECHO], indirect=True)
@pytest.mark.parametrize(
    "body",
    [
        {**BODY, "messages": [0] * 20_000},
        {**BODY, "messages": [{"role": "user", "content": "x"}] * 10_000},
        {**BODY, "params": {"thinker": {f"p{n}": [] for n in range(20_000)}}},
        {**BODY, "modalities": ["x"] * 20_000},
    ],
    ids=["no messages", "messages", "parameters", "modalities"],
)
def test_a_body_of_more_values_than_anybody_means(deployment: Running, body: dict[str, Any]) -> None:
    with web(deployment) as http:
        refused = error_of(http.post("/v1/chat/completions", json=body))
        assert refused == (400, "invalid_request", "the body has more than 16384 values")


@pytest.mark.parametrize("deployment", [ECHO], indirect=True)
@pytest.mark.parametrize("path", ["chat/completions", "audio/speech"])
def test_values_are_counted_before_a_body_is_read(deployment: Running, path: str) -> None:
    """One that is no JSON at its end is not read so far."""
    with web(deployment) as http:
        answer = http.post(f"/v1/{path}", content="[[]," * 40_000, headers={"content-type": "application/json"})
        assert error_of(answer) == (400, "invalid_request", "the body has more than 16384 values")
